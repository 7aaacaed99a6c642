"""Runs one process that serves platforms, HTTP and turns, from its first event to an orderly end."""

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
from runtime.access import ADMIN_TOKEN_FILE as TOKEN_FILE
from runtime.embedded import socket_path
from runtime.embedded.index_client import IndexProcess
from runtime.http import create_app, create_health_app, listen_tcp, listen_unix, serving, unlink_if_ours
from runtime.ingress import open_platforms
from runtime.observability import Event, EventFormat, EventStream, Metrics, Redaction, configure_events
from runtime.process.bootstrap import ROLES, Role, Runtime, open_runtime
from runtime.process.installed import check_installed
from runtime.stores import SOCKET_NAME, prepare_data_dir

CONNECTING_SECONDS = 10.0
"""How long the text for the person who started the bot waits until the platforms are connected."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = structlog.get_logger()


class RoleUnavailable(AgentRuntimeError):
    """The settings do not allow the role. The exit code is 2, as for any wrong option of the command line."""

    exit_code = 2


async def serve(
    settings: Settings,
    role: Role = "all",
    log_format: EventFormat = "json",
    defaulted_numbers: Sequence[DefaultedNumber] = (),
    engine: IndexProcess | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the process at once.

    *defaulted_numbers* are the settings whose value is no number, so that the default holds: one warning each.
    *engine* is the process of the embedded index if it already runs; the caller ends it.

    Stops in this order: no new messages (platforms and HTTP), then the answers that people wait for, then the turns
    in progress, all within ``SHUTDOWN_GRACE_SECONDS``; the stores last. Before any message is accepted it raises
    `RoleUnavailable`, `runtime.process.installed.NotInstalled`, `runtime.http.server.CannotListen`,
    `runtime.stores.DataDirInUse`, `runtime.embedded.child.ChildFailed` and `OSError`, with a text for the operator.
    """
    check_role(settings, role)
    stream, metrics, redaction = EventStream(), Metrics(), Redaction.of(settings)

    def observe(event: Event, line: str) -> None:
        stream.put(line, event)
        metrics.observe(event)

    configure_events(redaction, log_format=log_format, keep=observe)
    await asyncio.to_thread(check_installed, settings)
    for number in defaulted_numbers:
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
    """Raise `RoleUnavailable` if *role* needs servers that every process can reach and the settings name none."""
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
    grace_seconds = runtime.settings.shutdown_grace_seconds
    async with serving(app, sockets, grace_seconds) as stop_serving, asyncio.TaskGroup() as tasks:
        supervisor = tasks.create_task(runtime.supervisor.run(runtime.accept), name="connectors")
        _log.info("http.listening", **addresses(sockets))
        if runtime.settings.listens_beyond_loopback:
            _log.warning("http.exposed", why="other machines can reach it without TLS: put a TLS proxy in front")
        ready = tasks.create_task(_print_ready(runtime, sockets), name="ready") if says_ready else None
        await stop.wait()
        _log.info("serve.stopping")
        if ready is not None:
            ready.cancel()
        runtime.worker.begin_grace_period()
        # From here on nothing new comes in; requests that wait for an answer keep their connection.
        stop_serving()
        supervisor.cancel()
        # Those who still wait at the end get an answer that says to ask again, not a cut connection.
        asyncio.get_running_loop().call_later(grace_seconds, runtime.http.release)


async def _print_ready(runtime: Runtime, sockets: list[socket.socket]) -> None:
    """Print where to chat once the connectors have connected, or after `CONNECTING_SECONDS`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECTING_SECONDS):
            await runtime.supervisor.settled.wait()
    print(ready_text(runtime.settings, str(addresses(sockets)["chat"])), flush=True)  # noqa: T201 - no event


def ready_text(settings: Settings, chat: str) -> str:
    """Return the text for the person who started the bot: where to chat, and how to sign in."""
    token = settings.data_dir / TOKEN_FILE
    how = f"the token in the file {token}" if settings.admin_token is None else "the token in AGENT_RUNTIME_ADMIN_TOKEN"
    command = os.environ.get(COMMAND_VARIABLE, "agent-runtime")
    invite = f"`{command} access invite NAME` creates a link with which another person signs in."
    return f"\nChat: {chat}, sign in with {how}.\n{invite} Ctrl-C stops the bot.\n"


def addresses(sockets: Sequence[socket.socket]) -> dict[str, str | int]:
    """Return the addresses of a process that listens on *sockets*.

    A process without the unix socket for commands is a worker, which has no chat page either.
    """
    tcp = next(listener for listener in sockets if listener.family != socket.AF_UNIX)
    host, port = tcp.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    tcp_addresses: dict[str, str | int] = {"host": host, "port": port, "url": url}
    return tcp_addresses if len(sockets) == 1 else {**tcp_addresses, "socket": SOCKET_NAME, "chat": f"{url}/chat"}


@asynccontextmanager
async def _listening(settings: Settings, *, has_commands: bool) -> AsyncIterator[list[socket.socket]]:
    """Listen on the TCP socket and, if *has_commands*, on the unix socket of the data folder, as long as the block
    lasts."""
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
    """Yield an event that the first SIGTERM or SIGINT sets; the second ends the process at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            # All acknowledged messages are on disk, and the embedded servers end with this process.
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
