"""How commands reach the runtime: HTTP on the unix socket of the running process, or of a runtime that they open.

`request` makes one call, `run_with_client` several. `open_local` opens a runtime in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from config.settings import Settings
from connectors.connector import Connector
from connectors.message import AgentRuntimeError
from runtime.access import admin_token
from runtime.cli.invocation import Invocation, T, run
from runtime.embedded import StoreInUse, UnsafeSocketFolder, socket_path
from runtime.http import USER_HEADER, create_app, listen_unix, serving, unlink_if_ours
from runtime.observability import EventStream, Redaction, configure_events
from runtime.process import Part, Runtime, open_runtime
from runtime.stores import SOCKET_NAME, prepare_data_dir

PROBE_SECONDS = 2.0
IN_USE_SECONDS = 10.0
"""How long to wait for a data folder whose process holds the stores but does not answer."""
MARGIN_SECONDS = 30.0
"""What a call may take on top of the model's time limit."""
STOP_SECONDS = 3.0
"""What open requests have to end in when the command ends."""


def request(invocation: Invocation, method: str, path: str, body: Any = None, **parameters: Any) -> dict[str, Any]:
    """Make one call to the runtime and return its JSON object. Raises `ApiError`, `Unreachable`, and as `connect`."""
    return run_with_client(invocation, lambda client: client.call(method, path, body, **parameters))


def run_with_client(invocation: Invocation, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Run *work* with a client of the runtime. Raises as `connect`."""
    settings = invocation.settings()

    async def connected() -> T:
        async with connect(settings) as client:
            return await work(client)

    return run(connected())


def api_path(*segments: str) -> str:
    """Return the path of the HTTP interface with these *segments*, each quoted."""
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


@asynccontextmanager
async def connect(
    settings: Settings, parts: frozenset[Part] = frozenset(), in_use_seconds: float = IN_USE_SECONDS
) -> AsyncIterator[Client]:
    """Yield a client of the process that runs on DATA_DIR, or else of a runtime that is opened here with *parts*.

    Raises `StoreInUse` if another process holds the stores and does not answer for *in_use_seconds*, and what
    `open_runtime` raises.
    """
    await prepare_data_dir(settings.data_dir)
    deadline = asyncio.get_running_loop().time() + in_use_seconds
    async with contextlib.AsyncExitStack() as stack:
        while (client := await stack.enter_async_context(running(settings))) is None:
            try:
                runtime, path = await stack.enter_async_context(open_local(settings, parts))
            except StoreInUse:
                # Another command is at work, or a process that is just starting will answer soon.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.5)
            else:
                client = Client(await stack.enter_async_context(_http(settings, path, runtime.admin_token)), runtime)
                break
        yield client


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Client | None]:
    """Yield a client of the process that runs on DATA_DIR, or None if none answers."""
    try:
        path = await asyncio.to_thread(socket_path, settings.data_dir, SOCKET_NAME)
        token = await admin_token(settings) if await answers(path) else None
    except UnsafeSocketFolder as error:
        raise Unreachable(str(error)) from error
    if token is None:
        yield None
    else:
        async with _http(settings, path, token) as http:
            yield Client(http)


async def answers(path: Path) -> bool:
    """Return whether a runtime answers on the socket at *path*. The socket file of a dead process does not."""
    try:
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://localhost", timeout=PROBE_SECONDS
        ) as http:
            return (await http.get("/healthz")).is_success
    except httpx.TransportError:
        return False


def _http(settings: Settings, path: Path, token: str) -> httpx.AsyncClient:
    seconds = settings.llm_timeout_seconds + MARGIN_SECONDS
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(path)),
        base_url="http://localhost",
        headers={"Authorization": f"Bearer {token}", USER_HEADER: quote(login_name())},
        timeout=httpx.Timeout(seconds, connect=PROBE_SECONDS),
    )


def login_name() -> str:
    """Return the name of the user at this terminal, or "" if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


class Client:
    """Calls to the runtime. Every method raises `ApiError` and `Unreachable`, and leaves out parameters that are None.

    ``runtime`` is set if the runtime runs in this process.
    """

    def __init__(self, http: httpx.AsyncClient, runtime: Runtime | None = None) -> None:
        self._http = http
        self.runtime = runtime

    async def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        return await self.call("GET", path, **parameters)

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Send *body* (bytes as they are, anything else as JSON) and return the JSON object of the answer."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        response = await self._send(method, path, headers=headers, params=_present(parameters), **content)
        answer: dict[str, Any] = response.json() if response.content else {}
        return answer

    async def workspaces(self) -> list[str]:
        return [workspace["id"] for workspace in (await self.get(api_path("workspaces")))["workspaces"]]

    async def get_text(self, path: str) -> str:
        return (await self._send("GET", path)).text

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
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
        on_accepted: Callable[[], None] = lambda: None,
        **parameters: Any,
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the server-sent events of a call as pairs of name and data, as they come.

        *on_accepted* is called when the runtime has accepted the call. The event ``error`` is raised as `ApiError`.
        """
        request = self._http.build_request(
            method,
            path,
            json=body,
            params=_present(parameters),
            headers={"Accept": "text/event-stream", **(headers or {})},
            # A stream may be quiet for as long as it likes; the other end is on this machine.
            timeout=httpx.Timeout(None, connect=PROBE_SECONDS),
        )
        try:
            response = await self._http.send(request, stream=True)
            async with contextlib.aclosing(response):
                if response.is_error:
                    await response.aread()
                    raise _api_error(response)
                on_accepted()
                name = ""
                async for line in response.aiter_lines():  # the runtime writes ASCII, and each event's data on one line
                    field, _, value = line.partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data":
                        data = json.loads(value)
                        if name == "error":
                            raise ApiError(500, data["error"]["code"], data["error"]["message"])
                        yield name, data
        except httpx.TransportError as error:
            raise _unreachable(error) from error


def _present(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(int(value)) if isinstance(value, bool) else value
        for name, value in parameters.items()
        if value is not None
    }


class ApiError(AgentRuntimeError):
    """The runtime answered with an error; ``status`` is HTTP's, ``code`` the word for programs."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = status in (429, 503)


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


class Unreachable(AgentRuntimeError):
    """The process does not answer any more."""

    retryable = True


def _unreachable(error: httpx.TransportError) -> Unreachable:
    detail = str(error) or type(error).__name__
    return Unreachable(f"the runtime stopped answering ({detail}); run `agent-runtime doctor` to see why")


@asynccontextmanager
async def open_local(
    settings: Settings,
    parts: frozenset[Part],
    *,
    platforms: Sequence[Connector] = (),
    socket_name: str = "",
) -> AsyncIterator[tuple[Runtime, Path]]:
    """Open a runtime in this process and yield it with the path of the socket on which it answers.

    Events go to the event stream, not to the screen. Without *socket_name* the socket is private to this process. It
    is a socket and not httpx's in-memory transport, which buffers whole responses and so would hold back streams.
    Raises what `open_runtime` raises.
    """
    stream, redaction = EventStream(), Redaction.of(settings)
    configure_events(redaction, keep=lambda event, line: stream.put(line, event), silent=True)
    name = socket_name or f"command-{os.getpid()}.sock"
    async with open_runtime(settings, stream, platforms=platforms, parts=parts) as runtime:
        redaction.add(runtime.admin_token)
        path = await asyncio.to_thread(socket_path, settings.data_dir, name)
        app = await asyncio.to_thread(create_app, runtime)
        listener = await asyncio.to_thread(listen_unix, path)
        inode = (await asyncio.to_thread(path.lstat)).st_ino
        try:
            async with serving(app, [listener], STOP_SECONDS):
                yield runtime, path
        finally:
            listener.close()
            await asyncio.to_thread(unlink_if_ours, path, inode)
