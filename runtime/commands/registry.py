"""The commands that there are, and the door through which they are given."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from connectors.connector import CommandHint
from connectors.message import (
    CALLER_PREFIX,
    AgentRuntimeError,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    Role,
    Scope,
    may_see,
)
from grounding.prompt_input import RunContext, audience_of
from runtime.delivery import Outbox
from runtime.turns import Batch, Envelope

# ---- command ----
#
# What a chat command is, and what it is given. Adding one: a `Command` and its line in `registry.py`.


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


# ---- spoken ----
#
# Whether a message is a command. Pure.


# Only at the very beginning, and only a whole word: "/etc/hosts is empty" is no command, nor is "1/2 cup".
_IN_TEXT = re.compile(r"([/!])([A-Za-z][A-Za-z0-9_-]{0,31})(?=\s|\Z)")
_GIVEN = re.compile(r"\s*/?([^\s/]+)(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class Spoken:
    """The word of a command, in lower case and without its mark, and what followed it, stripped.

    ``sure`` says that it was given by the platform's own means, so that it cannot be meant as a message.
    ``mark`` is ``/`` or ``!``; ``/`` where it is sure.
    """

    word: str
    rest: str
    sure: bool
    mark: str = "/"


def spoken(message: InboundMessage) -> Spoken | None:
    """The command that *message* gives, known or not; None for everything else.

    A `InboundKind.COMMAND` is one for sure, unless its word is a path. The text of a `InboundKind.MESSAGE` is one where
    it begins with ``/word`` or ``!word``, with nothing before it and white space or nothing after it.
    """
    if message.kind is InboundKind.COMMAND:
        given = _GIVEN.match(message.text)
        return given and Spoken(given[1].lower(), message.text[given.end() :].strip(), sure=True)
    if message.kind is not InboundKind.MESSAGE:
        return None
    found = _IN_TEXT.match(message.text)
    return found and Spoken(found[2].lower(), message.text[found.end() :].strip(), sure=False, mark=found[1])


# ---- wording ----
#
# What replies of commands are made of: spans, fences, items. Pure.


_COMMAND = re.compile(r"(?<=`)/([a-z]+)(?=[ `])")
_BACKTICKS = re.compile(r"`+")


def code(text: str) -> str:
    """*text* as a code span on one line, whatever it holds."""
    flat = " ".join(text.split())
    fence = "`" * (_longest_run(flat) + 1)
    space = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{space}{flat}{space}{fence}"


def marked(text: str, mark: str, words: Collection[str]) -> str:
    """*text* with the commands (*words*) in its code spans, written with ``/``, as people write them: with *mark*."""
    if mark == "/":
        return text
    return _COMMAND.sub(lambda found: mark + found[1] if found[1] in words else found[0], text)


def fenced(text: str, language: str = "") -> str:
    """*text* as a code block that no line of it can close."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def plain(text: str) -> str:
    """*text* on one line, in which no character means anything to Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!@&])", r"\\\1", " ".join(text.split()))


def items(lines: Iterable[str]) -> str:
    """A list, one item for each of *lines*."""
    return "\n".join(f"- {line}" for line in lines)


def refused(error: AgentRuntimeError) -> CommandRefused:
    """*error* with its own words as what the person is told: for admins, who can do something about it."""
    return CommandRefused(str(error) or error.user_text)


def not_for(role: Role, command: Command) -> str:
    """What somebody with *role* is told who may not use *command*."""
    whom = {Role.ADMIN: "admins", Role.MEMBER: "members", Role.VIEWER: "everybody"}[command.role]
    return f"Only {whom} can use {code('/' + command.name)}. Your role here is {role.value}."


def thousands(number: int) -> str:
    """``12,345``."""
    return f"{number:,}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 reply``, ``2,000 replies``: *plural* where it is more than an ``s``."""
    return f"{thousands(number)} {noun if number == 1 else plural or noun + 's'}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


# ---- registry ----


_CLOSE = 0.6
"""How alike a misspelt word is to a command that is suggested: `difflib`'s ratio, its own default."""
_MAX_SUGGESTIONS = 3
_TOO_LONG = "That took too long. Please try again."
_log = structlog.get_logger()


class Commands:
    """All *commands*. One that takes longer than *timeout_seconds* is given up, and the person told."""

    def __init__(self, commands: Sequence[Command], timeout_seconds: float) -> None:
        self._commands = {command.name: command for command in commands}
        self._timeout_seconds = timeout_seconds

    @property
    def all(self) -> tuple[Command, ...]:
        """The commands, in the order in which they are shown."""
        return tuple(self._commands.values())

    def hints(self) -> tuple[CommandHint, ...]:
        """What platforms show of them."""
        return tuple(command.hint for command in self.all)

    def knows(self, word: str) -> bool:
        """Whether *word* (lower case, without its mark) is a command."""
        return word in self._commands

    def claims(self, spoken: Spoken, role: Role) -> bool:
        """Whether `answer` has a reply: a known command, or one that is worth a hint."""
        return spoken.word in self._commands or self._hint(spoken, role) is not None

    async def answer(self, spoken: Spoken, key: ConversationKey, message: InboundMessage, role: Role) -> str | None:
        """The reply (Markdown) to the command that *message* gave, whose author has *role* in *key*'s workspace.

        None where the message is to be taken as an ordinary one: an unknown ``!word`` that is no misspelt command.
        Raises nothing of the command's own: what went wrong is the reply.
        """
        reply = await self._answer(spoken, key, message, role)
        return reply and self.as_written(reply, message.command_mark)

    def as_written(self, text: str, mark: str) -> str:
        """*text*, which may name commands, for those who read it where people write *mark* before a command's word."""
        return marked(text, mark, self._commands)

    async def _answer(self, spoken: Spoken, key: ConversationKey, message: InboundMessage, role: Role) -> str | None:
        command = self._commands.get(spoken.word)
        if command is None:
            hint = self._hint(spoken, role)
            if hint is not None:
                _log.info("command.run", word="unknown", role=role.value, ok=False)
            return hint
        if not role.covers(command.role):
            _log.info("command.run", word=command.name, role=role.value, ok=False)
            return not_for(role, command)
        reply, ok = await self._run(command, Invocation(key, message, role, spoken.rest))
        _log.info("command.run", word=command.name, role=role.value, ok=ok)
        return reply

    async def _run(self, command: Command, invocation: Invocation) -> tuple[str, bool]:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await command.run(invocation), True
        except AgentRuntimeError as error:
            return error.user_text, False
        except TimeoutError:
            return _TOO_LONG, False
        except Exception:  # noqa: BLE001 - one broken command must not stop the platform's messages; it is logged whole
            _log.exception("command.broke", word=command.name)
            return AgentRuntimeError.user_text, False

    def _hint(self, spoken: Spoken, role: Role) -> str | None:
        allowed = [command.name for command in self.all if role.covers(command.role)]
        close = difflib.get_close_matches(spoken.word, allowed, _MAX_SUGGESTIONS, _CLOSE)
        if not close and spoken.mark == "!":
            return None
        meant = f" Did you mean {' or '.join(code('/' + name) for name in close)}?" if close else ""
        return f"There is no command {code(spoken.mark + spoken.word)}.{meant} {code('/help')} lists my commands."


# ---- runner ----
#
# Runs the commands that wait in their lane of the mailbox, and has their replies delivered.


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
