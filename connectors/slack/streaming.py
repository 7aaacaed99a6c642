"""Slack's own way to show a reply that grows: a message that is begun, added to, and stopped. I/O.

An open stream refuses ``chat.update`` with ``streaming_state_conflict`` and ``chat.delete`` with
``cant_delete_message``; one that is not open refuses to be added to or stopped with
``message_not_in_streaming_state``. Slack ends a stream by itself after some five minutes.
"""

from __future__ import annotations

import structlog

from connectors.connector import SendFailed
from connectors.message import OutboundMessage, Receipt
from connectors.slack import errors, outgoing
from connectors.slack.api import Api
from connectors.slack.recent import Recent

log = structlog.get_logger()

NEVER = frozenset(
    {
        "access_denied",
        "deprecated_endpoint",
        "enterprise_is_restricted",
        "feature_not_enabled",
        "method_deprecated",
        "missing_scope",
        "no_permission",
        "not_allowed",
        "not_allowed_token_type",
        "paid_only",
        "team_access_not_granted",
        "unknown_method",
    }
)
"""Refusals that hold for all of the workspace; any other one holds for the channel."""

OPEN = frozenset({"streaming_state_conflict", "cant_delete_message"})
"""How a call is refused because the message is still streaming."""

_CLOSED = frozenset({"message_not_in_streaming_state", "stopped_by_user", "message_not_found"})
_LATER = frozenset({"ratelimited", "rate_limited"})


class Streams:
    """The messages that are streaming now, as far as this process began them, and where that is possible."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._available = True
        self._refusing: Recent[str, None] = Recent()
        self._open: Recent[tuple[str, str], None] = Recent()
        self._askers: Recent[tuple[str, str], tuple[str, str]] = Recent()

    def asked(self, channel: str, message_id: str, user: str, team: str) -> None:
        """Somebody of a team said something: in channels Slack wants to know for whom a stream is."""
        if user and team:
            self._askers.put((channel, message_id), (user, team))

    def possible(self, external_id: str, answers: tuple[str, ...]) -> bool:
        """Whether a reply to *answers* can stream there: in threads, to a person who is known."""
        if not self._available:
            return False
        try:
            channel, thread = outgoing.to_place(external_id)
        except ValueError:
            return False
        return thread is not None and channel not in self._refusing and self._asker(channel, answers) is not None

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        """Raises `connectors.connector.SendFailed`."""
        channel, thread = outgoing.place_of(message.key.external_id)
        asker = self._asker(channel, message.answers)
        if thread is None or asker is None:
            raise SendFailed("Slack streams only in threads, to people who are known.", retryable=False)
        first, *rest = outgoing.stream_pieces(text) or [""]
        try:
            answer = await self._api.ask(
                lambda client: client.chat_startStream(
                    channel=channel,
                    thread_ts=thread,
                    markdown_text=first or None,
                    recipient_user_id=asker[0],
                    recipient_team_id=asker[1],
                )
            )
        except SendFailed as failed:
            self._learn(channel, failed)
            raise
        ts = str(answer.get("ts") or "")
        if not ts:
            raise SendFailed("Slack gave the stream no timestamp.", retryable=True, ambiguous=True)
        self._open.put((channel, ts), None)
        for piece in rest:
            await self._append(channel, ts, piece)
        return Receipt(ts)

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        """Raises `connectors.connector.SendFailed`, also where Slack or a person has stopped the stream."""
        channel, _ = outgoing.place_of(message.key.external_id)
        for piece in outgoing.stream_pieces(text):
            await self._append(channel, receipt.message_id, piece)

    def is_open(self, channel: str, ts: str) -> bool:
        """Whether this process knows it to be streaming."""
        return (channel, ts) in self._open

    async def stop(self, channel: str, ts: str) -> None:
        """Afterwards it does not stream. Raises `connectors.connector.SendFailed` when that cannot be had."""
        try:
            await self._api.ask(lambda client: client.chat_stopStream(channel=channel, ts=ts))
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in _CLOSED:
                raise
        self._open.drop((channel, ts))

    async def _append(self, channel: str, ts: str, piece: str) -> None:
        try:
            await self._api.ask(lambda client: client.chat_appendStream(channel=channel, ts=ts, markdown_text=piece))
        except SendFailed as failed:
            if errors.word(failed.__cause__) in _CLOSED:
                self._open.drop((channel, ts))
            raise

    def _asker(self, channel: str, answers: tuple[str, ...]) -> tuple[str, str] | None:
        return next((found for one in reversed(answers) if (found := self._askers.get((channel, one)))), None)

    def _learn(self, channel: str, failed: SendFailed) -> None:
        word = errors.word(failed.__cause__)
        if failed.retryable or not word or word in _LATER:
            return
        log.info("connector.streaming_unavailable", connector="slack", why=word)
        if word in NEVER:
            self._available = False
        else:
            self._refusing.put(channel, None)
