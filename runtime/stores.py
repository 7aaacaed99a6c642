"""Opens Redis: the embedded server, a server, a cluster, or the master that sentinels name.

The only module that imports redis at run time. The clients that it makes raise
`connectors.message.StoreUnavailable` wherever the store cannot be reached or cannot keep what it is
given (`why_unavailable` is the one table), on every path: commands, pipelines, transactions, scripts,
locks, subscriptions, one server or a cluster. What the caller did wrong, and `WatchError`, pass unchanged.

A command that may have reached the server is never sent again: its outcome is unknown, and only the
caller knows whether a repetition is harmless. What is tried again, with backoff, is connecting.
"""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from redis import exceptions as errors
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.cluster import ClusterNode, ClusterPipeline, ClusterPubSub
from redis.asyncio.connection import (
    AbstractConnection,
    BlockingConnectionPool,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import FullJitterBackoff, NoBackoff
from redis.connection import HiredisRespSerializer
from redis.exceptions import NoScriptError, ResponseError, WatchError

from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import StoreUnavailable
from runtime.batching import Batching
from runtime.embedded.redis_server import EmbeddedRedis, embedded_redis

__all__ = ["NoScriptError", "RedisStore", "ResponseError", "WatchError", "connect", "open_redis", "why_unavailable"]

CONNECT_ATTEMPTS = 4
CONNECT_BACKOFF_SECONDS = (0.05, 0.5)
"""Base and cap of the pause between attempts to connect: long enough for the embedded server's restart."""
MAX_CONNECTIONS = 64
CLOSE_SECONDS = 2.0

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


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (errors.RedisError, errors.RedisClusterException, OSError) as error:
        why = why_unavailable(error)
        if why is None:
            raise
        # An error reply may quote the command, which may hold what people wrote.
        detail = "" if isinstance(error, ResponseError) else f" ({error})"
        raise StoreUnavailable(f"Redis: {why}{detail}") from error


class _NotSent(errors.ConnectionError):
    """No connection could be made, so that the command has certainly not happened."""


async def _nothing(_: object) -> None:
    return None


# hiredis packs commands as well as it reads answers; redis-py has only its synchronous connections do so.
_SERIALIZER = HiredisRespSerializer()


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
        raise _NotSent(str(error) or "no connection in time") from error


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


class _TcpConnection(_Bounded, Connection):
    pass


class _TlsConnection(_Bounded, SSLConnection):
    pass


class _UnixConnection(_Bounded, UnixDomainSocketConnection):
    pass


class _SentinelConnection(_Bounded, SentinelManagedConnection):
    # Each attempt asks the sentinels again, because they may have named another master meanwhile.
    connect_attempts = 1

    async def connect(self) -> None:
        await _patiently(super().connect, CONNECT_ATTEMPTS, self.socket_connect_timeout)


class _SentinelTlsConnection(_SentinelConnection, SSLConnection):
    pass


_CONNECTIONS: dict[type, type] = {
    Connection: _TcpConnection,
    SSLConnection: _TlsConnection,
    UnixDomainSocketConnection: _UnixConnection,
}


class _PubSub(PubSub):
    async def connect(self) -> None:
        with _translated():
            await super().connect()

    async def _execute(self, *args: Any, **options: Any) -> Any:
        with _translated():
            return await super()._execute(*args, **options)


class _Pipeline(Pipeline):
    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        with _translated():
            return await super().immediate_execute_command(*args, **options)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        with _translated():
            return await super().execute(raise_on_error)

    async def reset(self) -> None:  # type: ignore[override]
        with _translated():
            await super().reset()

    def annotate_exception(self, exception: Exception, number: int, command: Any) -> None:
        """Name the command, but not its arguments: they may hold what people wrote."""
        name = next(iter(command), "")
        exception.args = (f"{exception} (command {number} of the pipeline, {name})", *exception.args[1:])


class _Client(Redis):
    """Redis whose outages are `StoreUnavailable`. Commands that are issued in the same pass of the event loop share a
    round trip, as in a pipeline: each still succeeds or fails by itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._batching = Batching(self._execute_all)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if blocking_seconds(args):  # would hold up the others
            return await self._execute(args, options)
        return await self._batching.call((args, options))

    async def _execute(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        with _translated():
            return await super().execute_command(*args, **options)

    async def _execute_all(self, commands: list[Any]) -> list[Any]:
        if len(commands) == 1:
            return [await self._execute(*commands[0])]
        async with self.pipeline(transaction=False) as pipe:
            for args, options in commands:
                pipe.execute_command(*args, **options)
            return [_told_alone(answer) for answer in await pipe.execute(raise_on_error=False)]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def pubsub(self, **options: Any) -> PubSub:
        return _PubSub(self.connection_pool, event_dispatcher=self._event_dispatcher, **options)


def _told_alone(answer: Any) -> Any:
    """*answer* of a pipeline as it would have been of the command alone."""
    why = why_unavailable(answer) if isinstance(answer, Exception) else None
    return answer if why is None else StoreUnavailable(f"Redis: {why}")


class _ClusterPipeline(ClusterPipeline):
    async def initialize(self) -> ClusterPipeline:
        with _translated():
            return await super().initialize()

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        with _translated():
            return await super().execute(raise_on_error, allow_redirections)

    async def watch(self, *names: Any) -> None:  # type: ignore[override]
        with _translated():
            await super().watch(*names)

    async def reset(self) -> None:  # type: ignore[override]
        with _translated():
            await super().reset()


class _ClusterPubSub(ClusterPubSub):
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        # The node is looked up in what is known of the cluster, which without any command yet is nothing.
        await self.cluster.initialize()
        with _translated():
            return await super().execute_command(*args, **options)

    async def connect(self) -> None:
        with _translated():
            await super().connect()

    async def _execute(self, *args: Any, **options: Any) -> Any:
        with _translated():
            return await super()._execute(*args, **options)


class _ClusterClient(RedisCluster):
    """A cluster whose outages are `StoreUnavailable`; its pipelines are transactions within one hash tag."""

    def __init__(self, *, tls: bool, **options: Any) -> None:
        super().__init__(ssl=tls, retry=Retry(NoBackoff(), 0), **options)
        connection = _TlsConnection if tls else _TcpConnection
        self.nodes_manager.connection_kwargs["connection_class"] = connection
        for node in self.nodes_manager.startup_nodes.values():
            node.connection_class = connection

    async def initialize(self, *args: Any, **options: Any) -> RedisCluster:
        try:
            with _translated():
                return await super().initialize(*args, **options)
        except errors.RedisClusterException as error:
            raise StoreUnavailable(f"Redis: no node of the cluster can be reached ({error})") from error

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with _translated():
            for _ in range(CONNECT_ATTEMPTS - 1):
                try:
                    return await super().execute_command(*args, **options)
                except _NotSent:  # the next call asks the cluster who serves the key now
                    continue
            return await super().execute_command(*args, **options)

    def pipeline(self, transaction: bool | None = True, shard_hint: str | None = None) -> ClusterPipeline:
        return _ClusterPipeline(self, transaction)  # type: ignore[abstract]

    def pubsub(self, **options: Any) -> ClusterPubSub:  # type: ignore[override]
        return _ClusterPubSub(self, **options)


@dataclass(frozen=True)
class RedisStore:
    """An opened store: the client to hand out, and how the store is."""

    client: Redis
    embedded: EmbeddedRedis | None = None

    async def health(self) -> Health:
        """The state now, found by asking the server. Bounded by ``REDIS_TIMEOUT_SECONDS``; never raises."""
        try:
            await self.client.ping()
        except StoreUnavailable as error:
            why = str(error)
            if self.embedded is not None and self.embedded.health.why:
                why = f"{why}; {self.embedded.health.why}"
            return Health(State.DEGRADED, why)
        return Health(State.CONNECTED)


@contextlib.asynccontextmanager
async def open_redis(settings: Settings) -> AsyncIterator[RedisStore]:
    """The store that *settings* name, the embedded one where they name none.

    The embedded server runs as long as the block. A remote server need not be there yet: calls raise
    `StoreUnavailable` until it is. Raises `runtime.embedded.child.ChildFailed` (and its subclasses
    `StoreInUse`, `NoRedisServer`) when the embedded server cannot run.
    """
    async with contextlib.AsyncExitStack() as stack:
        embedded = None
        if settings.redis_url is None:
            embedded = await stack.enter_async_context(embedded_redis(settings.data_dir))
            url = f"unix://{quote(str(embedded.socket))}"
        else:
            url = settings.redis_url.get_secret_value()
        client = connect(url, settings.redis_timeout_seconds)
        stack.push_async_callback(_close, client)
        yield RedisStore(client, embedded)


def connect(url: str, timeout_seconds: float) -> Redis:
    """A client for *url* that connects when it is first used. Raises `ValueError` for a URL it cannot read.

    Beyond redis-py's own forms: ``redis+cluster://[user:password@]host:port[,host:port…]`` and
    ``redis+sentinel://[user:password@]host:port[,…]/service[/db]``, both with ``?tls=true`` for TLS;
    with sentinels ``sentinel_username`` and ``sentinel_password`` may be given as parameters.
    """
    parts = urlsplit(url)
    common: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "health_check_interval": 30,
        "driver_info": None,  # finding out its own version, redis-py reads files in the event loop
    }
    if parts.scheme == "redis+cluster":
        nodes = [ClusterNode(host, port) for host, port in _hosts(parts, 6379)]
        client = _ClusterClient(startup_nodes=nodes, tls=_wants_tls(parts), **_credentials(parts), **common)
        return cast("Redis", client)
    if parts.scheme == "redis+sentinel":
        return _sentinel_client(parts, common)
    options = {**common, **parse_url(url), "retry": Retry(NoBackoff(), 0)}
    options["connection_class"] = _CONNECTIONS[options.get("connection_class", Connection)]
    return _Client.from_pool(
        BlockingConnectionPool(**{"max_connections": MAX_CONNECTIONS, "timeout": timeout_seconds, **options})
    )


def _sentinel_client(parts: SplitResult, common: dict[str, Any]) -> Redis:
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("redis+sentinel:// needs the service's name: redis+sentinel://host:26379/mymaster/0")
    query = dict(parse_qsl(parts.query))
    timeouts = {name: value for name, value in common.items() if name.startswith("socket_")}
    own = {
        name.removeprefix("sentinel_"): query[name]
        for name in ("sentinel_username", "sentinel_password")
        if name in query
    }
    sentinel = Sentinel(
        _hosts(parts, 26379),
        sentinel_kwargs={**timeouts, **own, "decode_responses": True, "retry": Retry(NoBackoff(), 0)},
    )
    tls = _wants_tls(parts)
    client: Redis = sentinel.master_for(
        service,
        redis_class=_Client,
        connection_pool_class=SentinelConnectionPool,
        connection_class=_SentinelTlsConnection if tls else _SentinelConnection,
        db=int(database or 0),
        retry=Retry(NoBackoff(), 0),
        max_connections=MAX_CONNECTIONS,
        **_credentials(parts),
        **common,
    )
    return client


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    places = []
    for place in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{place}")
        if not one.hostname:
            raise ValueError("a Redis URL names at least one host: host:port[,host:port]")
        places.append((one.hostname, one.port or default_port))
    return places


def _credentials(parts: SplitResult) -> dict[str, str]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    found = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _wants_tls(parts: SplitResult) -> bool:
    return dict(parse_qsl(parts.query)).get("tls", "").lower() in ("1", "true", "yes")


async def _close(client: Redis) -> None:
    """Let the connections go, in bounded time."""
    with contextlib.suppress(TimeoutError, StoreUnavailable, errors.RedisError, OSError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.aclose()
