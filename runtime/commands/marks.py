"""``good``, ``bad`` and ``unmark``: what people say of a reply."""

from __future__ import annotations

from functools import partial

from connectors.message import Role, Scope
from grounding.memory.karma.marks import Marked, Sign
from grounding.transcript.log import Transcript
from runtime.commands.command import Command, CommandRefused, Invocation, may_ask_of
from runtime.commands.wording import code
from runtime.marking import By, Marking
from runtime.turns import Manifests, UnknownTurn

NOT_ALLOWED = "You may not mark answers here."
NOTHING_SAID = "I have not answered anything here yet."
NOT_MINE = "The message that you replied to is not an answer of mine, or it is too old."
UNKNOWN = "I do not know this turn. The turn id is wrong, or the turn is too old."
GOOD = "Marked as good: I use this answer as an example."
BAD = "Marked as bad: I do not use this answer as an example."
TAKEN_BACK = "Your mark is removed."
NOTHING_TO_TAKE_BACK = "You have not marked that answer."
_MEANT = "Reply to one of my answers with the command, or I take my last answer here. You can also give a turn id."


class Marks:
    """The commands. A reaction says the same, and is less to write."""

    def __init__(self, transcript: Transcript, manifests: Manifests, marking: Marking) -> None:
        self._transcript = transcript
        self._manifests = manifests
        self._marking = marking

    def commands(self) -> list[Command]:
        return [
            Command(
                "good",
                "mark my last answer as good",
                partial(self._mark, sign="good"),
                "[turn]",
                role=Role.MEMBER,
                details=f"I use it as an example for similar questions. {_MEANT} `/unmark` removes your mark.",
            ),
            Command(
                "bad",
                "mark my last answer as bad",
                partial(self._mark, sign="bad"),
                "[turn]",
                role=Role.MEMBER,
                details=f"I do not use it as an example, also if others marked it as good. {_MEANT} "
                "`/unmark` removes your mark.",
            ),
            Command(
                "unmark",
                "remove your mark from my last answer",
                partial(self._mark, sign=None),
                "[turn]",
                role=Role.MEMBER,
                details=_MEANT,
            ),
        ]

    async def _mark(self, invocation: Invocation, sign: Sign | None) -> str:
        by = By(invocation.user, invocation.role, "command", is_vouched_for=invocation.message.is_vouched_for)
        if not self._marking.may(by, invocation.key):
            raise CommandRefused(NOT_ALLOWED)
        turn_id = await self._meant(invocation)
        if sign is None and await self._has_none(invocation, turn_id):
            return f"{NOTHING_TO_TAKE_BACK}\n\nTurn {code(turn_id)}"
        try:
            marked = await self._marking.commanded(invocation.key, turn_id, by, sign, invocation.idempotency_key)
        except UnknownTurn:
            raise CommandRefused(UNKNOWN) from None
        return f"{_said(marked, invocation.user)}\n\nTurn {code(turn_id)}"

    async def _has_none(self, invocation: Invocation, turn_id: str) -> bool:
        """Whether there is no mark of theirs, nor was one that this very command took back."""
        marked = await self._marking.of_turn(Scope(invocation.key.workspace_id), turn_id)
        opinion = marked.opinion_of(invocation.user) if marked else None
        return opinion is None or (opinion.mark is None and opinion.command != invocation.idempotency_key)

    async def _meant(self, invocation: Invocation) -> str:
        """The turn that is meant. Raises `CommandRefused` where there is none, or none that is theirs to mark."""
        key, named, quote = invocation.key, invocation.rest.strip("`"), invocation.message.quote
        if named:
            try:
                manifest = await self._manifests.get(Scope(key.workspace_id), named)
            except UnknownTurn:
                raise CommandRefused(UNKNOWN) from None
            if not may_ask_of(invocation, manifest.context):
                raise CommandRefused(UNKNOWN)
            return named
        if quote is not None and quote.message_id:
            if turn_id := await self._marking.turn_of(key, quote.message_id):
                return turn_id
            raise CommandRefused(NOT_MINE)
        if turn_id := await self._transcript.last_turn(key):
            return turn_id
        raise CommandRefused(NOTHING_SAID)


def _said(marked: Marked, user: str) -> str:
    mark = marked.opinion_of(user).mark
    return {"good": GOOD, "bad": BAD}[mark] if mark else TAKEN_BACK
