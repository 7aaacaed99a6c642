"""What people do with the lines that are always known, by command."""

from __future__ import annotations

from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, InboundMessage, Role, Scope
from grounding.memory.global_context import Editor, GlobalContexts
from grounding.prompt_input import load_tokens
from runtime.commands.global_context import GlobalContext
from runtime.commands.registry import Invocation


def said(rest: str, *, place: str, message_id: str = "5") -> Invocation:
    message = InboundMessage("telegram", place, message_id, Author("7", "Kai"), "", direct=False, public=True)
    return Invocation(ConversationKey("acme", "telegram", place), message, Role.ADMIN, rest)


async def test_messages_of_one_number_in_two_chats_are_two_edits_and_one_delivered_twice_is_one(redis: Redis) -> None:
    """Telegram numbers the messages of each chat from one on."""
    lines = GlobalContexts(redis, load_tokens(), max_tokens=760, idle_seconds=1800)
    context = GlobalContext(lines)
    for place in ("-1", "-2", "-2"):
        await context.run(said(f"add said in {place}", place=place))

    assert [line.content for line in await lines.open(Editor(Scope("acme"), "api"))] == ["said in -1", "said in -2"]
