"""One process that serves: platforms, HTTP and the worker, from the first event to an orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog
from starlette.applications import Starlette

from config.load import COMMAND_VARIABLE, DefaultedNumber
from config.settings import Settings
from connectors.message import AgentRuntimeError
from runtime.access import FILE_NAME as TOKEN_FILE
from runtime.embedded import check_installed, socket_path
from runtime.embedded.index_client import IndexProcess
from runtime.http import HttpServer, create_app, create_health_app, listen_tcp, listen_unix, serving, unlink_if_ours
from runtime.ingress import open_platforms
from runtime.observability import EventStream, Metrics, Redaction, events
from runtime.process.bootstrap import ROLES, Role, Runtime, open_runtime
from runtime.stores import SOCKET_NAME, prepare_data_dir

CONNECTING_SECONDS = 10.0
"""How long platforms may take to connect until it is said that the bot is ready."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = structlog.get_logger()


class RoleUnavailable(AgentRuntimeError):
    """The role cannot be had: ``exit_code`` 2, because the command line asks for it."""

    exit_code = 2


async def serve(
    settings: Settings,
    role: Role = "all",
    log_format: events.Format = "json",
    fallen_back: Sequence[DefaultedNumber] = (),
    engine: IndexProcess | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the process at once.

    *fallen_back* are the numbers that stand at their default because what was set is none: one warning each. *engine*
    is the process of the embedded index where it runs already; the caller ends it.

    The order of stopping: no new messages (platforms and HTTP), then the answers that people wait for,
    then the turns still in hand, all within ``SHUTDOWN_GRACE_SECONDS``; the stores last. Raises
    `RoleUnavailable`, `runtime.embedded.installed.NotInstalled`, `runtime.http.server.CannotListen`,
    `runtime.stores.DataDirInUse`, `runtime.embedded.child.ChildFailed` and `OSError` with a text for the operator,
    before anything was accepted.
    """
    check_role(settings, role)
    stream, metrics, redaction = EventStream(), Metrics(), Redaction.of(settings)

    def keep(event: events.Event, line: str) -> None:
        stream.put(line)
        metrics.observe(event)

    # Before anything is awaited: what runs already says by it that it does.
    events.configure(redaction, log_format=log_format, keep=keep)
    await asyncio.to_thread(check_installed, settings)
    for number in fallen_back:
        _log.warning("setting.fallen_back", variable=number.variable, value=number.value, default=number.default)
    await prepare_data_dir(settings.data_dir)
    with _stop_signals() as stop:
        async with _listening(settings, has_commands=role != "worker") as sockets:
            platforms = await open_platforms(settings) if role != "worker" else []
            async with open_runtime(settings, stream, platforms=platforms, parts=ROLES[role], engine=engine) as runtime:
                redaction.add(runtime.admin_token)
                app = create_health_app(runtime, metrics) if role == "worker" else create_app(runtime, metrics)
                await _run(runtime, app, sockets, stop, says_ready=log_format == "console" and role != "worker")
            _log.info("serve.stopped")


def check_role(settings: Settings, role: Role) -> None:
    """Raises `RoleUnavailable` where *role* needs servers that every process can reach, and none are set."""
    unset = [
        f"AGENT_RUNTIME_{name}"
        for name, url in (("REDIS_URL", settings.redis_url), ("QDRANT_URL", settings.qdrant_url))
        if url is None
    ]
    if role != "all" and unset:
        raise RoleUnavailable(
            f"--role {role}: separate gateways and workers share a Redis and a Qdrant server; "
            f"set {' and '.join(unset)}, or use --role all, which runs both in one process"
        )


async def _run(
    runtime: Runtime, app: Starlette, sockets: list[socket.socket], stop: asyncio.Event, *, says_ready: bool
) -> None:
    async with serving(app, sockets, runtime.settings.shutdown_grace_seconds) as server, asyncio.TaskGroup() as tasks:
        supervisor = tasks.create_task(runtime.supervisor.run(runtime.accept), name="connectors")
        _tell_where(runtime.settings, sockets)
        ready = tasks.create_task(_say_ready(runtime, sockets), name="ready") if says_ready else None
        await stop.wait()
        _log.info("serve.stopping")
        if ready is not None:
            ready.cancel()
        runtime.worker.stops_soon()
        _close_intake(server, supervisor)
        # Whoever still waits then is told to ask again; cut connections would tell them nothing.
        asyncio.get_running_loop().call_later(runtime.settings.shutdown_grace_seconds, runtime.http.release)


async def _say_ready(runtime: Runtime, sockets: list[socket.socket]) -> None:
    """Tell whoever started it where to chat, once the connectors have connected or that takes long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECTING_SECONDS):
            await runtime.supervisor.settled.wait()
    print(ready_text(runtime.settings, str(addresses(sockets)["chat"])), flush=True)  # noqa: T201 - no event


def ready_text(settings: Settings, chat: str) -> str:
    """What a person who started it reads in the end: where to chat, and how to sign in."""
    token = settings.data_dir / TOKEN_FILE
    how = f"the token in the file {token}" if settings.admin_token is None else "the token in AGENT_RUNTIME_ADMIN_TOKEN"
    command = os.environ.get(COMMAND_VARIABLE, "agent-runtime")
    invite = f"`{command} access invite NAME` creates a link with which another person signs in."
    return f"\nChat: {chat}, sign in with {how}.\n{invite} Ctrl-C stops the bot.\n"


def _close_intake(server: HttpServer, supervisor: asyncio.Task[None]) -> None:
    """Nothing new comes in from here on; requests that wait for an answer keep their connection."""
    server.stop()
    supervisor.cancel()


def _tell_where(settings: Settings, sockets: list[socket.socket]) -> None:
    _log.info("http.listening", **addresses(sockets))
    if settings.listens_beyond_loopback:
        _log.warning("http.exposed", why="other machines can reach it without TLS: put a TLS proxy in front")


def addresses(sockets: Sequence[socket.socket]) -> dict[str, str | int]:
    """Where a process that listens at *sockets* is found. One without the commands' socket is a worker, which has no
    chat page either."""
    tcp = next(one for one in sockets if one.family != socket.AF_UNIX)
    host, port = tcp.getsockname()[:2]
    url = f"http://{_in_url(host)}:{port}"
    found: dict[str, str | int] = {"host": host, "port": port, "url": url}
    return found if len(sockets) == 1 else {**found, "socket": SOCKET_NAME, "chat": f"{url}/chat"}


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def _listening(settings: Settings, *, has_commands: bool) -> AsyncIterator[list[socket.socket]]:
    """The TCP socket and, for a process that *has_commands*, the unix socket of the data folder; taken before
    anything is opened."""
    path = await asyncio.to_thread(socket_path, settings.data_dir, SOCKET_NAME)
    tcp = await asyncio.to_thread(listen_tcp, settings.http_host, settings.http_port)
    if not has_commands:
        try:
            yield [tcp]
        finally:
            tcp.close()
        return
    try:
        unix = await asyncio.to_thread(listen_unix, path)
    except BaseException:
        tcp.close()
        raise
    inode = (await asyncio.to_thread(path.lstat)).st_ino
    try:
        yield [tcp, unix]
    finally:
        tcp.close()
        unix.close()
        await asyncio.to_thread(unlink_if_ours, path, inode)


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """Set by the first SIGTERM or SIGINT; the second ends the process at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            # Everything that was acknowledged is on disk, and the embedded servers end with this process.
            sys.stdout.flush()
            os._exit(128 + number)
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
