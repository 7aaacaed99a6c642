"""``memory`` and ``forget``: what the bot noted about a conversation and keeps as records, and having it forget."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from connectors.message import ConversationKey, Role
from grounding.memory.contexts import ContextDocuments
from grounding.memory.document import SECTIONS, bodies, parse, section_named
from runtime.commands.command import Command, CommandRefused, Invocation
from runtime.commands.records import DETAILS as RECORDS
from runtime.commands.records import RecordWords
from runtime.commands.wording import code
from runtime.forgetting import Forgetting

_END_SECONDS = 10.0
_LOOK_SECONDS = 0.05
NOTHING_NOTED = "I have not noted anything about this conversation yet."
EXPLAINED = (
    "`/forget last` takes the last question and its answer out of everything that I keep.\n\n"
    "`/forget all` does so with everything that was said here, and with what I noted about it (`/memory`).\n\n"
    "The records that came of what is forgotten go with it: decisions, facts, tasks and the like. "
    "`/memory forget ID` takes a single one away.\n\n"
    "What this platform itself shows and keeps is not touched, nor are the documents of the workspace. "
    "It cannot be undone."
)
LISTED = "I also keep records: `/memory list` shows them."
FORGOT_LAST = "I have forgotten the last question and its answer."
FORGOT_ALL = "I have forgotten everything that was said here."
NOTHING_TO_FORGET = "There is nothing that I could forget here."
ADMINS_ONLY = "In a group only admins can have me forget. In a direct message it is yours to say."


class Memory:
    """The context document, records, and forgetting. *stop* ends an answer that is being written, *at_hand* says which
    turn it belongs to: it is forgotten, too."""

    def __init__(
        self,
        contexts: ContextDocuments,
        records: RecordWords,
        forgetting: Forgetting,
        stop: Callable[[ConversationKey], Awaitable[bool]],
        at_hand: Callable[[ConversationKey], Awaitable[str]],
    ) -> None:
        self._contexts = contexts
        self._records = records
        self._forgetting = forgetting
        self._stop = stop
        self._at_hand = at_hand

    def commands(self) -> list[Command]:
        names = ", ".join(code(title.lower()) for title in SECTIONS)
        return [
            Command(
                "memory",
                "what I noted about this conversation, and the records that I keep",
                self.memory,
                "[section|list|show ID|…]",
                details=f"Sections: {names}.\n\n{RECORDS}",
            ),
            Command("forget", "have me forget what was said", self.forget, "[last|all]", details=EXPLAINED),
        ]

    async def memory(self, invocation: Invocation) -> str:
        if invocation.rest.partition(" ")[0].lower() in RecordWords.WORDS:
            return await self._records.run(invocation)
        noted = await self._noted(invocation)
        if invocation.rest or not await self._records.has_any(invocation):
            return noted
        return f"{noted}\n\n{LISTED}"

    async def _noted(self, invocation: Invocation) -> str:
        title = _section(invocation.rest) if invocation.rest else ""
        document = await self._contexts.latest(invocation.key)
        noted = bodies(document.text) if document else {}
        # Programs may keep a text that has none of the sections.
        loose = [part.body for part in parse(document.text) if not part.title] if document else []
        if not noted and not loose:
            return NOTHING_NOTED
        if not title:
            return "\n\n".join([*loose, *(f"**{title}**\n\n{body}" for title, body in noted.items())])
        return f"**{title}**\n\n{noted[title]}" if title in noted else f"I have noted nothing under {title}."

    async def forget(self, invocation: Invocation) -> str:
        what = invocation.rest.lower()
        if what not in ("last", "all"):
            return EXPLAINED
        if not invocation.message.direct and invocation.role is not Role.ADMIN:
            raise CommandRefused(ADMINS_ONLY)
        person = invocation.user if invocation.message.direct else None
        if what == "last":
            forgot = await self._forgetting.last(invocation.key, invocation.message.message_id, person)
            return FORGOT_LAST if forgot else NOTHING_TO_FORGET
        await self._end_of_turn(invocation.key)
        await self._forgetting.everything(invocation.key, invocation.message.message_id, person)
        return FORGOT_ALL

    async def _end_of_turn(self, key: ConversationKey) -> None:
        """Have what is being answered recorded before it is forgotten: afterwards it would be recorded all the same.

        Bounded, because a platform that takes no replies now holds its turns up.
        """
        turn_id = await self._at_hand(key)
        await self._stop(key)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while turn_id and await self._at_hand(key) == turn_id:  # noqa: ASYNC110 - any process may answer it
                    await asyncio.sleep(_LOOK_SECONDS)


def _section(wanted: str) -> str:
    """The section whose title *wanted* is, or begins. Raises `CommandRefused`."""
    found = section_named(wanted)
    if found is None:
        raise CommandRefused(f"The sections are {', '.join(code(title.lower()) for title in SECTIONS)}.")
    return found
