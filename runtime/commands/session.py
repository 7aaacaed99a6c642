"""``new`` and ``stop``: a fresh start, and an end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from connectors.message import ConversationKey, Role
from grounding.memory.global_context import GlobalContexts
from grounding.memory.global_context_origin import model_in
from grounding.sessions.store import Sessions
from grounding.transcript.log import Transcript
from runtime.commands.command import Command, Invocation

FRESH = (
    "This is a new session: I no longer look at what was said here before. My notes on this conversation (`/memory`) "
    "and the documents stay. `/forget` explains how to delete them."
)
STOPPED = "Stopped."
NOTHING_TO_STOP = "I am not writing anything here."


class Session:
    """*stop* ends the answer that is being written in a conversation; False where none is."""

    def __init__(
        self,
        transcript: Transcript,
        global_contexts: GlobalContexts,
        sessions: Sessions,
        stop: Callable[[ConversationKey], Awaitable[bool]],
    ) -> None:
        self._transcript = transcript
        self._global_contexts = global_contexts
        self._sessions = sessions
        self._stop = stop

    def commands(self) -> list[Command]:
        return [
            Command(
                "new",
                "start a new session",
                self.new,
                role=Role.MEMBER,
                details="I then no longer look at what was said here before. Nothing is deleted.",
            ),
            Command("stop", "stop the answer that I am writing", self.stop, role=Role.MEMBER),
        ]

    async def new(self, invocation: Invocation) -> str:
        if await self._transcript.begin_session(invocation.key, invocation.message.message_id):
            await self._sessions.end(invocation.key)
        await self._global_contexts.begin_session(model_in(invocation.key, invocation.message.audience))
        return FRESH

    async def stop(self, invocation: Invocation) -> str:
        return STOPPED if await self._stop(invocation.key) else NOTHING_TO_STOP
