"""``memory`` and ``forget``: what the bot noted about a conversation and keeps as records, and having it forget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from connectors.message import ConversationKey, Role
from grounding.memory.contexts import ContextDocuments
from grounding.memory.document import SECTIONS, bodies, parse, section_named
from runtime.commands.command import Command, CommandRefused, Invocation
from runtime.commands.records import DETAILS as RECORDS
from runtime.commands.records import RecordWords
from runtime.commands.wording import code
from runtime.forgetting import Forgetting

NOTHING_NOTED = "I have not noted anything about this conversation yet."
EXPLAINED = (
    "`/forget last` deletes the last question and its answer from everything that I keep.\n\n"
    "`/forget all` deletes everything that was said here, and what I noted about it (`/memory`).\n\n"
    "Records that came from it are deleted, too: decisions, facts, tasks and the like. "
    "`/memory forget ID` deletes a single record.\n\n"
    "The messages that this platform shows, and the documents of the workspace, stay. "
    "This cannot be undone."
)
LISTED = "I also keep records: `/memory list` shows them."
FORGOT_LAST = "I have forgotten the last question and its answer."
FORGOT_ALL = "I have forgotten everything that was said here."
NOTHING_TO_FORGET = "There is nothing to forget here."
ADMINS_ONLY = "In a group only admins can use this. In a direct message you can."


class Memory:
    """The context document, records, and forgetting. *end_turn* ends an answer that is being written and waits until it
    is recorded: it is forgotten, too."""

    def __init__(
        self,
        contexts: ContextDocuments,
        records: RecordWords,
        forgetting: Forgetting,
        end_turn: Callable[[ConversationKey], Awaitable[None]],
    ) -> None:
        self._contexts = contexts
        self._records = records
        self._forgetting = forgetting
        self._end_turn = end_turn

    def commands(self) -> list[Command]:
        names = ", ".join(code(title.lower()) for title in SECTIONS)
        return [
            Command(
                "memory",
                "show my notes on this conversation, and the records",
                self.memory,
                "[section|list|show ID|…]",
                details=f"Sections: {names}.\n\n{RECORDS}",
            ),
            Command("forget", "make me forget what was said", self.forget, "[last|all]", details=EXPLAINED),
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
        audience = invocation.message.audience
        if what == "last":
            forgot = await self._forgetting.last(invocation.key, invocation.message.message_id, audience)
            return FORGOT_LAST if forgot else NOTHING_TO_FORGET
        await self._end_turn(invocation.key)
        await self._forgetting.everything(invocation.key, invocation.message.message_id, audience)
        return FORGOT_ALL


def _section(wanted: str) -> str:
    """The section whose title *wanted* is, or begins. Raises `CommandRefused`."""
    found = section_named(wanted)
    if found is None:
        raise CommandRefused(f"The sections are {', '.join(code(title.lower()) for title in SECTIONS)}.")
    return found
