"""Slack's deliveries through slack_bolt: by a socket that we open (Socket Mode), or over HTTP. I/O.

Bolt and slack_sdk open the socket and open it again, check signatures, answer Slack's questions about the address and
acknowledge. A delivery is acknowledged after `connectors.slack.receive.Intake` has taken it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import structlog
from aiohttp import ClientSession, ClientTimeout, WSMessage, WSMsgType
from pydantic import SecretStr
from slack_bolt.adapter.socket_mode.async_handler import AsyncSocketModeHandler
from slack_bolt.adapter.starlette.async_handler import to_async_bolt_request, to_starlette_response
from slack_bolt.async_app import AsyncAck, AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.error import BoltUnhandledRequestError
from slack_bolt.response import BoltResponse
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from connectors.connector import ConnectorFailed
from connectors.health import ConnectionHealth
from connectors.http_requests import RequestError, error_response, read_body
from connectors.sdk_errors import origin
from connectors.slack.api import Api
from connectors.slack.check import APP_TOKEN_VARIABLE
from connectors.slack.errors import SLACK_ERRORS, meaning
from connectors.slack.events import BUTTON_PREFIX, CONNECTOR, MALFORMED
from connectors.slack.lookups import History
from connectors.slack.payloads import ephemeral
from connectors.slack.receive import Intake

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

PATHS = ("/slack/events", "/slack/commands")
"""Each takes events, commands and interactions: which of them come where is up to the app's settings."""

MAX_BODY_BYTES = 1_000_000

_URL_ATTEMPTS = 6
"""A socket that does not open in as many attempts gets another URL: slack_sdk would try the first one for ever."""

_CLOSE_SECONDS = 5.0

_ENDINGS = {
    "link_disabled": "Socket Mode was turned off in the app's settings",
    "too_many_websockets": "Slack closed the connection, as too many are open for this app: stop other processes that "
    "use its app-level token",
}
"""The reasons for which Slack closes a connection that a person should know."""

# Bolt writes people's texts into its log, and reports a broken connection with every attempt. Health and events tell.
_LOGGER = logging.getLogger("slack_bolt.agent_runtime")
_LOGGER.setLevel(logging.CRITICAL)


def create_app(intake: Intake, signing_secret: SecretStr | None, answer_within_seconds: float | None) -> AsyncApp:
    """Return the Bolt app that passes everything on to *intake*.

    With *answer_within_seconds* an event that is not accepted by then is not acknowledged. `Intake` knows the bot's own
    messages from the history, too, so Bolt does not look for them; and it has the one token itself.
    """
    app = AsyncApp(
        name="agent-runtime",
        logger=_LOGGER,
        client=AsyncWebClient(),
        signing_secret=signing_secret.get_secret_value() if signing_secret is not None else "",
        authorize=_authorize,
        process_before_response=True,
        raise_error_for_unhandled_request=True,
        ignoring_self_events_enabled=False,
        attaching_function_token_enabled=False,
        attaching_conversation_kwargs_enabled=False,
    )

    async def take_event(body: dict[str, Any]) -> BoltResponse:
        return _acknowledged_if(await intake.take(body, answer_within_seconds))

    async def take_command(body: dict[str, Any], ack: AsyncAck) -> None:
        text = await intake.take_command(body)
        await ack(ephemeral(text) if text else "")

    async def take_press(body: dict[str, Any]) -> BoltResponse:
        return _acknowledged_if(await intake.take_press(body))

    app.event(re.compile(""))(take_event)
    app.command(re.compile(""))(take_command)
    app.action(re.compile(f"^{BUTTON_PREFIX}"))(take_press)
    app.error(_handle_error)
    return app


async def _authorize() -> AuthorizeResult:
    return AuthorizeResult(enterprise_id=None, team_id=None)


async def _handle_error(error: Exception, body: dict[str, Any]) -> BoltResponse:
    if isinstance(error, BoltUnhandledRequestError):  # acknowledged, as it would be the same another time
        log.info("message.ignored", connector=CONNECTOR, why=f"unsupported: {body.get('type')}")
        return BoltResponse(status=200)
    if isinstance(error, MALFORMED):  # a timestamp that is no number, in a request that nobody signed
        return BoltResponse(status=400)
    log.error("message.failed", connector=CONNECTOR, why=type(error).__name__, where=origin(error))
    return BoltResponse(status=500)


def _acknowledged_if(accepted: bool) -> BoltResponse:
    """Return the answer to Slack; with a status that is no success it delivers again."""
    return BoltResponse(status=200 if accepted else 503)


class HttpEvents:
    """Takes Slack's requests. One that somebody recorded and sends again says nothing new: each delivery has an id."""

    def __init__(self, app: AsyncApp) -> None:
        self._app = app

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(path, self._receive, methods=["POST"]) for path in PATHS]

    async def _receive(self, request: Request) -> Response:
        try:
            body = await read_body(request, MAX_BODY_BYTES, "the request is too large")
        except RequestError as refused:
            return error_response(refused, CONNECTOR)

        try:
            delivery = to_async_bolt_request(request, body)
            if not delivery.body:  # Bolt takes a form with the word "payload" for one with a field of that name
                delivery.body = dict(parse_qsl(delivery.raw_body, keep_blank_values=True))
            response = to_starlette_response(await self._app.async_dispatch(delivery))
        except (*MALFORMED, RecursionError):
            return PlainTextResponse("unreadable", 400)
        if response.status_code == 401:
            log.warning("connector.request_refused", connector=CONNECTOR, why="signature")
        return response


class SocketMode:
    """Keeps a socket open; slack_sdk does, and tries again every *ping_seconds* after a failure.

    It replaces one on which four pings were not answered, and one that Slack asks to replace. An attempt to open one
    fails after the time of four pings, too.
    """

    def __init__(
        self,
        app: AsyncApp,
        api: Api,
        history: History,
        vitals: ConnectionHealth,
        app_token: SecretStr,
        ping_seconds: float,
    ) -> None:
        self.sessions = 0
        """The number of sockets, without those that took over at once from one that Slack asked to replace."""
        self._app = app
        self._api = api
        self._history = history
        self._vitals = vitals
        self._app_token = app_token
        self._ping_seconds = ping_seconds
        self._why = ""
        """Why the socket was closed, as far as that is known."""
        self._is_replaced = False
        """True if Slack asked for the next socket."""
        self._open_at = 0.0
        """When the socket was last seen open, in the loop's time."""

    async def run(self) -> None:
        """Run until cancelled. Raises `connectors.connector.ConnectorFailed`, in a group."""
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handler = AsyncSocketModeHandler(
            self._app,
            self._app_token.get_secret_value(),
            logger=_LOGGER,
            web_client=_Opener(self._api, lambda error: self._note_failure(error, refused)),
            ping_interval=self._ping_seconds,
        )
        client = handler.client
        client.message_listeners.append(self._note_hello)
        client.on_message_listeners.append(self._note_disconnect)
        try:
            await _replace_session(client, 4 * self._ping_seconds)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(handler.connect_async(), name="slack socket")  # type: ignore[no-untyped-call]
                tasks.create_task(self._watch(client), name="slack socket health")
                await refused
        finally:
            await _close(handler)

    def _note_failure(self, error: Exception, refused: asyncio.Future[None]) -> None:
        """Note that Slack gave no URL for a socket. If only a person can help, end the run."""
        why = self._api.describe(error)
        if not isinstance(error, SlackApiError) or meaning(error).retryable:
            self._why = self._why or f"Socket Mode cannot be opened: {why}"
            self._vitals.trouble("socket", self._why)
        elif not refused.done():
            refused.set_exception(
                ConnectorFailed(
                    f"Slack does not open Socket Mode with the app token ({why}). Set {APP_TOKEN_VARIABLE} to an "
                    "app-level token with the scope connections:write, which begins with xapp-, and turn Socket Mode "
                    "on in the app's settings."
                )
            )

    async def _note_hello(
        self, _client: AsyncBaseSocketModeClient, message: dict[str, Any], _raw: str | None = None
    ) -> None:
        """Note Slack's greeting: events come from now on."""
        if message.get("type") != "hello":
            return
        now = asyncio.get_running_loop().time()
        if not self.sessions or not self._is_replaced or now - self._open_at > self._ping_seconds:
            self.sessions += 1
            self._history.forget_scans()
        self._open_at, self._why, self._is_replaced = now, "", False
        self._vitals.well("socket")
        self._vitals.connected()

    async def _note_disconnect(self, frame: WSMessage) -> None:
        """Note that Slack asks for another socket, and why if that is for a person to know. slack_sdk opens it."""
        try:
            message = json.loads(frame.data) if frame.type is WSMsgType.TEXT else None
        except ValueError:  # an error in a listener would make slack_sdk pause
            message = None
        if not isinstance(message, dict) or message.get("type") != "disconnect":
            return
        self._why = _ENDINGS.get(str(message.get("reason")), "")
        self._is_replaced = not self._why
        if self._why:
            self._vitals.trouble("socket", self._why)

    async def _watch(self, client: SocketModeClient) -> None:
        """Note in the health if the socket is closed for longer than it takes to replace it."""
        loop = asyncio.get_running_loop()
        given_at = loop.time()
        if not self.sessions:
            self._open_at = given_at
        while True:
            await asyncio.sleep(self._ping_seconds / 2)
            now = loop.time()
            if await client.is_connected():
                self._open_at = given_at = now
            elif now - self._open_at > self._ping_seconds / 2:
                self._vitals.trouble("socket", self._why or "the connection broke; another one is being opened")
            if now - given_at > _URL_ATTEMPTS * self._ping_seconds:
                client.wss_uri, given_at = None, now


class _Opener(AsyncWebClient):
    """Asks for the URL of a socket through *api*, and reports each failure, which slack_sdk only writes to its log."""

    def __init__(self, api: Api, failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self._api = api
        self._failed = failed

    async def apps_connections_open(self, *, app_token: str, **_: Any) -> AsyncSlackResponse:
        try:
            return await self._api.call(lambda client: client.apps_connections_open(app_token=app_token))
        except SLACK_ERRORS as error:
            self._failed(error)
            raise


async def _replace_session(client: SocketModeClient, open_within_seconds: float) -> None:
    """Give *client* a session in which a socket opens in time or fails.

    aiohttp also chooses the proxy in it, and heeds ``NO_PROXY``: slack_sdk would use a proxy for every host.
    """
    await client.aiohttp_client_session.close()
    timeout = ClientTimeout(total=open_within_seconds)  # an open socket has none
    client.aiohttp_client_session, client.proxy = ClientSession(trust_env=True, timeout=timeout), None


async def _close(handler: AsyncSocketModeHandler) -> None:
    """Close the socket; without the closing handshake if Slack does not answer that."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await handler.close_async()  # type: ignore[no-untyped-call]
    except SLACK_ERRORS as error:
        log.debug("connector.close_failed", connector=CONNECTOR, why=type(error).__name__)
        await handler.close_async()  # type: ignore[no-untyped-call]
