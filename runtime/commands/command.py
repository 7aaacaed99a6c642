"""What a chat command is, and what it is given. Adding one: a `Command` and its line in `registry.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from connectors.connector import CommandHint
from connectors.message import CALLER_PREFIX, AgentRuntimeError, ConversationKey, InboundMessage, Role, Scope, may_see
from grounding.run_context import RunContext, audience_of


class CommandRefused(AgentRuntimeError):
    """A command was misused or is not allowed; the text is for the person and says what to do instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command as it was given: where, by whom, as what, and what followed its word (stripped)."""

    key: ConversationKey
    message: InboundMessage
    role: Role
    rest: str

    @property
    def scope(self) -> Scope:
        """The conversation's workspace, seen from the conversation."""
        return self.key.scope

    @property
    def seen(self) -> Scope:
        """What is kept, as it may be seen where the command was given."""
        return Scope(self.key.workspace_id, self.key.context_id, self.message.audience)

    @property
    def user(self) -> str:
        """``connector:user_id`` of who gave it."""
        return self.message.author.user(self.message.connector)

    @property
    def signature(self) -> str:
        """How versions and events name who gave it: by name where there is no person's id, as at the terminal."""
        author = self.message.author
        if author.id.startswith(CALLER_PREFIX):
            return author.name or author.id.removeprefix(CALLER_PREFIX)
        return self.user

    @property
    def idempotency_key(self) -> str:
        """The same for the same command delivered again, and of no other: platforms number messages anew in each
        place."""
        return f"command:{self.key.context_id}:{self.message.message_id}"


def may_ask_of(invocation: Invocation, turn: RunContext) -> bool:
    """Whether who gave a command may hear of a turn: one of the same conversation, or, for admins, one whose answer may
    be seen where they ask."""
    if turn.context_id == invocation.key.context_id:
        return True
    return invocation.role is Role.ADMIN and may_see(audience_of(turn), invocation.message.audience)


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``run`` gives the reply as Markdown; it raises `CommandRefused`, `StoreUnavailable` and other
    `AgentRuntimeError`, whose ``user_text`` is then the reply.

    ``role`` is the least that its giver must be. A repeated delivery may run a command twice: running it again
    must do no harm.
    """

    name: str
    summary: str
    run: Callable[[Invocation], Awaitable[str]]
    arguments: str = ""
    role: Role = Role.VIEWER
    details: str = ""
    """Markdown that ``help NAME`` shows below the summary."""

    @property
    def hint(self) -> CommandHint:
        """How platforms show it."""
        return CommandHint(self.name, self.summary, self.arguments)
