"""What is said now does not overtake what was missed."""

from __future__ import annotations

import asyncio

from connectors.message import Accepted, Author, ConversationKey, InboundMessage
from runtime.missed import Order

KEY = ConversationKey("acme", "slack", "D1")
OTHER = ConversationKey("acme", "slack", "D2")


def said(place: str) -> InboundMessage:
    return InboundMessage("slack", place, "m4", Author("7", "Ann"), "now", direct=True)


async def test_what_is_said_now_waits_for_what_was_missed_in_its_own_conversation_only() -> None:
    passed: list[str] = []

    async def accept(message: InboundMessage) -> Accepted:
        passed.append(message.external_id)
        return Accepted("stored")

    order = Order(accept)
    waiting = asyncio.create_task(order.accept(said("D1")))
    await asyncio.sleep(0)
    order.begin([KEY, OTHER])
    await order.accept(said("D3"))
    order.heard(OTHER)
    await order.accept(said("D2"))
    assert passed == ["D3", "D2"]

    order.heard(KEY)
    await waiting
    await order.accept(said("D1"))
    assert passed == ["D3", "D2", "D1", "D1"]
