"""Connections to Redis that are made with patience, never repeat a command, and say plainly why the store is away."""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
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
from runtime.redis_exchange import GONE, Exchange

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
_BLOCKING_ASKED = frozenset({"XREAD", "XREADGROUP"})
"""Those that wait where an option says so."""


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


def as_unavailable(error: BaseException) -> StoreUnavailable | None:
    """What is raised in place of *error*, where it means that the store cannot be had."""
    why = why_unavailable(error)
    if why is None:
        return None
    # An error reply may quote the command, which may hold what people wrote.
    detail = "" if isinstance(error, ResponseError) else f" ({error})"
    unavailable = StoreUnavailable(f"Redis: {why}{detail}")
    unavailable.__cause__ = error
    return unavailable


class _Translated:
    """A block whose errors that mean an outage are `StoreUnavailable`. Keeps nothing, so that one does for all: a turn
    enters some eighty."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and (unavailable := as_unavailable(error)) is not None:
            raise unavailable


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
        try:
            packed: bytes = hiredis.pack_command(tuple(args))
        except TypeError:  # bytes of another kind, or what cannot be sent
            return b"".join(_SERIALIZER.pack(*args))
        return packed
    return b"".join(_SERIALIZER.pack(*args))


class Bounded(AbstractConnection):
    """A connection that is made with patience, never repeats a command, and waits longer for blocking reads."""

    connect_attempts = CONNECT_ATTEMPTS
    _waits = 0.0

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = False) -> None:
        if not self.is_connected:
            await _patiently(
                lambda: super(Bounded, self).connect_check_health(check_health, False),
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

    def is_at_hand(self) -> bool:
        """Whether it can be used without a look at it first: connected, nothing left to read, not silent for long."""
        reader, parser = self._reader, cast("Any", self._parser)
        if reader is None or self._writer is None or self._writer.transport.is_closing():
            return False
        if reader.at_eof() or reader._buffer or parser._reader.has_data():  # type: ignore[attr-defined]
            return False
        return not self.health_check_interval or asyncio.get_running_loop().time() <= self.next_health_check

    def begin(self, commands: Sequence[Sequence[Any]], told: Callable[[list[Any] | Exception], None]) -> Exchange:
        """Ask *commands* in one round trip; *told* is given their answers later, see `runtime.redis_exchange`. Where it
        is given an error, the connection is closed.

        Raises `redis.exceptions.DataError` and others for what cannot be sent; then nothing was.
        """
        packed = b"".join(map(_packed, commands))
        if self._writer is None or self._writer.transport.is_closing():  # a check found nobody there
            self.cut()
            raise errors.ConnectionError(GONE)

        def ended(exchange: Exchange, result: list[Any] | Exception) -> None:
            if isinstance(result, Exception):
                self.cut()
            else:
                self.next_health_check = asyncio.get_running_loop().time() + self.health_check_interval
            told(result)

        parser = cast("Any", self._parser)._reader
        transport: Any = self._writer.transport
        return Exchange(transport, parser, packed, len(commands), self.socket_timeout, ended)

    async def exchange(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers to *commands* in their order, in one round trip; an error reply stands where its answer would."""
        await self.check_health()
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def told(result: list[Any] | Exception) -> None:
            if answers.done():
                return
            if isinstance(result, Exception):
                answers.set_exception(result)
            else:
                answers.set_result(result)

        under_way = self.begin(commands, told)
        try:
            found = await answers
        except asyncio.CancelledError:  # what was asked may still be answered: nobody else may read that
            under_way.abandon()
            self.cut()
            raise
        await self.heed(under_way.pushed)
        return found

    async def heed(self, pushed: Sequence[Any]) -> None:
        """Have redis-py do what is due after what the server said unasked."""
        for one in pushed:
            await cast("Any", self._parser).handle_push_response(one)

    def cut(self) -> None:
        """Close it without waiting for that."""
        cast("Any", self._parser).on_disconnect()
        self.reset_should_reconnect()
        self._close()

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
    first = args[0]
    name = first.upper() if type(first) is str else _word(first)
    if name in _BLOCKING_FIRST:
        return float(args[-1])
    if name in _BLOCKING_ASKED:
        options = [_word(arg) for arg in args[4 if name == "XREADGROUP" else 1 :][:5]]
        if "BLOCK" in options:
            return float(options[options.index("BLOCK") + 1]) / 1000
    return 0.0


def _word(arg: object) -> str:
    return (arg.decode("utf-8", "replace") if isinstance(arg, bytes) else str(arg)).upper()


class TcpConnection(Bounded, Connection):
    pass


class TlsConnection(Bounded, SSLConnection):
    pass


class UnixConnection(Bounded, UnixDomainSocketConnection):
    pass


class OneMaster(Bounded, SentinelManagedConnection):
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

    def at_hand(self) -> Bounded | None:
        """A connection that can be used at once; None where one would have to be looked after, made or waited for."""
        if not self._available_connections or self._is_disputed():
            return None
        if not cast("Bounded", self._available_connections[-1]).is_at_hand():
            return None
        return cast("Bounded", self.get_available_connection())

    def take_back(self, connection: AbstractConnection) -> bool:
        """`release` where nothing is to be waited for; False where there is, and it was not done."""
        if connection.should_reconnect() or self._is_disputed():
            return False
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)
        return True

    async def release(self, connection: AbstractConnection) -> None:
        if not self.take_back(connection):
            await super().release(connection)

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
