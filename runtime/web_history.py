"""What the chat page shows of a conversation when it is opened."""

from __future__ import annotations

from connectors.message import ConversationKey, OutboundMessage
from connectors.web.sessions import Said
from grounding.transcript.entry import Entry, EntryRole
from grounding.transcript.log import Transcript
from runtime.outbox import Outbox
from runtime.replies import NOTHING_SAID


async def recent(transcript: Transcript, outbox: Outbox, key: ConversationKey, limit: int) -> list[Said]:
    """The last *limit* messages of the conversation, oldest first; replies with their notes while those are kept. An
    answer that was stopped before its first word was not shown when it ended, and is not now.

    Raises `connectors.message.StoreUnavailable`.
    """
    tail = [one for one in await transcript.tail(key, limit) if not _is_silent(one)]
    return [await _said(outbox, key, entry) for entry in tail]


def _is_silent(entry: Entry) -> bool:
    return entry.role is EntryRole.OUTBOUND and entry.text == NOTHING_SAID


async def _said(outbox: Outbox, key: ConversationKey, entry: Entry) -> Said:
    if entry.role is EntryRole.INBOUND:
        return Said(entry.message_id, entry.text, entry.at)
    reply = await outbox.load(key, entry.turn_id)
    if reply is None or reply.text != entry.text:  # notes of another text than the one that is shown say nothing
        reply = OutboundMessage(key, entry.turn_id, entry.text)
    return Said("", entry.text, entry.at, reply)
