"""A platform whose messages can be changed and taken down, and two that can tell what they were sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from connectors.connector import Accept, Capabilities, ConnectionState, Health, SendFailed
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt


class Board:
    """Its messages are known by id. A part holds eight characters; of more than three parts the rest is a file."""

    name = "board"
    capabilities = Capabilities(max_part_units=8, edits_per_second=200.0)
    health = Health(ConnectionState.CONNECTED)

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}
        self.seen: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.failures: list[SendFailed] = []

    async def run(self, accept: Accept) -> None:
        await asyncio.Event().wait()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        texts = [message.text[at : at + 8] for at in range(0, len(message.text), 8)]
        if len(texts) > 3:
            whole = OutboundPart(1, 2, message.text, f"{message.turn_id}:file", file_name="whole.md")
            return [OutboundPart(0, 2, texts[0], f"{message.turn_id}:0"), whole]
        return [OutboundPart(n, len(texts), text, f"{message.turn_id}:{n}") for n, text in enumerate(texts)]

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        if self.failures:
            raise self.failures.pop(0)
        self.tokens.append(part.token)
        receipt = Receipt(f"id{len(self.tokens)}")
        self._show(receipt, part)
        return receipt

    def edits(self, message: OutboundMessage) -> bool:
        return True

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        if self.failures:
            raise self.failures.pop(0)
        if receipt.message_id not in self.messages:
            raise SendFailed("gone", retryable=False)
        self._show(receipt, part)

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        self.messages.pop(receipt.message_id, None)

    async def close(self) -> None:
        return None

    def _show(self, receipt: Receipt, part: OutboundPart) -> None:
        self.messages[receipt.message_id] = f"[{part.file_name}]" if part.file_name else part.text
        self.seen.append(dict(self.messages))

    @property
    def shown(self) -> list[str]:
        return list(self.messages.values())


class KnowsAgain(Board):
    """A platform that shows what is sent with the same token once."""

    capabilities = replace(Board.capabilities, idempotency="nonce")

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        if part.token in self.tokens:
            return Receipt(f"id{self.tokens.index(part.token) + 1}")
        return await super().send(message, part)


class FoundAgain(Board):
    """A platform that can be asked what it shows."""

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        return Receipt(f"id{self.tokens.index(part.token) + 1}") if part.token in self.tokens else None
