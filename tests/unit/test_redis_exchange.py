"""A round trip reads its answers as they come, and leaves the stream as it was."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import hiredis
import pytest
from redis import exceptions as errors
from redis._parsers.hiredis import NOT_ENOUGH_DATA

from runtime.redis_exchange import Exchange


class Line:
    """A connection, and who stands at its other end."""

    def __init__(self, server: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer
        self.parser = hiredis.Reader(
            protocolError=errors.InvalidResponse, replyError=errors.ResponseError, notEnoughData=NOT_ENOUGH_DATA
        )
        self.told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def ask(self, count: int, seconds: float | None = 30.0) -> Exchange:
        transport: Any = self.writer.transport
        return Exchange(transport, self.parser, b"?", count, seconds, lambda _, result: self.told.set_result(result))

    async def says(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.server, data)


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours)
    yield Line(theirs, reader, writer)
    writer.close()
    theirs.close()


async def test_answers_are_told_in_their_order_however_they_were_cut_and_an_error_reply_is_one_of_them(
    line: Line,
) -> None:
    line.ask(3)
    for piece in (b"+o", b"ne\r\n-ERR t", b"wo\r\n:", b"3\r\n"):
        assert not line.told.done()
        await line.says(piece)
        for _ in range(5):
            await asyncio.sleep(0)
    first, second, third = await line.told
    assert (first, str(second), third) == (b"one", "ERR two", 3)
    assert isinstance(second, errors.ResponseError)


async def test_what_is_asked_goes_out_at_once_and_the_stream_reads_again_afterwards(line: Line) -> None:
    line.ask(1)
    assert line.server.recv(10) == b"?"
    await line.says(b"+one\r\n")
    assert await line.told == [b"one"]
    await line.says(b"more")
    assert await line.reader.read(10) == b"more"


async def test_what_comes_beyond_the_answers_is_left_to_be_found(line: Line) -> None:
    """Whoever would use the connection next sees that something is left to read."""
    line.ask(1)
    await line.says(b"+one\r\n+nobody's\r\n")
    assert await line.told == [b"one"]
    assert line.parser.has_data()


async def test_what_the_server_says_unasked_is_no_answer(line: Line) -> None:
    exchange = line.ask(1)
    await line.says(b">2\r\n+news\r\n+more\r\n+one\r\n")
    assert await line.told == [b"one"]
    assert exchange.pushed == [[b"news", b"more"]]


async def test_a_server_that_goes_away_in_between_is_told_and_the_stream_knows_it(line: Line) -> None:
    line.ask(2)
    await line.says(b"+one\r\n")
    line.server.shutdown(socket.SHUT_WR)
    assert isinstance(await line.told, errors.ConnectionError)
    assert await line.reader.read() == b""


async def test_a_connection_that_breaks_is_told(line: Line) -> None:
    line.ask(1)
    line.writer.transport.abort()
    assert isinstance(await line.told, errors.ConnectionError)


async def test_no_answer_in_time_is_told_and_every_answer_renews_the_time(line: Line) -> None:
    exchange = line.ask(3, seconds=30.0)
    now = exchange._loop.time()
    exchange._answered_at = now - 20.0
    await line.says(b"+one\r\n")
    while not exchange._answers:
        await asyncio.sleep(0)
    exchange._look()
    assert exchange._answered_at >= now
    assert not line.told.done()

    exchange._answered_at = now - 31.0
    exchange._look()
    assert isinstance(await line.told, errors.TimeoutError)


async def test_what_speaks_no_redis_protocol_is_told(line: Line) -> None:
    line.ask(1)
    await line.says(b"HTTP/1.1 400 Bad Request\r\n")
    assert isinstance(await line.told, errors.InvalidResponse)


async def test_a_server_that_sends_the_connection_away_ends_it(line: Line) -> None:
    line.parser = hiredis.Reader(replyError=errors.ConnectionError, notEnoughData=NOT_ENOUGH_DATA)
    line.ask(2)
    await line.says(b"-ERR max number of clients reached\r\n")
    assert isinstance(await line.told, errors.ConnectionError)


async def test_nobody_is_told_of_what_was_abandoned(line: Line) -> None:
    line.ask(1).abandon()
    await line.says(b"+one\r\n")
    assert await line.reader.read(10) == b"+one\r\n"
    assert not line.told.done()
