"""What the bot says, changes and takes back. I/O."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import SendFailed
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt
from connectors.slack import commands, errors, outgoing, responses
from connectors.slack.api import Api
from connectors.slack.convert import Identity
from connectors.slack.files import Files, is_file
from connectors.slack.responses import Responses
from connectors.slack.streaming import OPEN, Streams

_READ_BACK_PAGES = 5
_READ_BACK_MESSAGES = 200
_GONE = frozenset({"message_not_found", "file_not_found", "file_deleted"})


class Sender:
    """The outbound half of the connector. *sent* hears of each place and message that the bot said."""

    def __init__(
        self,
        api: Api,
        streams: Streams,
        replies: Responses,
        files: Files,
        who: Callable[[], Awaitable[Identity]],
        sent: Callable[[str, str], None],
    ) -> None:
        self._api = api
        self._streams = streams
        self._replies = replies
        self._files = files
        self._who = who
        self._sent = sent

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Raises `connectors.connector.SendFailed`, as all methods here do."""
        channel, thread = outgoing.place_of(message.key.external_id)
        if any(commands.is_command(one) for one in message.answers):
            if not part.file_name and (receipt := await self._replies.post(message.answers, part)):
                return receipt
            if not channel.startswith("D"):
                raise SendFailed(
                    "Slack shows replies to a command to its giver only, and takes no more of them for this one.",
                    retryable=False,
                )
        if part.file_name:
            return Receipt(await self._files.upload(channel, thread, part))
        arguments = outgoing.to_send(message, part)
        answer = await self._api.ask(lambda client: client.chat_postMessage(**arguments))
        ts = str(answer.get("ts") or "")
        if not ts:
            raise SendFailed("Slack gave the message no timestamp.", retryable=True, ambiguous=True)
        self._sent(message.key.external_id, ts)
        return Receipt(message_id=ts)

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        """Stops what is still streaming first, also where another process began it."""
        if part.file_name or not outgoing.is_ts(receipt.message_id):
            raise SendFailed("Slack lets nobody change a file, or a reply that one person sees.", retryable=False)
        channel, _ = outgoing.place_of(message.key.external_id)
        arguments = outgoing.to_edit(message, part, receipt.message_id)
        await self._unlocked(
            channel,
            receipt.message_id,
            lambda: self._api.ask(lambda client: client.chat_update(**arguments)),
        )

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        """What only one person saw goes away by itself."""
        channel, _ = outgoing.place_of(message.key.external_id)
        if responses.is_response(receipt.message_id):
            return
        try:
            if is_file(receipt.message_id):
                await self._files.delete(receipt.message_id)
                return
            await self._unlocked(
                channel,
                receipt.message_id,
                lambda: self._api.ask(lambda client: client.chat_delete(channel=channel, ts=receipt.message_id)),
            )
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in _GONE:
                raise

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        """Among the newest messages of the place; what only one person saw is not found."""
        me = await self._who()
        async with aclosing(self._newest(key)) as pages:
            async for messages in pages:
                found = outgoing.found_in(messages, part, me)
                if found is not None:
                    return Receipt(message_id=found)
        return None

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """By its words, below what it answers: what is begun as a stream has no token until its last form."""
        me, after = await self._who(), outgoing.asked_at(message)
        found = [
            ts async for messages in self._newest(message.key) for ts in outgoing.begun_in(messages, part, me, after)
        ]
        return Receipt(message_id=max(found, key=float)) if found else None

    async def _newest(self, key: ConversationKey) -> AsyncGenerator[list[Any], None]:
        """Pages of the newest messages of a place."""
        channel, thread = outgoing.place_of(key.external_id)
        cursor = ""
        for _ in range(_READ_BACK_PAGES):
            answer = await self._page(channel, thread, cursor)
            yield answer.get("messages") or []
            cursor = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                return

    async def _unlocked(self, channel: str, ts: str, call: Callable[[], Awaitable[AsyncSlackResponse]]) -> None:
        """*call*, on a message that does not stream (any more)."""
        if self._streams.is_open(channel, ts):
            await self._streams.stop(channel, ts)
        try:
            await call()
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in OPEN:
                raise
            await self._streams.stop(channel, ts)
            await call()

    async def _page(self, channel: str, thread: str | None, cursor: str) -> AsyncSlackResponse:
        """Messages of a place with their metadata: of a channel the newest first, of a thread the oldest."""
        page: dict[str, Any] = {"limit": _READ_BACK_MESSAGES, "include_all_metadata": True, "cursor": cursor or None}
        if thread is None:
            return await self._api.ask(lambda client: client.conversations_history(channel=channel, **page))
        return await self._api.ask(lambda client: client.conversations_replies(channel=channel, ts=thread, **page))
