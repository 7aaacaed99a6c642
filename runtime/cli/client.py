"""How commands reach the runtime: through the unix socket of a running process, or of one that they open.

Above the transport both are the same: HTTP to the same application, with the admin's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from config.settings import Settings
from connectors.connector import Connector
from connectors.message import AgentRuntimeError
from runtime.access import admin_token
from runtime.embedded import UnsafeSocketFolder, socket_path
from runtime.http import USER_HEADER, create_app, listen_unix, serving, unlink_if_ours
from runtime.observability import EventStream, Redaction, events
from runtime.process import Part, Runtime, open_runtime
from runtime.stores import SOCKET_NAME, prepare_data_dir

if TYPE_CHECKING:
    from runtime.process import Part, Runtime


# ---- sse ----
#
# Server-sent events, read as they come. Pure.


@dataclass
class EventParser:
    """Turns pieces of a stream (WHATWG HTML, 9.2.6) into pairs of event name and JSON data.

    Only line feeds and carriage returns end a line: other line separators of Unicode may stand in the data.
    """

    _rest: bytes = b""
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> Iterator[tuple[str, Any]]:
        """The events that *piece* completes. Raises `ValueError` for data that is no JSON."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            event = self._line(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _line(self, line: str) -> tuple[str, Any] | None:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            return None
        name, data = self._name or "message", "\n".join(self._data)
        self._name, self._data = "", []
        return (name, json.loads(data)) if data else None


# ---- client ----


PROBE_SECONDS = 2.0
IN_USE_SECONDS = 10.0
"""How long a data folder that another process holds, but does not answer for, is waited for."""
MARGIN_SECONDS = 30.0


class ApiError(AgentRuntimeError):
    """The runtime answered with an error; ``status`` is HTTP's, ``code`` the word for programs."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = status in (429, 503)


class Unreachable(AgentRuntimeError):
    """The process that was talked to does not answer any more."""

    retryable = True


def segment(text: str) -> str:
    """*text* as one segment of a path."""
    return quote(text, safe="")


class Client:
    """Calls to the runtime. Every method raises `ApiError` and `Unreachable`.

    ``runtime`` is set where the runtime runs in this process.
    """

    def __init__(self, http: httpx.AsyncClient, runtime: Runtime | None = None) -> None:
        self._http = http
        self.runtime = runtime

    async def get(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> dict[str, Any]:
        """The JSON object at *path*; parameters that are None are left out."""
        return await self._call("GET", path, params=_given(parameters), headers=headers)

    async def post(self, path: str, body: dict[str, Any], **parameters: Any) -> dict[str, Any]:
        return await self._call("POST", path, json=body, params=_given(parameters))

    async def put(self, path: str, body: dict[str, Any], **parameters: Any) -> dict[str, Any]:
        return await self._call("PUT", path, json=body, params=_given(parameters))

    async def patch(self, path: str, body: dict[str, Any], **parameters: Any) -> dict[str, Any]:
        return await self._call("PATCH", path, json=body, params=_given(parameters))

    async def put_text(
        self, path: str, text: bytes, *, media_type: str = "text/markdown", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a document's bytes."""
        return await self._call("PUT", path, content=text, headers={"Content-Type": media_type, **(headers or {})})

    async def delete(self, path: str, **parameters: Any) -> dict[str, Any]:
        return await self._call("DELETE", path, params=_given(parameters))

    async def get_text(self, path: str) -> str:
        """The text at *path*."""
        return (await self._answered("GET", path)).text

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = await self._answered(method, path, **options)
        found: dict[str, Any] = response.json() if response.content else {}
        return found

    async def _answered(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise _unreachable(error) from error
        if response.is_error:
            raise _api_error(response)
        return response

    async def events(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        begun: Callable[[], None] = lambda: None,
        **parameters: Any,
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The server-sent events of a call as pairs of name and data, for as long as they come.

        *begun* is called when the call was accepted. The event ``error`` is raised as `ApiError`.
        """
        request = self._http.build_request(
            method,
            path,
            json=body,
            params=_given(parameters),
            headers={"Accept": "text/event-stream", **(headers or {})},
            # What is followed may be quiet for as long as it likes; the other end is on this machine.
            timeout=httpx.Timeout(None, connect=PROBE_SECONDS),
        )
        try:
            response = await self._http.send(request, stream=True)
            async with contextlib.aclosing(response):
                if response.is_error:
                    await response.aread()
                    raise _api_error(response)
                begun()
                parser = EventParser()
                async for piece in response.aiter_bytes():
                    for name, data in parser.feed(piece):
                        if name == "error":
                            error = data.get("error", data)
                            raise ApiError(500, str(error.get("code", "")), str(error.get("message", "")))
                        yield name, data
        except httpx.TransportError as error:
            raise _unreachable(error) from error


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(int(value)) if isinstance(value, bool) else value
        for name, value in parameters.items()
        if value is not None
    }


def _unreachable(error: httpx.TransportError) -> Unreachable:
    detail = str(error) or type(error).__name__
    return Unreachable(f"the runtime stopped answering ({detail}); run `agent-runtime doctor` to see why")


def _api_error(response: httpx.Response) -> ApiError:
    try:
        error = response.json()["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "unexpected", f"the runtime answered {response.status_code} without saying why"
    if code == "store_unavailable":
        message = f"{message}; `agent-runtime doctor` says why it cannot"
    if response.status_code == 401:
        message = (
            "the running process has another admin token than this command: give both the same "
            "AGENT_RUNTIME_ADMIN_TOKEN, or neither"
        )
    return ApiError(response.status_code, code, message)


@asynccontextmanager
async def connect(settings: Settings, parts: frozenset[Part] = frozenset()) -> AsyncIterator[Client]:
    """A client of the process that runs on DATA_DIR, else of the runtime opened here with *parts*.

    Raises `runtime.embedded.redis.StoreInUse` when another process holds the stores and does not
    answer, and what `runtime.process.bootstrap.open_runtime` raises.
    """
    await prepare_data_dir(settings.data_dir)
    async with contextlib.AsyncExitStack() as stack:
        yield await _running(settings, stack) or await _open(settings, parts, stack)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Client | None]:
    """A client of the process that runs on DATA_DIR; None where none answers."""
    async with contextlib.AsyncExitStack() as stack:
        yield await _running(settings, stack)


async def _running(settings: Settings, stack: contextlib.AsyncExitStack) -> Client | None:
    try:
        path = await asyncio.to_thread(socket_path, settings.data_dir, SOCKET_NAME)
        if not await answers(path):
            return None
        token = await admin_token(settings)
    except UnsafeSocketFolder as error:
        raise Unreachable(str(error)) from error
    return Client(await stack.enter_async_context(_http(settings, path, token)))


async def _open(settings: Settings, parts: frozenset[Part], stack: contextlib.AsyncExitStack) -> Client:
    from runtime.embedded.redis import StoreInUse

    deadline = asyncio.get_running_loop().time() + IN_USE_SECONDS
    while True:
        try:
            runtime, path = await stack.enter_async_context(open_local(settings, parts))
        except StoreInUse:
            # Another command is at work, or a process that is just starting will answer soon.
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.5)
            if client := await _running(settings, stack):
                return client
        else:
            http = await stack.enter_async_context(_http(settings, path, runtime.admin_token))
            return Client(http, runtime)


async def answers(path: Path) -> bool:
    """Whether a runtime answers on the socket at *path*; a file that a dead process left behind does not."""
    try:
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://localhost", timeout=PROBE_SECONDS
        ) as http:
            return (await http.get("/healthz")).is_success
    except httpx.TransportError:
        return False


def login_name() -> str:
    """Who sits at this terminal; empty where the system has no name for them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _http(settings: Settings, path: Path, token: str) -> httpx.AsyncClient:
    seconds = settings.llm_timeout_seconds + MARGIN_SECONDS
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(path)),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {token}", USER_HEADER: quote(login_name())},
        timeout=httpx.Timeout(seconds, connect=PROBE_SECONDS),
    )


# ---- local ----
#
# The runtime opened in a command's own process, with its HTTP face on a unix socket.
#
# A socket of its own, not an in-memory transport: httpx's buffers whole responses, and so would hold back streams.


STOP_SECONDS = 3.0
"""What requests that are still open have to end when the command does."""


@asynccontextmanager
async def open_local(
    settings: Settings,
    parts: frozenset[Part],
    *,
    platforms: Sequence[Connector] = (),
    socket_name: str = "",
) -> AsyncIterator[tuple[Runtime, Path]]:
    """The runtime and the path of the socket on which it answers, as long as the block lasts.

    Events go to the event stream, not to the screen. The socket is private to this process unless it is
    named. Raises what `runtime.process.bootstrap.open_runtime` raises.
    """
    stream, redaction = EventStream(), Redaction.of(settings)
    events.configure(redaction, keep=lambda _, line: stream.put(line), silent=True)
    name = socket_name or f"command-{os.getpid()}.sock"
    async with open_runtime(settings, stream, platforms=platforms, parts=parts) as runtime:
        redaction.add(runtime.admin_token)
        path = await asyncio.to_thread(socket_path, settings.data_dir, name)
        app = await asyncio.to_thread(create_app, runtime)
        async with _listening(path) as listener, serving(app, [listener], STOP_SECONDS):
            yield runtime, path


@asynccontextmanager
async def _listening(path: Path) -> AsyncIterator[socket.socket]:
    listener = await asyncio.to_thread(listen_unix, path)
    inode = (await asyncio.to_thread(path.lstat)).st_ino
    try:
        yield listener
    finally:
        listener.close()
        await asyncio.to_thread(unlink_if_ours, path, inode)
