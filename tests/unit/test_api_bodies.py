"""Bodies are read within their limits, whatever the pieces they come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from runtime.http.errors import ApiError, Body, body_lines, read_body, read_json


class Wanted(Body):
    text: str
    number: int = 1


def request(pieces: list[bytes]) -> Request:
    """A request whose body comes in *pieces*."""
    waiting = list(pieces)

    async def receive() -> Message:
        body = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


def cut(body: bytes, at: list[int]) -> list[bytes]:
    """*body* in pieces that end at *at*."""
    places = sorted({0, len(body), *(place % (len(body) + 1) for place in at)})
    return [body[start:end] for start, end in pairwise(places)]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6), st.integers(0, 200))
async def test_a_body_is_whole_or_too_large(body: bytes, at: list[int], limit: int) -> None:
    """Within the limit every byte arrives; beyond it the answer is 413 and names the setting."""
    if len(body) <= limit:
        assert await read_body(request(cut(body, at)), limit, "LIMIT") == body
        return
    with pytest.raises(ApiError) as raised:
        await read_body(request(cut(body, at)), limit, "LIMIT")
    assert raised.value.status == 413
    assert "AGENT_RUNTIME_LIMIT" in raised.value.message


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 400), max_size=9))
async def test_lines_do_not_depend_on_the_pieces(parts: list[bytes], at: list[int]) -> None:
    """The lines are those of the whole body, blank ones left out."""
    body = b"\n".join(parts)
    got = [line async for line in body_lines(request(cut(body, at)), 1000)]
    assert got == [line for line in body.split(b"\n") if line.strip()]


async def test_a_line_without_end_is_refused_early() -> None:
    """Not more than the limit and a piece is ever held."""
    endless = request([b"x" * 100] * 50)
    with pytest.raises(ApiError) as raised:
        async for _ in body_lines(endless, 250):
            pass
    assert (raised.value.status, raised.value.close) == (413, True)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", '"text"'),
        (b"[]", "object"),
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b'{"text": "\\ud800"}', "JSON"),
        (b'{"text": 1}', '"text"'),
        (b'{"text": "a", "nubmer": 2}', '"nubmer"'),
        (b"[" * 100_000, "JSON"),
        (b'{"number": ' + b"9" * 10_000 + b', "text": ""}', "number"),
    ],
)
async def test_wrong_bodies_are_400_and_name_the_field(body: bytes, told: str) -> None:
    """The text names what is wrong and never repeats a value."""
    with pytest.raises(ApiError) as raised:
        await read_json(request([body]), Wanted, 1_000_000)
    assert raised.value.status == 400
    assert told in raised.value.message
    assert len(raised.value.message) < 300


async def test_a_byte_order_mark_is_no_mistake() -> None:
    """Editors write one."""
    assert await read_json(request([b'\xef\xbb\xbf {"text": "a"}']), Wanted, 100) == Wanted(text="a")
