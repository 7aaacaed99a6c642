"""Pieces of a streamed answer are joined without losing anything."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.pieces import Gathered, gather, join, usage_after

DONE = b"data: [DONE]\n\n"


def event(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None} | more
    return b"data: " + json.dumps({"id": "1", "choices": [choice]}).encode() + b"\n\n"


def deltas(events: bytes, key: str = "content") -> list[str]:
    found = [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]
    return [one["choices"][0]["delta"].get(key) for one in found]


class Sent(httpx.AsyncByteStream):
    """A server that sends *pieces*, one whenever it is told to go on; an exception is raised."""

    def __init__(self, *pieces: bytes | Exception, freely: bool = False) -> None:
        self.pieces = pieces
        self.go_on = asyncio.Semaphore(len(pieces) if freely else 0)
        self.is_closed = False
        self.was_read_to_its_end = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await self.go_on.acquire()
            if isinstance(piece, Exception):
                raise piece
            yield piece
        for _ in range(5):
            await asyncio.sleep(0)
        self.was_read_to_its_end = True

    async def aclose(self) -> None:
        self.is_closed = True


async def read(stream: httpx.AsyncByteStream) -> list[bytes]:
    return [piece async for piece in stream]


def test_neighbours_that_differ_in_their_text_only_become_one() -> None:
    joined, has_text = join(event({"content": "Grüße, "}) + event({"content": "👋"}) + event({"content": "\n\n"}))
    assert deltas(joined) == ["Grüße, 👋\n\n"]
    assert has_text


@pytest.mark.parametrize(
    "other",
    [
        event({"role": "assistant", "content": "x"}),
        event({"reasoning_content": "x"}),
        event({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        event({"content": "x"}, finish_reason="stop"),
        event({"content": "x"}, index=1),
        event({"content": "x"}, logprobs={"content": []}),
        b": ping\n\n",
        b"event: message\ndata: {}\n\n",
        b'data: {"error": {"message": "no"}}\n\n',
        b"data: {broken\n\n",
        DONE,
    ],
)
def test_what_says_more_than_text_stays_as_it_is_and_in_its_place(other: bytes) -> None:
    events = event({"content": "a"}) + other + event({"content": "b"})
    assert join(events)[0] == events


def test_a_character_that_a_server_sends_in_halves_costs_no_more_than_itself() -> None:
    halves = event({"content": "a"}).replace(b'"a"', b'"a\xe6\x97"') + event({"content": "b"}).replace(
        b'"b"', b'"\xa5b"'
    )
    assert deltas(join(halves)[0]) == ["a\ufffd\ufffdb"]


def test_bits_of_a_tools_arguments_are_kept_apart_where_they_are_the_same_and_come_with_empty_text() -> None:
    bit = event({"content": "", "tool_calls": [{"index": 0, "function": {"arguments": "0"}}]})
    assert join(bit + bit)[0] == bit + bit


def test_padding_that_makes_pieces_one_length_does_not_keep_them_apart() -> None:
    padded = [
        json.loads(event({"content": text})[6:]) | {"obfuscation": pad} for text, pad in (("a", "xyz"), ("b", "q"))
    ]
    events = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in padded)
    assert deltas(join(events)[0]) == ["ab"]


@given(
    st.lists(st.tuples(st.sampled_from(["content", "reasoning_content", "role"]), st.text()), max_size=12),
    st.lists(st.integers(1, 60), max_size=40),
)
def test_no_character_is_lost_however_the_bytes_arrive(said: list[tuple[str, str]], cuts: list[int]) -> None:
    sent = b"".join(event({key: text}) for key, text in said) + DONE
    pieces, rest = [], sent
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    received = b"".join(asyncio.run(read(Gathered(Sent(*pieces, rest, freely=True), seconds=0.0))))
    assert DONE not in received
    for key in ("content", "reasoning_content", "role"):
        texts = [text or "" for text in deltas(received, key)]
        assert "".join(texts) == "".join(text for spoken, text in said if spoken == key)


class OpenAIsStream:
    """As OpenAI's client has it: *chunks*, then *error*."""

    def __init__(self, *chunks: Any, error: Exception | None = None) -> None:
        self.response = httpx.Response(200)
        self._chunks, self._error = chunks, error

    async def __aiter__(self) -> AsyncIterator[Any]:
        for chunk in self._chunks:
            yield chunk
        if self._error is not None:
            raise self._error


def told(usage: str | None) -> SimpleNamespace:
    return SimpleNamespace(usage=usage)


async def test_the_last_usage_after_an_answer_is_known_however_its_connection_ends() -> None:
    ended = OpenAIsStream(told("some"), told("all"), told(None))
    broken = OpenAIsStream(told("all"), error=httpx.ReadError("gone"))
    assert await usage_after(SimpleNamespace(completion_stream=ended)) == "all"
    assert await usage_after(SimpleNamespace(completion_stream=broken)) == "all"


async def test_of_another_clients_stream_nothing_is_read_past_litellm() -> None:
    async def chunks() -> AsyncIterator[Any]:
        yield told("all")

    theirs = chunks()
    assert await usage_after(SimpleNamespace(completion_stream=theirs)) is None
    assert await anext(theirs) == told("all")


async def test_the_first_text_does_not_wait_and_the_rest_is_gathered_until_the_end() -> None:
    words = [event({"content": word}) for word in ("a", "b", "c", "d")]
    server = Sent(event({"role": "assistant", "content": ""}), *words, DONE)
    pieces = aiter(Gathered(server, seconds=3600))
    server.go_on.release()
    assert deltas(await anext(pieces)) == [""]
    server.go_on.release()
    assert deltas(await anext(pieces)) == ["a"]
    for _ in range(4):
        server.go_on.release()
    assert [deltas(piece) async for piece in pieces] == [["bcd"]]


async def test_text_is_passed_on_while_the_answer_goes_on() -> None:
    server = Sent(event({"content": "a"}), event({"content": "b"}), DONE)
    pieces = aiter(Gathered(server, seconds=0.001))
    server.go_on.release()
    assert deltas(await anext(pieces)) == ["a"]
    server.go_on.release()
    assert deltas(await anext(pieces)) == ["b"]


async def test_a_server_that_ends_its_lines_otherwise_is_heard_while_it_writes() -> None:
    for line_end in (b"\r\n", b"\r"):
        words = [event({"content": word}).replace(b"\n", line_end) for word in ("a", "b", "c")]
        server = Sent(*words, DONE.replace(b"\n", line_end))
        pieces = aiter(Gathered(server, seconds=0.001))
        for word in ("a", "b", "c"):
            server.go_on.release()
            async with asyncio.timeout(5):
                assert deltas(await anext(pieces)) == [word]
        server.go_on.release()
        async with asyncio.timeout(5):
            assert deltas(b"".join([piece async for piece in pieces])) == []


async def test_a_broken_connection_is_told_after_what_came_before_it() -> None:
    server = Sent(event({"content": "a"}), event({"content": "b"}), httpx.ReadError("broken"), freely=True)
    received: list[bytes] = []
    with pytest.raises(httpx.ReadError):
        async for piece in Gathered(server):
            received += [piece]
    assert "".join(deltas(b"".join(received))) == "ab"


@pytest.mark.parametrize("cut", [b"", b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "b'])
async def test_a_connection_that_ends_in_the_middle_of_an_answer_is_broken_though_it_ends_orderly(cut: bytes) -> None:
    server = Sent(event({"content": 'a "finish_reason": "stop"\ndata: [DONE]'}) + cut, freely=True)
    received: list[bytes] = []
    with pytest.raises(httpx.RemoteProtocolError):
        async for piece in Gathered(server):
            received += [piece]
    assert received


@pytest.mark.parametrize(
    "last", [event({}, finish_reason="stop"), event({}, finish_reason="stop") + event({}), b"data:[DONE]\r\r", DONE]
)
async def test_an_answer_of_which_the_server_says_in_one_way_that_it_is_over_is_whole(last: bytes) -> None:
    server = Sent(event({"content": "a"}), last, freely=True)
    assert b'"a"' in b"".join(await read(Gathered(server)))


async def test_whoever_stops_at_the_end_of_the_answer_leaves_a_connection_that_can_be_used_again() -> None:
    server = Sent(event({"content": "a"}) + DONE, freely=True)
    gathered = Gathered(server)
    async for piece in gathered:
        assert deltas(piece) == ["a"]
        break
    await gathered.aclose()
    assert server.was_read_to_its_end


async def test_an_answer_ends_where_the_provider_says_so_though_the_connection_stays() -> None:
    server = Sent(event({"content": "a"}) + DONE + event({"content": "b"}), b"")
    server.go_on.release()
    async with asyncio.timeout(5):
        assert deltas(b"".join(await read(Gathered(server)))) == ["a"]
    assert not server.was_read_to_its_end


async def test_a_connection_that_breaks_behind_the_answer_is_nobodys_trouble() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, trouble: told.append(trouble))
    gathered = Gathered(Sent(event({"content": "a"}) + DONE, httpx.ReadError("broken"), freely=True))
    pieces = aiter(gathered)
    assert deltas(await anext(pieces)) == ["a"]
    await gathered.aclose()
    del gathered, pieces
    for _ in range(5):  # the loop ends what nobody reads to its end
        await asyncio.sleep(0)
    gc.collect()
    assert told == []


async def test_closing_ends_the_reading_and_the_connection() -> None:
    server = Sent(event({"content": "a"}), DONE)
    gathered = Gathered(server)
    pieces = aiter(gathered)
    server.go_on.release()
    await anext(pieces)
    before = asyncio.all_tasks()
    await gathered.aclose()
    assert server.is_closed
    assert len(asyncio.all_tasks()) == len(before) - 1


def test_streams_that_are_compressed_or_no_http_answers_are_left_alone() -> None:
    class Read:
        def __init__(self, response: object) -> None:
            self.response = response

    class Stream:
        def __init__(self, response: object) -> None:
            self.completion_stream = Read(response)

    source = Sent()
    compressed = httpx.Response(
        200, request=httpx.Request("POST", "http://x"), headers={"content-encoding": "gzip"}, stream=source
    )
    plain = httpx.Response(200, request=httpx.Request("POST", "http://x"), stream=source)
    for stream in (Stream(compressed), Stream(plain), Stream(None), object()):
        gather(stream)
    assert compressed.stream is source
    assert isinstance(plain.stream, Gathered)
