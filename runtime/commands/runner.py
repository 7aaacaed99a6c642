"""Runs the commands that wait in their lane of the mailbox, and has their replies delivered."""

from __future__ import annotations

from connectors.message import AgentRuntimeError, OutboundMessage
from runtime.commands.registry import Commands
from runtime.commands.spoken import spoken
from runtime.outbox import Outbox
from runtime.turns import Batch, Envelope


class CommandTurns:
    """Answers batches of commands, as `runtime.turns.turn.Turns` does those of messages."""

    def __init__(self, commands: Commands, outbox: Outbox) -> None:
        self._commands = commands
        self._outbox = outbox

    async def answer(self, batch: Batch) -> None:
        """Run each command of *batch* and say what came of it. Raises `connectors.message.StoreUnavailable`
        and `connectors.message.Superseded`."""
        for envelope in batch.envelopes:
            message = envelope.message
            said = spoken(message)
            text = said and await self._commands.answer(said, batch.key, message, envelope.role)
            # None: it was stored by a runtime that knew the command.
            await self._say(batch, envelope, text or AgentRuntimeError.user_text)

    async def apologise(self, batch: Batch) -> None:
        """Say that something went wrong. Raises `connectors.message.StoreUnavailable`
        and `connectors.message.Superseded`."""
        for envelope in batch.envelopes:
            await self._say(batch, envelope, AgentRuntimeError.user_text)

    async def _say(self, batch: Batch, envelope: Envelope, text: str) -> None:
        message = envelope.message
        reply = OutboundMessage(
            key=batch.key,
            turn_id=batch.turn_id if len(batch.envelopes) == 1 else f"{batch.turn_id}.{message.message_id}",
            text=text,
            kind="notice",
            answers=(message.message_id,),
            reply_to=None if message.direct else message.message_id,
        )
        await self._outbox.put(reply, [envelope.address], batch.fence)
