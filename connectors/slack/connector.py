"""Slack, by Socket Mode or HTTP events: the port, put together from the package's parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import structlog
from pydantic import SecretStr
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import Accept, Capabilities, ConnectorFailed, Health, Location, SendFailed
from connectors.health import Backoff, Vitals
from connectors.message import Attachment, ConversationKey, InboundMessage, OutboundMessage, OutboundPart, Receipt
from connectors.slack import errors, events, payloads
from connectors.slack.api import Api
from connectors.slack.errors import SLACK_ERRORS, meaning, retry_after_seconds
from connectors.slack.events import emoji_name
from connectors.slack.http_events import HttpEvents, InOrder
from connectors.slack.receive import Channels, History, Intake
from connectors.slack.send import Files, Responses, Sender, Streams
from connectors.slack.socket_mode import APP_TOKEN_VARIABLE, Link

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

TOKEN_VARIABLE = "AGENT_RUNTIME_SLACK_BOT_TOKEN"  # noqa: S105 - the variable's name
SECRET_VARIABLE = "AGENT_RUNTIME_SLACK_SIGNING_SECRET"  # noqa: S105
BASE_VARIABLE = "AGENT_RUNTIME_SLACK_API_BASE"

_STATUS = "is thinking…"
_NEVER_A_STATUS = frozenset({"missing_scope", "unknown_method", "access_denied", "not_allowed"})


class SlackConnector:
    """A bot on Slack: `connectors.connector.Connector`, `EditsMessages`, `AppendsText`, `ShowsTyping`, `Reacts`,
    `ReadsBack`, `FetchesMissed`, `LocatesAttachments`, `ShowsButtons` and `MountsRoutes`.

    With *app_token* events come by Socket Mode, else with *signing_secret* over HTTP. ``timeout_seconds`` bounds
    each call; a socket on which a ping of every ``ping_seconds`` is not answered in half that time is opened anew,
    as is one that is silent for ``quiet_seconds`` and longer than usual while Slack has newer messages;
    the bot token is tried every ``check_seconds``. After a failure the waits grow from ``first_backoff_seconds``
    to ``longest_backoff_seconds``. A reply of more than ``reply_max_parts`` parts goes as its beginning and a file.
    """

    name = events.CONNECTOR
    capabilities = Capabilities(
        max_part_units=payloads.MAX_TEXT_CHARACTERS,
        threads=True,
        idempotency="metadata",
        # docs.slack.dev, "Rate limits": one message a second in a channel. Of all other methods each has a rate for the
        # whole workspace: chat.update is of tier 3, 50 a minute, chat.appendStream of tier 4, 100, chat.startStream and
        # chat.stopStream of tier 2, 20: five at once and fifteen a minute are no more in any minute.
        sends_per_second=1.0,
        edits_per_second=0.8,
        edits_per_second_overall=50 / 60,
        openings_per_second_overall=15 / 60,
        additions_per_second_overall=100 / 60,
        # The limit on all messages in a workspace, "several hundred per minute", has no figure: a 429 tells it.
        command_mark=events.COMMAND_MARK,
    )
    typing_lasts_seconds = 90.0  # Slack takes the status away after two minutes, and when the answer comes
    max_buttons = payloads.MAX_BUTTONS

    def __init__(
        self,
        token: SecretStr,
        api_base: str = "https://slack.com/api/",
        *,
        app_token: SecretStr | None = None,
        signing_secret: SecretStr | None = None,
        timeout_seconds: float = 20.0,
        ping_seconds: float = 10.0,
        quiet_seconds: float = 300.0,
        check_seconds: float = 300.0,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
        reply_max_parts: int = payloads.MAX_PARTS,
    ) -> None:
        self._app_token = app_token
        self._timeout_seconds = timeout_seconds
        self._ping_seconds = ping_seconds
        self._quiet_seconds = quiet_seconds
        self._check_seconds = check_seconds
        self._reply_max_parts = reply_max_parts
        self._backoff = Backoff(first_backoff_seconds, longest_backoff_seconds)
        self._vitals = Vitals()
        self._me: events.Identity | None = None
        self._has_status = True
        self._api = Api(token, api_base, timeout_seconds, app_token, signing_secret)
        self._streams, responses = Streams(self._api), Responses(self._api)
        channels = Channels(self._api)
        self._intake = Intake(self._api, self._vitals, self._streams, responses, channels)
        self._history = History(self._api, channels)
        self._files = Files(self._api)
        self._sender = Sender(self._api, self._streams, responses, self._files, self._identity, self._intake.sent)
        has_secret = signing_secret is not None and bool(signing_secret.get_secret_value().strip())
        over_http = signing_secret if has_secret and app_token is None else None
        self._http: HttpEvents | None = None
        if over_http is not None:
            in_order = InOrder(self._history, self._intake.take)
            self._http = HttpEvents(over_http, in_order.take, self._intake.take_command, self._intake.take_press)

    @property
    def health(self) -> Health:
        return self._vitals.health

    def routes(self) -> Sequence[BaseRoute]:
        """``/slack/events`` and ``/slack/commands`` where events come over HTTP."""
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
        return payloads.to_parts(message, self._reply_max_parts)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        return await self._sender.send(message, part)

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        await self._sender.edit(message, part, receipt)

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        await self._sender.take_back(message, receipt)

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        return await self._sender.find(key, part)

    def appends(self, message: OutboundMessage) -> bool:
        """In threads, to people who are known, unless Slack said that it does not stream here."""
        return self._streams.possible(message.key.external_id, message.answers)

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        receipt = await self._streams.begin(message, text)
        self._intake.sent(message.key.external_id, receipt.message_id)
        return receipt

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        return await self._sender.find_beginning(message, part)

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        await self._streams.append(message, receipt, text)

    def paced_as(self, key: ConversationKey) -> str:
        return key.external_id.partition("/")[0]

    async def typing(self, key: ConversationKey) -> None:
        """Only in threads: Slack shows no status anywhere else."""
        try:
            channel, thread = payloads.place_of(key.external_id)
            if thread is not None and self._has_status:
                await self._api.ask(
                    lambda client: client.assistant_threads_setStatus(
                        channel_id=channel, thread_ts=thread, status=_STATUS
                    )
                )
        except SendFailed as failed:
            if errors.word(failed.__cause__) in _NEVER_A_STATUS:
                self._has_status = False
            log.debug("connector.sign_lost", connector=self.name, why=str(failed))
            if failed.retry_after_seconds:
                raise

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        """Nothing where no message is, as for a command."""
        name = emoji_name(emoji)
        if name is None or not payloads.is_ts(message_id):
            return
        try:
            channel, _ = payloads.place_of(key.external_id)
            await self._api.ask(lambda client: client.reactions_add(channel=channel, timestamp=message_id, name=name))
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector=self.name, why=str(failed))

    async def missed(self, key: ConversationKey, after_message_id: str) -> AsyncIterator[InboundMessage]:
        """What was said after *after_message_id*, and calls in the channel that began other threads meanwhile.

        Raises `SendFailed` where Slack cannot be asked now; nothing where it does not let the bot read.
        """
        async for message in self._history.missed(key, after_message_id, await self._identity()):
            yield message

    async def locate(self, attachment: Attachment) -> Location:
        return await self._files.locate(attachment)

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

    async def _sign_in(self) -> events.Identity:
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
                    f"Slack does not accept the bot token ({self._api.describe(error)}). Set {TOKEN_VARIABLE} to the "
                    "app's Bot User OAuth Token, which begins with xoxb- (and leave "
                    f"{BASE_VARIABLE} unset unless you use a proxy)."
                ) from error
            self._vitals.trouble("api", f"Slack's Web API does not answer: {self._api.describe(error)}")
            return backoff.next_seconds(retry_after_seconds(error))
        backoff.failures = 0
        self._vitals.well("api")
        return None

    async def _identity(self) -> events.Identity:
        """Who the bot is, also while it does not run. Raises `SendFailed`."""
        if self._me is not None:
            return self._me
        answer = await self._api.ask(lambda client: client.auth_test())
        try:
            return _identity(answer)
        except ValueError as error:
            raise SendFailed(f"Slack does not say who the bot is: {error}", retryable=True) from error

    async def _work(self) -> None:
        failed: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_token(), name="slack token")
                if self._app_token is None:
                    self._vitals.connected()
                else:
                    tasks.create_task(self._link(self._app_token).run(), name="slack link")
        except* ConnectorFailed as group:
            failed = _first(group)
        if failed is not None:
            raise failed

    def _link(self, app_token: SecretStr) -> Link:
        return Link(
            self._api,
            self._intake,
            self._history,
            self._vitals,
            app_token,
            timeout_seconds=self._timeout_seconds,
            ping_seconds=self._ping_seconds,
            quiet_seconds=self._quiet_seconds,
            backoff=self._backoff,
        )

    async def _watch_token(self) -> None:
        """Tries the token again from time to time, and at once when a call says that it is bad."""
        backoff = self._backoff.fresh()
        wait_seconds = self._check_seconds
        while True:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._api.doubt.wait()
            except TimeoutError:
                pass
            self._api.doubt.clear()
            wait_seconds = await self._try_token(backoff) or self._check_seconds


def _first(group: BaseExceptionGroup[ConnectorFailed]) -> BaseException:
    """The first failure of a group, which may hold groups."""
    first: BaseException = group.exceptions[0]
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _identity(answer: AsyncSlackResponse) -> events.Identity:
    """Raises `ValueError` for an answer that names no bot."""
    user_id, team_id = str(answer.get("user_id") or ""), str(answer.get("team_id") or "")
    if not user_id or not team_id:
        raise ValueError("auth.test names no bot")
    return events.Identity(user_id, str(answer.get("bot_id") or ""), team_id, str(answer.get("user") or ""))
