"""Opens Redis: the embedded server, a server, a cluster, or the master that sentinels name.

With the modules `runtime.redis_…` all that imports redis at run time. The clients that it makes raise
`connectors.message.StoreUnavailable` wherever the store cannot be reached or cannot keep what it is given
(`why_unavailable` is the one table), on every path: commands, pipelines, transactions, scripts, locks, subscriptions,
one server or a cluster. What the caller did wrong, and `WatchError`, pass unchanged.

A command that may have reached the server is never sent again: its outcome is unknown, and only the
caller knows whether a repetition is harmless. What is tried again, with backoff, is connecting.
"""

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from redis import exceptions as errors
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode, ClusterPipeline, ClusterPubSub
from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError, WatchError

from config.load import MASK, ConfigurationError
from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import StoreUnavailable
from runtime.embedded.redis_server import EmbeddedRedis, embedded_redis
from runtime.redis_client import Client
from runtime.redis_connections import (
    CONNECT_ATTEMPTS,
    CONNECTIONS,
    NotSent,
    OneMaster,
    OneMasterTls,
    Pool,
    Room,
    SentinelPool,
    TcpConnection,
    TlsConnection,
    blocking_seconds,
    translated,
    why_unavailable,
)

__all__ = ["NoScriptError", "RedisStore", "ResponseError", "WatchError", "connect", "open_redis", "why_unavailable"]

MAX_CONNECTIONS = 64
MAX_NODE_CONNECTIONS = 128
"""Of a cluster's node: room for `MAX_CONNECTIONS` commands and pipelines, for subscriptions and for what waits."""
CLOSE_SECONDS = 2.0


class _ClusterPipeline(ClusterPipeline):
    def __init__(self, client: _ClusterClient, transaction: bool | None) -> None:
        super().__init__(client, transaction)
        self._room = client.room

    async def initialize(self) -> ClusterPipeline:
        with translated():
            return await super().initialize()

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        with translated():
            async with self._room:
                return await super().execute(raise_on_error, allow_redirections)

    async def watch(self, *names: Any) -> None:  # type: ignore[override]
        with translated():
            await super().watch(*names)

    async def reset(self) -> None:  # type: ignore[override]
        with translated():
            await super().reset()


class _ClusterPubSub(ClusterPubSub):
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        # The node is looked up in what is known of the cluster, which without any command yet is nothing.
        await self.cluster.initialize()
        with translated():
            return await super().execute_command(*args, **options)

    async def connect(self) -> None:
        with translated():
            await super().connect()

    async def _execute(self, *args: Any, **options: Any) -> Any:
        with translated():
            return await super()._execute(*args, **options)


class _ClusterClient(RedisCluster):
    """A cluster whose outages are `StoreUnavailable`; its pipelines are transactions within one hash tag."""

    def __init__(self, *, tls: bool, **options: Any) -> None:
        # A slot that has moved is looked up by itself. By default every fifth one closes all connections, and with them
        # what others have under way, of which then nobody knows whether it happened.
        options |= {"reinitialize_steps": 0, "max_connections": MAX_NODE_CONNECTIONS}
        super().__init__(ssl=tls, retry=Retry(NoBackoff(), 0), **options)
        self.room = Room(MAX_CONNECTIONS, options["socket_timeout"])
        connection = TlsConnection if tls else TcpConnection
        self.nodes_manager.connection_kwargs["connection_class"] = connection
        for node in self.nodes_manager.startup_nodes.values():
            node.connection_class = connection

    async def initialize(self, *args: Any, **options: Any) -> RedisCluster:
        try:
            with translated():
                return await super().initialize(*args, **options)
        except errors.RedisClusterException as error:
            raise StoreUnavailable(f"Redis: no node of the cluster can be reached ({error})") from error

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        with translated():
            if blocking_seconds(args):  # would take the room of the others
                return await self._execute(args, options)
            async with self.room:
                return await self._execute(args, options)

    async def _execute(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        for _ in range(CONNECT_ATTEMPTS - 1):
            try:
                return await super().execute_command(*args, **options)
            except NotSent:  # the next call asks the cluster who serves the key now
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
    `StoreInUse`, `NoRedisServer`) when the embedded server cannot run, and `config.load.ConfigurationError`.
    """
    async with contextlib.AsyncExitStack() as stack:
        embedded = None
        if settings.redis_url is None:
            embedded = await stack.enter_async_context(embedded_redis(settings.data_dir))
            url = f"unix://{quote(str(embedded.socket))}"
        else:
            url = settings.redis_url.get_secret_value()
        try:
            client = connect(url, settings.redis_timeout_seconds)
        except ValueError as error:  # what its parameters say is for redis-py to judge
            raise ConfigurationError([f"AGENT_RUNTIME_REDIS_URL={MASK}: {error}"]) from None
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
    options["connection_class"] = CONNECTIONS[options.get("connection_class", Connection)]
    pool = Pool(**{"max_connections": MAX_CONNECTIONS, "timeout": timeout_seconds, **options})
    try:
        pool.make_connection()
    except TypeError:
        raise ValueError("expected only parameters after the ? that redis-py knows") from None
    return Client.from_pool(pool)


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
        redis_class=Client,
        connection_pool_class=SentinelPool,
        connection_class=OneMasterTls if tls else OneMaster,
        db=int(database or 0),
        retry=Retry(NoBackoff(), 0),
        max_connections=MAX_CONNECTIONS,
        timeout=common["socket_timeout"],
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
