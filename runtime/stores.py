"""Opens Redis: the embedded server, a server, a cluster, or the master that sentinels name. Prepares DATA_DIR.

With `runtime.redis_errors` the only importer of redis at run time. The clients are redis-py's own. They raise
`connectors.message.StoreUnavailable` if the store cannot be reached, cannot store data, or does not answer within
``REDIS_TIMEOUT_SECONDS``. Errors of the caller pass unchanged.

No command is repeated: if its answer is lost, nobody knows whether it took effect, and only the caller knows whether a
repetition is harmless (`retry_until_stored`). No command waits on the server (``BLOCK``), and nothing is watched
(``WATCH``): atomic steps are scripts or transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import structlog
from redis import exceptions as errors
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.cluster import ClusterNode, ClusterPipeline, ClusterPubSub
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from config.load import MASK, ConfigurationError
from config.settings import Settings
from connectors.connector import ConnectionState, Health
from connectors.message import AgentRuntimeError, StoreUnavailable
from runtime.embedded import EmbeddedRedis, embedded_redis, socket_path
from runtime.redis_errors import answer_within, translate_errors

# redis-py is partly untyped.
# mypy: disable-error-code="no-untyped-call"


__all__ = ["Client", "RedisStore", "connect", "open_redis"]

MAX_CONNECTIONS = 64
"""Connections to one server, or commands and pipelines, each, at a time to a cluster. If none is free, a call waits."""
CLOSE_SECONDS = 2.0


class _Pipeline(Pipeline):
    timeout_seconds: float

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        async with answer_within(self.timeout_seconds):
            return translate_errors(await super().execute(raise_on_error))

    def annotate_exception(self, exception: Exception, number: int, command: Any) -> None:
        """Name the command, but not its arguments, which may contain what people wrote."""
        name = next(iter(command), "")
        exception.args = (f"{exception} (command {number} of the pipeline, {name})", *exception.args[1:])


class _Subscription(PubSub):
    timeout_seconds: float

    async def execute_command(self, *args: Any) -> Any:
        async with answer_within(self.timeout_seconds):
            return await super().execute_command(*args)

    async def get_message(self, ignore_subscribe_messages: bool = False, timeout: float | None = 0.0) -> Any:
        async with answer_within(self.timeout_seconds + (timeout or 0.0)):
            return await super().get_message(ignore_subscribe_messages, timeout)


class Client(Redis):
    """A client of one server, or of the master that sentinels name. Each call has ``timeout_seconds``."""

    timeout_seconds: float

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with answer_within(self.timeout_seconds):
            return await super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        pipeline = _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.timeout_seconds = self.timeout_seconds
        return pipeline

    def pubsub(self, **options: Any) -> PubSub:
        subscription = _Subscription(self.connection_pool, **options)
        subscription.timeout_seconds = self.timeout_seconds
        return subscription


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the master that sentinels name. If none is free, a call waits for one."""


class _ClusterPipeline(ClusterPipeline):
    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        client = cast("_ClusterClient", self.cluster_client)
        async with answer_within(client.timeout_seconds), client.free_for_pipelines:
            return translate_errors(await super().execute(raise_on_error, allow_redirections))


class _ClusterSubscription(_Subscription, ClusterPubSub):
    async def execute_command(self, *args: Any) -> Any:
        # redis-py looks the node up in its map of the cluster, which is empty before the first command.
        await self.cluster.initialize()
        return await super().execute_command(*args)


class _ClusterClient(RedisCluster):
    """A client of a cluster, whose transactions stay within one hash tag. Each call has ``timeout_seconds``."""

    def __init__(self, timeout_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.timeout_seconds = timeout_seconds
        self.free = asyncio.Semaphore(MAX_CONNECTIONS)
        self.free_for_pipelines = asyncio.Semaphore(MAX_CONNECTIONS)
        """Their own, because a pipeline repeats redirected commands one by one, each of which waits for `free`."""

    async def initialize(self, *args: Any, **options: Any) -> RedisCluster:
        try:
            async with answer_within(self.timeout_seconds):
                return await super().initialize(*args, **options)
        except errors.RedisClusterException as error:
            raise StoreUnavailable(f"Redis: no node of the cluster can be reached ({error})") from error

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with answer_within(self.timeout_seconds), self.free:
            return await super().execute_command(*args, **options)

    def pipeline(self, transaction: bool | None = True, shard_hint: str | None = None) -> ClusterPipeline:
        return _ClusterPipeline(self, transaction)  # type: ignore[abstract]

    def pubsub(self, **options: Any) -> ClusterPubSub:  # type: ignore[override]
        subscription = _ClusterSubscription(self, **options)
        subscription.timeout_seconds = self.timeout_seconds
        return subscription


@dataclass(frozen=True)
class RedisStore:
    """An opened store: its client and its health."""

    client: Redis
    embedded: EmbeddedRedis | None = None

    async def health(self) -> Health:
        """Ask the server for its state. Takes at most ``REDIS_TIMEOUT_SECONDS``; raises nothing."""
        try:
            await self.client.ping()
        except StoreUnavailable as error:
            why = str(error)
            if self.embedded is not None and self.embedded.health.why:
                why = f"{why}; {self.embedded.health.why}"
            return Health(ConnectionState.DEGRADED, why)
        return Health(ConnectionState.CONNECTED)


@contextlib.asynccontextmanager
async def open_redis(settings: Settings) -> AsyncIterator[RedisStore]:
    """Open the store that *settings* name, or the embedded one if they name none.

    The embedded server runs as long as the block. A remote server need not be reachable yet: calls raise
    `StoreUnavailable` until it is. Raises `runtime.embedded.child.ChildFailed` (and its subclasses
    `StoreInUse`, `NoRedisServer`) if the embedded server cannot run, and `config.load.ConfigurationError`.
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
        except ValueError as error:  # redis-py checks the URL's parameters
            raise ConfigurationError([f"AGENT_RUNTIME_REDIS_URL={MASK}: {error}"]) from None
        stack.push_async_callback(_close, client)
        yield RedisStore(client, embedded)


def connect(url: str, timeout_seconds: float) -> Redis:
    """Return a client for *url* that connects when it is first used. Raises `ValueError` for an invalid URL.

    Beyond redis-py's own forms: ``redis+cluster://[user:password@]host:port[,host:port…]`` and
    ``redis+sentinel://[user:password@]host:port[,…]/service[/db]``, both with ``?tls=true`` for TLS;
    with sentinels ``sentinel_username`` and ``sentinel_password`` may be given as parameters.
    """
    parts = urlsplit(url)
    common: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": None,  # the whole call is limited: see `answer_within`
        "socket_connect_timeout": timeout_seconds,
        "health_check_interval": 30,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,  # to find its own version, redis-py would read files in the event loop
    }
    if parts.scheme == "redis+cluster":
        cluster = _ClusterClient(
            timeout_seconds,
            startup_nodes=[ClusterNode(host, port) for host, port in _hosts(parts, 6379)],
            ssl=_wants_tls(parts),
            max_connections=2 * MAX_CONNECTIONS,  # of commands and of pipelines; without a free one redis-py would fail
            # By default redis-py closes all connections at every fifth slot that moved, and breaks the calls on them.
            # Without that, a slot that moved is looked up by itself.
            reinitialize_steps=0,
            **_credentials(parts),
            **common,
        )
        return cast("Redis", cluster)
    if parts.scheme == "redis+sentinel":
        client = _sentinel_client(parts, timeout_seconds, common)
    else:
        pool = BlockingConnectionPool.from_url(url, max_connections=MAX_CONNECTIONS, timeout=timeout_seconds, **common)
        try:
            pool.make_connection()
        except TypeError:
            raise ValueError("expected only parameters after the ? that redis-py knows") from None
        client = cast("Client", Client.from_pool(pool))
    client.timeout_seconds = timeout_seconds
    return client


def _sentinel_client(parts: SplitResult, timeout_seconds: float, common: dict[str, Any]) -> Client:
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("redis+sentinel:// needs the service's name: redis+sentinel://host:26379/mymaster/0")
    query = dict(parse_qsl(parts.query))
    own = {
        name.removeprefix("sentinel_"): query[name]
        for name in ("sentinel_username", "sentinel_password")
        if name in query
    }
    hosts = _hosts(parts, 26379)
    # The sentinels are asked one after the other, all within the time of one call.
    share = timeout_seconds / (len(hosts) + 1)
    sentinel = Sentinel(
        hosts, sentinel_kwargs={**common, "socket_timeout": share, "socket_connect_timeout": share, **own}
    )
    client: Client = sentinel.master_for(
        service,
        redis_class=Client,
        connection_pool_class=_SentinelPool,
        ssl=_wants_tls(parts),
        db=int(database or 0),
        max_connections=MAX_CONNECTIONS,
        timeout=timeout_seconds,
        **_credentials(parts),
        **common,
    )
    return client


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    hosts = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        address = urlsplit(f"//{text}")
        if not address.hostname:
            raise ValueError("a Redis URL names at least one host: host:port[,host:port]")
        hosts.append((address.hostname, address.port or default_port))
    return hosts


def _credentials(parts: SplitResult) -> dict[str, str]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    found = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _wants_tls(parts: SplitResult) -> bool:
    return dict(parse_qsl(parts.query)).get("tls", "").lower() in ("1", "true", "yes")


async def _close(client: Redis) -> None:
    """Close the connections, in bounded time."""
    with contextlib.suppress(TimeoutError, StoreUnavailable, errors.RedisError, OSError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.aclose()


class NewerFormat(AgentRuntimeError):
    """A stored value was written by a newer version of this program than the one that reads it."""


def pack(version: int, **fields: Any) -> str:
    """Return *fields* as compact JSON with ``"v": version``. It is plain ASCII, so that every store accepts it."""
    return json.dumps({"v": version, **fields}, separators=(",", ":"), sort_keys=True)


def unpack(text: str | bytes, newest: int, what: str) -> dict[str, Any]:
    """Return the fields of a value made by `pack`. Raises `NewerFormat` if its version is above *newest*."""
    fields: dict[str, Any] = json.loads(text)
    version = fields.pop("v")
    if version > newest:
        raise NewerFormat(
            f"{what} is stored in format {version}, and this version of Agent Runtime reads up to {newest}: "
            "run the newer version that wrote it"
        )
    return fields


RETRY_SECONDS = (0.1, 2.0)
"""The first and the longest pause between two attempts."""
T = TypeVar("T")
_log = structlog.get_logger()


async def retry_until_stored(step: Callable[[], Awaitable[T]]) -> T:
    """Repeat *step* until the store is back. For results that cost money: if they are lost, they are paid for again.

    *step* must be harmless if it is repeated after only its answer was lost. Raises what *step* raises,
    except `connectors.message.StoreUnavailable`.
    """
    wait, longest = RETRY_SECONDS
    while True:
        try:
            return await step()
        except StoreUnavailable as error:
            _log.warning("store.degraded", store="redis", why=str(error))
        await asyncio.sleep(wait)
        wait = min(wait * 2, longest)


# DATA_DIR, the folder of all files, which one process at a time may use.

SOCKET_NAME = "runtime.sock"
"""The unix socket in DATA_DIR on which a running process answers commands."""
_PROBE_SECONDS = 1.0


class DataDirUnusable(AgentRuntimeError):
    """DATA_DIR cannot be created, or this user may not write there; the text says what to do."""


class DataDirInUse(AgentRuntimeError):
    """Another process uses DATA_DIR; the text says which, and what to do."""


async def prepare_data_dir(path: Path) -> None:
    """Create the folder *path* for this user alone, if it is missing. Raises `DataDirUnusable`."""
    await asyncio.to_thread(_prepare, path)


def _prepare(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, f"cannot be made a folder ({error.strerror})") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unusable(path, "this user may not write there")
    shutil.rmtree(path / "gone", ignore_errors=True)  # earlier versions stored vectors of deleted documents there


def _unusable(path: Path, why: str) -> DataDirUnusable:
    return DataDirUnusable(
        f"AGENT_RUNTIME_DATA_DIR={path}: {why}; let this user write there, or set it to another folder"
    )


async def check_unused(path: Path) -> None:
    """Raise `DataDirInUse` if a process uses the existing folder *path*."""
    await asyncio.to_thread(lambda: check_unanswered(socket_path(path, SOCKET_NAME)))


def check_unanswered(path: Path) -> None:
    """Raise `DataDirInUse` if a process answers on the socket at *path*. Blocks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PROBE_SECONDS)
        try:
            client.connect(str(path))
        except OSError:
            return
        pid = _peer(client)
    process, stop = (f"process {pid}", f"stop it (`kill {pid}`)") if pid else ("a process", "stop it")
    raise DataDirInUse(
        f"{process} serves this data folder already (it answers on {path}): {stop}, or set AGENT_RUNTIME_DATA_DIR to "
        "another folder and AGENT_RUNTIME_HTTP_PORT to another port"
    )


def _peer(client: socket.socket) -> int | None:
    """Return the id of the process that *client* is connected to; None if the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid) or None
