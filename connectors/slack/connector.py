"""Slack, by Socket Mode or HTTP events: I/O only. What events mean is in `convert`, what errors mean in `errors`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from pydantic import SecretStr
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import Accept, Capabilities, ConnectorFailed, Health, SendFailed
from connectors.message import (
    ConversationKey,
    OutboundMessage,
    OutboundPart,
    Receipt,
)
from connectors.slack import convert, errors
from connectors.slack.api import Api, Ask
from connectors.slack.errors import SLACK_ERRORS, meaning, retry_after_seconds, send_failed
from connectors.slack.http_events import HttpEvents
from connectors.slack.intake import Intake
from connectors.slack.socket_mode import Envelope, Socket
from connectors.slack.vitals import Backoff, Vitals

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

_Built = TypeVar("_Built")

TOKEN_VARIABLE = "AGENT_RUNTIME_SLACK_BOT_TOKEN"  # noqa: S105 - the variable's name
APP_TOKEN_VARIABLE = "AGENT_RUNTIME_SLACK_APP_TOKEN"  # noqa: S105
SECRET_VARIABLE = "AGENT_RUNTIME_SLACK_SIGNING_SECRET"  # noqa: S105
BASE_VARIABLE = "AGENT_RUNTIME_SLACK_API_BASE"

_WAITING_ENVELOPES = 1000
_READ_BACK_PAGES = 5
_READ_BACK_MESSAGES = 200
_STATUS = "is thinking…"
_NEVER_A_STATUS = frozenset({"missing_scope", "unknown_method", "access_denied", "not_allowed"})


class SlackConnector:
    """A bot on Slack: `connectors.connector.Connector`, `EditsMessages`, `ShowsTyping`, `Reacts`, `ReadsBack` and
    `MountsRoutes`.

    With *app_token* events come by Socket Mode, else with *signing_secret* over HTTP. ``timeout_seconds`` bounds
    each call; a socket on which a ping of every ``ping_seconds`` is not answered in half that time is opened anew;
    the bot token is tried every ``check_seconds``. After a failure the waits grow from ``first_backoff_seconds``
    to ``longest_backoff_seconds``.
    """

    name = convert.CONNECTOR
    capabilities = Capabilities(
        max_part_units=convert.MAX_TEXT_CHARACTERS,
        threads=True,
        idempotency="metadata",
        # docs.slack.dev, "Rate limits": one message a second in a channel; chat.update is of tier 3, 50 a minute.
        sends_per_second=1.0,
        edits_per_second=0.8,
    )
    typing_lasts_seconds = 90.0  # Slack takes the status away after two minutes, and when the answer comes

    def __init__(
        self,
        token: SecretStr,
        api_base: str = "https://slack.com/api/",
        *,
        app_token: SecretStr | None = None,
        signing_secret: SecretStr | None = None,
        timeout_seconds: float = 20.0,
        ping_seconds: float = 10.0,
        check_seconds: float = 300.0,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
    ) -> None:
        self._app_token = app_token
        self._timeout_seconds = timeout_seconds
        self._ping_seconds = ping_seconds
        self._check_seconds = check_seconds
        self._backoff = Backoff(first_backoff_seconds, longest_backoff_seconds)
        self._api = Api(token, api_base, timeout_seconds)
        self._vitals = Vitals()
        self._doubt = asyncio.Event()
        """Set when something says that the bot token may be void."""
        self._intake = Intake(self._api, self._vitals, self._doubt)
        self._me: convert.Identity | None = None
        self._has_status = True
        has_secret = signing_secret is not None and bool(signing_secret.get_secret_value().strip())
        over_http = signing_secret if has_secret and app_token is None else None
        self._http = HttpEvents(over_http, self._intake.take) if over_http is not None else None

    @property
    def health(self) -> Health:
        return self._vitals.health

    def routes(self) -> Sequence[BaseRoute]:
        """``/slack/events`` where events come over HTTP."""
        return self._http.routes() if self._http is not None else ()

    async def run(self, accept: Accept) -> None:
        """Receives until cancelled. Raises `ConnectorFailed` when a token is missing or refused."""
        self._vitals.start()
        try:
            self._require_a_way_in()
            self._intake.open(accept, await self._sign_in())
            await self._work()
        except ConnectorFailed as failed:
            self._vitals.failed(str(failed))
            raise
        finally:
            self._intake.close()
            self._vitals.stopped()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return convert.to_parts(message)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        arguments = _built(lambda: convert.to_send(message, part))
        answer = await self._ask(lambda client: client.chat_postMessage(**arguments))
        sent = str(answer.get("ts") or "")
        if not sent:
            raise SendFailed("Slack gave the message no timestamp.", retryable=True, ambiguous=True)
        self._intake.sent(message.key.external_id, sent)
        return Receipt(message_id=sent)

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        arguments = _built(lambda: convert.to_edit(message, part, receipt.message_id))
        await self._ask(lambda client: client.chat_update(**arguments))

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        channel, thread = _built(lambda: convert.to_place(key.external_id))
        me = self._me or _identity(await self._ask(lambda client: client.auth_test()))
        cursor = ""
        for _ in range(_READ_BACK_PAGES):
            answer = await self._page(channel, thread, cursor)
            found = convert.found_in(answer.get("messages") or [], part, me)
            if found is not None:
                return Receipt(message_id=found)
            cursor = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                break
        return None

    async def typing(self, key: ConversationKey) -> None:
        """Only in threads: Slack shows no status anywhere else."""
        try:
            channel, thread = _built(lambda: convert.to_place(key.external_id))
            if thread is not None and self._has_status:
                await self._ask(
                    lambda client: client.assistant_threads_setStatus(
                        channel_id=channel, thread_ts=thread, status=_STATUS
                    )
                )
        except SendFailed as failed:
            if errors.word(failed.__cause__) in _NEVER_A_STATUS:
                self._has_status = False
            log.debug("connector.sign_lost", connector=self.name, why=str(failed))

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        name = convert.emoji_name(emoji)
        if name is None:
            return
        try:
            channel, _ = _built(lambda: convert.to_place(key.external_id))
            await self._ask(lambda client: client.reactions_add(channel=channel, timestamp=message_id, name=name))
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector=self.name, why=str(failed))

    async def close(self) -> None:
        try:
            await self._api.close()
        except SLACK_ERRORS as error:
            log.warning("connector.close_failed", connector=self.name, why=type(error).__name__)
        self._vitals.stopped()

    # Starting

    def _require_a_way_in(self) -> None:
        if self._app_token is None and self._http is None:
            raise ConnectorFailed(
                f"Slack has no way to reach this bot. Set {APP_TOKEN_VARIABLE} (Socket Mode) or {SECRET_VARIABLE} "
                "(events over HTTP at /slack/events; without it nobody could tell them from forged ones)."
            )

    async def _sign_in(self) -> convert.Identity:
        backoff = self._backoff.fresh()
        while True:
            wait_seconds = await self._try_token(backoff)
            if wait_seconds is None and self._me is not None:
                return self._me
            await asyncio.sleep(wait_seconds or 0)

    async def _try_token(self, backoff: Backoff) -> float | None:
        """Asks Slack who the bot is; if that cannot be had, the time until the next attempt.

        A bad bot token would not be noticed otherwise: the app token alone opens a socket. Raises `ConnectorFailed`.
        """
        try:
            self._me = _identity(await self._api.call(lambda client: client.auth_test()))
        except SLACK_ERRORS as error:
            if meaning(error).bad_token:
                raise ConnectorFailed(
                    f"Slack does not accept the bot token ({self._describe(error)}). Set {TOKEN_VARIABLE} to the "
                    "app's Bot User OAuth Token, which begins with xoxb- (and leave "
                    f"{BASE_VARIABLE} unset unless you use a proxy)."
                ) from error
            self._vitals.trouble("api", f"Slack's Web API does not answer: {self._describe(error)}")
            return backoff.next_seconds(retry_after_seconds(error))
        backoff.failures = 0
        self._vitals.well("api")
        return None

    async def _work(self) -> None:
        failed: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_token(), name="slack token")
                if self._app_token is None:
                    self._vitals.connected()
                else:
                    waiting: asyncio.Queue[Envelope] = asyncio.Queue(_WAITING_ENVELOPES)
                    tasks.create_task(self._take_all(waiting), name="slack events")
                    tasks.create_task(self._stay_connected(self._app_token, tasks, waiting), name="slack socket")
        except* ConnectorFailed as group:
            failed = group.exceptions[0]
        if failed is not None:
            raise failed

    async def _watch_token(self) -> None:
        """Tries the token again from time to time, and at once when a call says that it is bad."""
        backoff = self._backoff.fresh()
        wait_seconds = self._check_seconds
        while True:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._doubt.wait()
            except TimeoutError:
                pass
            self._doubt.clear()
            wait_seconds = await self._try_token(backoff) or self._check_seconds

    # Socket Mode

    async def _stay_connected(
        self, app_token: SecretStr, tasks: asyncio.TaskGroup, waiting: asyncio.Queue[Envelope]
    ) -> None:
        backoff = self._backoff.fresh()
        while True:
            try:
                socket = await self._open_socket(app_token, waiting)
            except SLACK_ERRORS as error:
                why = self._socket_refused(error)
                self._vitals.trouble("socket", f"Socket Mode cannot be opened: {why}")
                await asyncio.sleep(backoff.next_seconds(retry_after_seconds(error)))
                continue
            # A socket that Slack wants to end goes on being read while the next one is opened.
            tasks.create_task(socket.read(self._timeout_seconds), name="slack socket reader")
            await socket.settled.wait()
            opened_at = asyncio.get_running_loop().time()
            if socket.greeted:
                self._vitals.well("socket")
                self._vitals.connected()
            await socket.retiring.wait()
            if asyncio.get_running_loop().time() - opened_at > backoff.longest_seconds:
                backoff.failures = 0
            if socket.announced and socket.greeted and backoff.failures == 0:
                backoff.failures = 1
                continue
            self._vitals.trouble("socket", socket.why)
            await asyncio.sleep(backoff.next_seconds())

    async def _open_socket(self, app_token: SecretStr, waiting: asyncio.Queue[Envelope]) -> Socket:
        secret = app_token.get_secret_value()
        answer = await self._api.call(lambda client: client.apps_connections_open(app_token=secret))
        websocket = await self._api.websocket(str(answer.get("url") or ""), self._ping_seconds)

        def take(envelope: Envelope) -> None:
            try:
                waiting.put_nowait(envelope)
            except asyncio.QueueFull:  # not acknowledged, so that Slack delivers it again
                log.warning("connector.overrun", connector=self.name, waiting=waiting.qsize())

        return Socket(websocket, take)

    def _socket_refused(self, error: Exception) -> str:
        """Why. Raises `ConnectorFailed` when Slack will not think otherwise."""
        why = self._describe(error)
        if isinstance(error, SlackApiError) and not meaning(error).retryable:
            raise ConnectorFailed(
                f"Slack does not open Socket Mode with the app token ({why}). Set {APP_TOKEN_VARIABLE} to an "
                "app-level token with the scope connections:write, which begins with xapp-, and turn Socket Mode on "
                "in the app's settings."
            ) from error
        return why

    async def _take_all(self, waiting: asyncio.Queue[Envelope]) -> None:
        """One after the other, so that messages keep their order; each is acknowledged when it was accepted."""
        while True:
            envelope = await waiting.get()
            if envelope.kind == "events_api":
                await self._intake.take_until_accepted(envelope.payload, self._backoff.fresh())
            else:
                log.info("message.ignored", connector=self.name, why=f"unsupported: {envelope.kind}")
            await envelope.acknowledge()

    # Calling

    async def _page(self, channel: str, thread: str | None, cursor: str) -> AsyncSlackResponse:
        """Messages of a place with their metadata: of a channel the newest first, of a thread the oldest."""
        page: dict[str, Any] = {"limit": _READ_BACK_MESSAGES, "include_all_metadata": True, "cursor": cursor or None}
        if thread is None:
            return await self._ask(lambda client: client.conversations_history(channel=channel, **page))
        return await self._ask(lambda client: client.conversations_replies(channel=channel, ts=thread, **page))

    async def _ask(self, ask: Ask) -> AsyncSlackResponse:
        try:
            return await self._api.call(ask)
        except SLACK_ERRORS as error:
            if meaning(error).bad_token:
                self._doubt.set()
            raise send_failed(error, self._describe(error)) from error

    def _describe(self, error: Exception) -> str:
        return self._api.describe(error, self._app_token)


def _built(build: Callable[[], _Built]) -> _Built:
    """What *build* makes. Raises `SendFailed` where an id is none of Slack's."""
    try:
        return build()
    except ValueError as error:
        raise SendFailed(f"Not an id of Slack's: {error}", retryable=False) from error


def _identity(answer: AsyncSlackResponse) -> convert.Identity:
    """Raises `ValueError` for an answer that names no bot."""
    user_id, team_id = str(answer.get("user_id") or ""), str(answer.get("team_id") or "")
    if not user_id or not team_id:
        raise ValueError("auth.test names no bot")
    return convert.Identity(user_id, str(answer.get("bot_id") or ""), team_id, str(answer.get("user") or ""))
