"""Connections to Redis that are made with patience, never repeat a command, and say plainly why the store is away."""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import hiredis
from redis import exceptions as errors
from redis.asyncio.connection import (
    AbstractConnection,
    BlockingConnectionPool,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import FullJitterBackoff
from redis.connection import HiredisRespSerializer
from redis.exceptions import ResponseError, WatchError

from connectors.message import StoreUnavailable

CONNECT_ATTEMPTS = 4
CONNECT_BACKOFF_SECONDS = (0.05, 0.5)
"""Base and cap of the pause between attempts to connect: long enough for the embedded server's restart."""

_UNAVAILABLE: dict[type[Exception], str] = {
    errors.ConnectionError: "unreachable",
    errors.MaxConnectionsError: "no connection is free",
    errors.TimeoutError: "timeout",
    errors.BusyLoadingError: "loading",
    errors.AuthenticationError: "refuses the password",
    errors.AuthorizationError: "refuses this user",
    errors.ExternalAuthProviderError: "credentials cannot be had",
    errors.ReadOnlyError: "read-only",
    errors.OutOfMemoryError: "out of memory",
    errors.ClusterDownError: "the cluster is down",
    errors.MasterDownError: "the master is down",
    errors.ClusterError: "the cluster cannot be reached",
    errors.SlotNotCoveredError: "a part of the cluster is down",
    errors.TryAgainError: "the cluster is moving keys",
    errors.InvalidResponse: "speaks no Redis protocol",
    OSError: "unreachable",
}
"""Errors that mean "cannot reach or cannot keep", the most specific class of an error counting."""

_UNAVAILABLE_REPLIES: dict[str, str] = {
    "MISCONF": "cannot write to its disk",
    "OOM": "out of memory",
    "READONLY": "read-only",
    "NOREPLICAS": "has too few replicas",
    "LOADING": "loading",
    "MASTERDOWN": "the master is down",
    "CLUSTERDOWN": "the cluster is down",
    "NOAUTH": "wants a password",
    "WRONGPASS": "refuses the password",
    "TRYAGAIN": "the cluster is moving keys",
    "UNBLOCKED": "gave up its role",
}
"""First words of error replies that mean the same; scripts put a prefix before them."""

_SCRIPT_PREFIX = re.compile(r"^ERR .*?: -(?=[A-Z])|^-")
_BLOCKING_FIRST = frozenset({"BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BZPOPMIN", "BZPOPMAX"})
"""Commands whose last argument is how many seconds they may wait."""


def why_unavailable(error: BaseException) -> str | None:
    """Why *error* means that the store cannot be had, in a few words; None where it means something else."""
    if isinstance(error, WatchError):
        # redis-py reports a connection that broke during a transaction as a changed key, even after
        # EXEC was sent. Taken as such the transaction would be repeated, and might happen twice.
        broke = isinstance(error.__context__, errors.ConnectionError | errors.TimeoutError)
        return "connection lost in a transaction" if broke else None
    if isinstance(error, errors.RedisError | errors.RedisClusterException | OSError):
        for kind in type(error).__mro__:
            if kind in _UNAVAILABLE:
                return _UNAVAILABLE[kind]
    if isinstance(error, ResponseError):
        words = _SCRIPT_PREFIX.sub("", str(error)).split(maxsplit=1)
        return _UNAVAILABLE_REPLIES.get(words[0]) if words else None
    return None


class _Translated:
    """A block whose errors that mean an outage are `StoreUnavailable`. Keeps nothing, so that one does for all: a turn
    enters some eighty."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or not isinstance(error, errors.RedisError | errors.RedisClusterException | OSError):
            return
        why = why_unavailable(error)
        if why is None:
            return
        # An error reply may quote the command, which may hold what people wrote.
        detail = "" if isinstance(error, ResponseError) else f" ({error})"
        raise StoreUnavailable(f"Redis: {why}{detail}") from error


_TRANSLATED = _Translated()


def translated() -> _Translated:
    """A block whose outages of Redis are `connectors.message.StoreUnavailable`."""
    return _TRANSLATED


class NotSent(errors.ConnectionError):
    """No connection could be made, so that the command has certainly not happened."""


async def _nothing(_: object) -> None:
    return None


# hiredis packs commands as well as it reads answers; redis-py has only its synchronous connections do so.
_SERIALIZER = HiredisRespSerializer()


def _packed(args: Sequence[Any]) -> bytes:
    """A command as it goes out, as redis-py's serializer does it. Raises `redis.exceptions.DataError`."""
    if isinstance(args[0], str) and " " not in args[0]:
        with contextlib.suppress(TypeError):  # bytes of another kind, or what cannot be sent
            packed: bytes = hiredis.pack_command(tuple(args))
            return packed
    return b"".join(_SERIALIZER.pack(*args))


class _Bounded(AbstractConnection):
    """A connection that is made with patience, never repeats a command, and waits longer for blocking reads."""

    connect_attempts = CONNECT_ATTEMPTS
    _waits = 0.0

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = False) -> None:
        if not self.is_connected:
            await _patiently(
                lambda: super(_Bounded, self).connect_check_health(check_health, False),
                self.connect_attempts,
                self.socket_connect_timeout,
            )

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """redis-py bounds a write by ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that
        comes in the moment in which the write ends: a loop around it would never end. A time-out block does not.
        """
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        usual, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(usual):
                await super().send_packed_command(command, check_health)
        except TimeoutError as error:
            raise errors.TimeoutError("Timeout writing to socket") from error
        finally:
            self.socket_timeout = usual

    def pack_command(self, *args: Any) -> list[bytes]:
        self._waits = blocking_seconds(args)
        packed: list[bytes] = _SERIALIZER.pack(*args)
        return packed

    def pack_commands(self, commands: Any) -> list[bytes]:
        self._waits = 0.0
        return [part for args in commands for part in _SERIALIZER.pack(*args)]

    async def exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers to *commands* in their order, in one round trip; an error reply stands where its answer would.

        It does what `send_packed_command` and a `read_response` for each command do, in a third of their time: one
        time limit instead of one for each, which every answer renews, and nothing told to observers that nobody set.
        """
        reader: Any = self._parser  # declared without its method
        packed = b"".join(map(_packed, commands))  # may refuse a command
        await self.check_health()
        loop, seconds, writer = asyncio.get_running_loop(), self.socket_timeout, self._writer
        if writer is None:  # the check found nobody there
            raise errors.ConnectionError("the connection is gone")
        try:
            async with asyncio.timeout(seconds) as limit:
                writer.write(packed)
                await writer.drain()
                answers = []
                for _ in commands:
                    answers.append(await reader.read_response())
                    if seconds is not None and limit.when() - loop.time() < seconds / 2:  # type: ignore[operator]
                        limit.reschedule(loop.time() + seconds)
        except TimeoutError as error:
            await self.disconnect(nowait=True)
            raise errors.TimeoutError("no answer in time") from error
        except OSError as error:
            await self.disconnect(nowait=True)
            raise errors.ConnectionError(str(error)) from error
        except BaseException:  # what was asked may still be answered: nobody else may read that
            await self.disconnect(nowait=True)
            raise
        self.next_health_check = loop.time() + self.health_check_interval
        return answers

    async def read_response(self, *args: Any, **options: Any) -> Any:
        usual = self.socket_timeout
        if usual is not None:
            self.socket_timeout = usual + self._waits
        try:
            return await super().read_response(*args, **options)
        finally:
            self.socket_timeout = usual


async def _patiently(connect: Callable[[], Awaitable[None]], attempts: int, seconds: float | None) -> None:
    """Connect, trying again with backoff, in *seconds* altogether."""
    base, cap = CONNECT_BACKOFF_SECONDS
    retry = Retry(FullJitterBackoff(cap=cap, base=base), attempts - 1)
    try:
        async with asyncio.timeout(seconds):
            await retry.call_with_retry(connect, _nothing)
    except (errors.AuthenticationError, errors.AuthorizationError, errors.BusyLoadingError):
        raise
    except (errors.ConnectionError, errors.TimeoutError, TimeoutError) as error:
        raise NotSent(str(error) or "no connection in time") from error


def blocking_seconds(args: Sequence[Any]) -> float:
    """How long the server may hold the answer to the command *args* back, in seconds; 0 for most."""
    name = _word(args[0])
    if name in _BLOCKING_FIRST:
        return float(args[-1])
    if name in ("XREAD", "XREADGROUP"):
        options = [_word(arg) for arg in args[4 if name == "XREADGROUP" else 1 :][:5]]
        if "BLOCK" in options:
            return float(options[options.index("BLOCK") + 1]) / 1000
    return 0.0


def _word(arg: object) -> str:
    return (arg.decode("utf-8", "replace") if isinstance(arg, bytes) else str(arg)).upper()


class TcpConnection(_Bounded, Connection):
    pass


class TlsConnection(_Bounded, SSLConnection):
    pass


class UnixConnection(_Bounded, UnixDomainSocketConnection):
    pass


class OneMaster(_Bounded, SentinelManagedConnection):
    # Each attempt asks the sentinels again, because they may have named another master meanwhile.
    connect_attempts = 1

    async def connect(self) -> None:
        await _patiently(super().connect, CONNECT_ATTEMPTS, self.socket_connect_timeout)

    async def exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        answers = await super().exchange(commands)
        if any(isinstance(answer, errors.ReadOnlyError) for answer in answers):  # it is the master no more
            await self.disconnect()
        return answers


class OneMasterTls(OneMaster, SSLConnection):
    pass


CONNECTIONS: dict[type, type] = {
    Connection: TcpConnection,
    SSLConnection: TlsConnection,
    UnixDomainSocketConnection: UnixConnection,
}


class Pool(BlockingConnectionPool):
    """Connections; who finds none free waits for one. One that is at hand is given and taken back without locks, tasks
    and observers: nothing is waited for in between, so that nothing can come between."""

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> AbstractConnection:
        if not self._available_connections or self._is_disputed():
            return cast("AbstractConnection", await super().get_connection())
        connection = cast("AbstractConnection", self.get_available_connection())
        try:
            # What was closed, or has something left to read, is made anew.
            if not connection.is_connected or await connection.can_read():
                await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        if connection.should_reconnect() or self._is_disputed():
            await super().release(connection)
        else:
            self._in_use_connections.remove(connection)
            self._available_connections.append(connection)

    def _is_disputed(self) -> bool:
        """Whether somebody waits for a connection, or is about to be given one."""
        return self._condition.locked() or bool(self._condition._waiters) or self._in_maintenance


class SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the master that sentinels name; who finds none free waits for one."""


class Room:
    """Lets *most* at a time do what takes a connection. Who waits for longer than *seconds* gets the error of a pool
    that has none left."""

    def __init__(self, most: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(most)
        self._seconds = seconds

    async def __aenter__(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError as error:
            raise errors.MaxConnectionsError("none in time") from error

    async def __aexit__(self, *_: object) -> None:
        self._free.release()
