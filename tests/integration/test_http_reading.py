"""What a connection may send before anybody looks at it is bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from runtime.http import serving
from runtime.http.server import HEAD_MAX_BYTES

FAR_TOO_MUCH = 32 * HEAD_MAX_BYTES


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def size(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def echo(request: Request) -> Response:
        return Response(await request.body())

    async def slow(_request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            await go_on.wait()
            yield b"one"
            yield b"two"

        return StreamingResponse(pieces())

    async def go(_request: Request) -> Response:
        go_on.set()
        return Response()

    go_on = asyncio.Event()
    app = FastAPI()
    app.add_route("/slow", slow, methods=["GET", "HEAD"])
    app.add_route("/go", go, methods=["POST"])
    app.state.stopping = asyncio.Event()
    app.add_route("/", size, methods=["GET", "POST"])
    app.add_route("/echo", echo, methods=["POST"])
    listening = socket.create_server(("127.0.0.1", 0))
    async with serving(app, [listening], grace_seconds=1.0):
        yield listening.getsockname()[1]


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


@pytest.mark.parametrize("at", [OFFERED.index(b"UpGrade") + 3, OFFERED.index(b"\r\n\r\n") + 2])
async def test_a_body_arrives_as_it_is_wherever_the_pieces_of_its_head_end(port: int, at: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(OFFERED[:at])
    await asyncio.sleep(0.1)  # longer than it takes to be read alone; where it is not, the test passes all the same
    writer.write(OFFERED[at:])
    found = await reader.read()
    writer.close()

    assert found.endswith(b"\r\n\r\n" + BODY)


def offer(body: bytes, *, in_chunks: bool = False) -> bytes:
    """A request that offers to go on by another protocol, and whose answer is *body*."""
    head = b"POST /echo HTTP/1.1\r\nHost: here\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    if not in_chunks:
        return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    cut = len(body) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(some), some) for some in (body[:cut], body[cut:]))
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-End: 1\r\n\r\n"


PLAIN = b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nplain"
ONE_AFTER_ANOTHER = (
    offer(b"first\r\n\r\nbody")
    + offer(b"a second,\r\n\r\n in chunks", in_chunks=True)
    + PLAIN
    + b"GET /?nothing HTTP/1.1\r\nHost: here\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    + offer(b"the third " + BODY)
    + HEAD
    + b"Content-Length: 4\r\n\r\nlast"
)


@pytest.mark.parametrize("size", [1, 7, 60, 101, len(ONE_AFTER_ANOTHER)])
async def test_requests_that_come_one_right_after_another_keep_their_bodies_though_they_offer_another_protocol(
    port: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """However the connection cuts them into pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for start in range(0, len(ONE_AFTER_ANOTHER), size):
        writer.write(ONE_AFTER_ANOTHER[start : start + size])
        if size > 1:
            await asyncio.sleep(0.002)
    found = await reader.read()
    writer.close()

    answers = [answer.partition(b"\r\n\r\n")[2] for answer in found.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert answers == [
        b"first\r\n\r\nbody",
        b"a second,\r\n\r\n in chunks",
        b"plain",
        b"0",
        b"the third " + BODY,
        b"4",
    ]
    assert caplog.records == []


async def test_a_head_that_does_not_end_is_not_held_behind_a_whole_request_either(port: int) -> None:
    found = await answered(port, PLAIN, HEAD + b"X-Long: " + b"a" * FAR_TOO_MUCH, b"\r\n\r\n")
    assert found.count(b" 200 ") <= 1


async def test_the_head_of_an_answer_that_is_being_made_is_not_held_back(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /slow HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        await answered(port, b"POST /go HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        body = await reader.read()
    writer.close()
    assert b" 200 " in head
    assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


async def test_of_requests_that_come_together_each_has_its_answer_in_order(port: int) -> None:
    post = b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\n%s"
    last = b"HEAD /go HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    found = await answered(port, post % b"1" + post % b"2" + last)
    first, second, third = found.split(b"HTTP/1.1 ")[1:]
    assert (first[-1:], second[-1:], third[-4:]) == (b"1", b"2", b"\r\n\r\n")
