"""What a chat command is, and what it is given. Adding one: a `Command` and its line in `registry.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from connectors.connector import CommandHint
from connectors.message import AgentRuntimeError, ConversationKey, InboundMessage, Role, Scope


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
    def user(self) -> str:
        """``connector:user_id`` of who gave it."""
        return self.message.author.user(self.message.connector)

    @property
    def idempotency_key(self) -> str:
        """The same for the same command delivered again, and of no other: platforms number messages anew in each
        place."""
        return f"command:{self.key.context_id}:{self.message.message_id}"


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
