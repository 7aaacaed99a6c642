"""What a connection may send before anybody looks at it is bounded."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from runtime.api.protocol import HEAD_MAX_BYTES, Head
from runtime.api.server import HttpServer

FAR_TOO_MUCH = 32 * HEAD_MAX_BYTES


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def size(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    app = FastAPI()
    app.state.stopping = asyncio.Event()
    app.add_route("/", size, methods=["GET", "POST"])
    app.add_route("/echo", echo, methods=["POST"])
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app, [listening], grace_seconds=1.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        await server.started()
        yield listening.getsockname()[1]
        server.stop()


async def answered(port: int, *pieces: bytes) -> bytes:
    """What comes back for *pieces*; nothing where the connection was ended before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


BODY = b"what is new\nUpgrade: now\r\n\r\nUpgrade: then"
OFFERED = (
    b"POST /echo HTTP/1.1\r\nHost: here\r\nConnection: Upgrade, close\r\nUpgradeable: 1\r\nUpGrade: h2c\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
TAKEN = OFFERED.replace(b"UpGrade:", b"x-offer:", 1)
HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"GET /?" + b"a" * FAR_TOO_MUCH, b" HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"),
        (HEAD, b"X-Long: " + b"a" * FAR_TOO_MUCH, b"\r\n\r\n"),
        (HEAD, *(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(FAR_TOO_MUCH // 1000)), b"\r\n"),
    ],
    ids=["first line", "one header", "many headers"],
)
async def test_a_request_that_does_not_come_to_its_body_is_not_held(port: int, pieces: tuple[bytes, ...]) -> None:
    assert b" 200 " not in await answered(port, *pieces)
    assert b" 200 " in await answered(port, HEAD, b"\r\n")


async def test_trailers_without_end_are_not_held(port: int) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    assert b" 200 " in await answered(port, HEAD, body, b"X-End: 1\r\n\r\n")
    assert b" 200 " not in await answered(port, HEAD, body, b"X-End: " + b"a" * FAR_TOO_MUCH, b"\r\n\r\n")


async def test_long_heads_and_bodies_are_read_whole(port: int) -> None:
    long_header = b"X-Long: " + b"a" * (HEAD_MAX_BYTES // 2) + b"\r\n"
    length = b"Content-Length: %d\r\n\r\n" % FAR_TOO_MUCH
    chunks = [b"%x\r\n%s\r\n" % (100_000, b"b" * 100_000) for _ in range(20)]

    plain = await answered(port, HEAD, long_header, length, b"b" * FAR_TOO_MUCH)
    chunked = await answered(port, HEAD, b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n")

    assert plain.endswith(str(FAR_TOO_MUCH).encode())
    assert chunked.endswith(b"2000000")


async def test_who_offers_to_go_on_by_http_2_is_answered_and_nothing_is_warned_of(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    offer = b"POST / HTTP/1.1\r\nHost: here\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"
    found = await answered(port, offer, b"HTTP2-Settings: AAMAAABk\r\nContent-Length: 3\r\n\r\nabc")
    assert b" 200 " in found
    assert found.endswith(b"3")
    assert caplog.records == []


@given(st.lists(st.integers(0, len(OFFERED)), max_size=12))
def test_an_offer_is_taken_out_of_a_head_and_nothing_out_of_its_body_wherever_the_pieces_end(ends: list[int]) -> None:
    head, cuts = Head(), sorted({0, len(OFFERED), *ends})
    went_on = b""
    for start, end in itertools.pairwise(cuts):
        went_on += OFFERED[start:end] if b"\r\n\r\n" in went_on else head.without_offer(OFFERED[start:end])

    assert went_on == TAKEN


@pytest.mark.parametrize("at", [OFFERED.index(b"UpGrade") + 3, OFFERED.index(b"\r\n\r\n") + 2])
async def test_a_body_arrives_as_it_is_wherever_the_pieces_of_its_head_end(port: int, at: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(OFFERED[:at])
    await asyncio.sleep(0.1)  # longer than it takes to be read alone; where it is not, the test passes all the same
    writer.write(OFFERED[at:])
    found = await reader.read()
    writer.close()

    assert found.endswith(b"\r\n\r\n" + BODY)
