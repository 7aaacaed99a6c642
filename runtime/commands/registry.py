"""Chat commands: what one is, how a message gives one, how it is run, and the Markdown of its reply.

A new command: a `Command` from its module, and its line in `runtime.commands.wiring`.
"""

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

_CLOSE = 0.6
"""How similar a misspelt word is to the command that is suggested: the default of `difflib`."""
_MAX_SUGGESTIONS = 3
_TOO_LONG = "That took too long. Please try again."
# Only at the very beginning, and only a whole word: "/etc/hosts is empty" is no command, nor is "1/2 cup".
_IN_TEXT = re.compile(r"([/!])([A-Za-z][A-Za-z0-9_-]{0,31})(?=\s|\Z)")
_AS_COMMAND = re.compile(r"\s*/?([^\s/]+)(?=\s|\Z)")
_COMMAND = re.compile(r"(?<=`)/([a-z]+)(?=[ `])")
_BACKTICKS = re.compile(r"`+")
_log = structlog.get_logger()


class CommandRefused(AgentRuntimeError):
    """The command is misspelt or not allowed. The text tells the person what to do instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message


@dataclass(frozen=True, slots=True)
class Invocation:
    """One use of a command: the place, the message, the author's role, and the text after the command's word."""

    key: ConversationKey
    message: InboundMessage
    role: Role
    rest: str

    @property
    def scope(self) -> Scope:
        """The scope of the conversation."""
        return self.key.scope

    @property
    def seen(self) -> Scope:
        """The scope with the audience of the place: what may be shown there."""
        return Scope(self.key.workspace_id, self.key.context_id, self.message.audience)

    @property
    def user(self) -> str:
        """``connector:user_id`` of the author."""
        return self.message.author.user(self.message.connector)

    @property
    def signature(self) -> str:
        """How versions and events name the author: by name if there is no person's id, as at the terminal."""
        author = self.message.author
        if author.id.startswith(CALLER_PREFIX):
            return author.name or author.id.removeprefix(CALLER_PREFIX)
        return self.user

    @property
    def idempotency_key(self) -> str:
        """The same for the same command delivered again. It names the place, because platforms number the messages of
        each place from the start."""
        return f"command:{self.key.context_id}:{self.message.message_id}"


def may_see_turn(invocation: Invocation, turn: RunContext) -> bool:
    """Return whether the author may see facts of *turn*: anybody of its conversation may, and admins in any place whose
    readers may see the answer."""
    if turn.context_id == invocation.key.context_id:
        return True
    return invocation.role is Role.ADMIN and may_see(audience_of(turn), invocation.message.audience)


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``run`` returns the reply as Markdown, or raises an `AgentRuntimeError`, whose ``user_text`` is then
    the reply.

    ``role`` is the least role of its author. A message that is delivered twice runs the command twice: that must do no
    harm.
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
        """The command as platforms list it."""
        return CommandHint(self.name, self.summary, self.arguments)


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """The word of a command, in lower case and without its mark, and the stripped text after it.

    ``sure`` is True if it came through the platform's own commands, so that it cannot be an ordinary message. ``mark``
    is ``/`` or ``!``; ``/`` if it is sure.
    """

    word: str
    rest: str
    sure: bool
    mark: str = "/"


def parse_command(message: InboundMessage) -> ParsedCommand | None:
    """Return the command in *message*, known or not; None if there is none.

    An `InboundKind.COMMAND` is one, unless its word is a path. An `InboundKind.MESSAGE` is one if its text begins with
    ``/word`` or ``!word`` and white space or nothing follows.
    """
    if message.kind is InboundKind.COMMAND:
        found = _AS_COMMAND.match(message.text)
        return found and ParsedCommand(found[1].lower(), message.text[found.end() :].strip(), sure=True)
    if message.kind is not InboundKind.MESSAGE:
        return None
    found = _IN_TEXT.match(message.text)
    return found and ParsedCommand(found[2].lower(), message.text[found.end() :].strip(), sure=False, mark=found[1])


class Commands:
    """Runs *commands*. One that takes longer than *timeout_seconds* is cancelled, and the reply says so."""

    def __init__(self, commands: Sequence[Command], timeout_seconds: float) -> None:
        self._commands = {command.name: command for command in commands}
        self._timeout_seconds = timeout_seconds

    @property
    def all(self) -> tuple[Command, ...]:
        """The commands in the order of `/help`."""
        return tuple(self._commands.values())

    def hints(self) -> tuple[CommandHint, ...]:
        """Return the commands as platforms list them."""
        return tuple(command.hint for command in self.all)

    def knows(self, word: str) -> bool:
        """Return whether *word* (lower case, without its mark) is a command."""
        return word in self._commands

    def claims(self, spoken: ParsedCommand, role: Role) -> bool:
        """Return whether `answer` has a reply: for a known command, or one that is worth a hint."""
        return spoken.word in self._commands or self._hint(spoken, role) is not None

    async def answer(
        self, spoken: ParsedCommand, key: ConversationKey, message: InboundMessage, role: Role
    ) -> str | None:
        """Run the command of *message*, whose author has *role* in *key*'s workspace, and return the reply (Markdown).

        None if it is an ordinary message: an unknown ``!word`` that is no misspelt command. An error of the command
        becomes the reply.
        """
        reply = await self._answer(spoken, key, message, role)
        return reply and self.as_written(reply, message.command_mark)

    def as_written(self, text: str, mark: str) -> str:
        """Return *text* with *mark* before the commands that it names, as people write them in the place."""
        return with_mark(text, mark, self._commands)

    async def _answer(
        self, spoken: ParsedCommand, key: ConversationKey, message: InboundMessage, role: Role
    ) -> str | None:
        command = self._commands.get(spoken.word)
        if command is None:
            hint = self._hint(spoken, role)
            if hint is not None:
                _log.info("command.run", word="unknown", role=role.value, ok=False)
            return hint
        if not role.covers(command.role):
            _log.info("command.run", word=command.name, role=role.value, ok=False)
            return role_refusal(role, command)
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

    def _hint(self, spoken: ParsedCommand, role: Role) -> str | None:
        allowed = [command.name for command in self.all if role.covers(command.role)]
        close = difflib.get_close_matches(spoken.word, allowed, _MAX_SUGGESTIONS, _CLOSE)
        if not close and spoken.mark == "!":
            return None
        meant = f" Did you mean {' or '.join(code('/' + name) for name in close)}?" if close else ""
        return f"There is no command {code(spoken.mark + spoken.word)}.{meant} {code('/help')} lists my commands."


class CommandTurns:
    """Answers batches of commands from the mailbox, as `runtime.turns.Turns` answers those of messages."""

    def __init__(self, commands: Commands, outbox: Outbox) -> None:
        self._commands = commands
        self._outbox = outbox

    async def answer(self, batch: Batch) -> None:
        """Run each command of *batch* and store its reply. Raises `connectors.message.StoreUnavailable` and
        `connectors.message.Superseded`."""
        for envelope in batch.envelopes:
            message = envelope.message
            command = parse_command(message)
            text = command and await self._commands.answer(command, batch.key, message, envelope.role)
            # None if a newer release, which knew the command, stored the message.
            await self._reply(batch, envelope, text or AgentRuntimeError.user_text)

    async def apologise(self, batch: Batch) -> None:
        """Reply that something went wrong. Raises as `answer`."""
        for envelope in batch.envelopes:
            await self._reply(batch, envelope, AgentRuntimeError.user_text)

    async def _reply(self, batch: Batch, envelope: Envelope, text: str) -> None:
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


def code(text: str) -> str:
    """Return *text* as a code span on one line."""
    flat = " ".join(text.split())
    fence = "`" * (_longest_run(flat) + 1)
    space = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{space}{flat}{space}{fence}"


def with_mark(text: str, mark: str, words: Collection[str]) -> str:
    """Return *text* with *mark* instead of ``/`` before the commands (*words*) in its code spans."""
    if mark == "/":
        return text
    return _COMMAND.sub(lambda found: mark + found[1] if found[1] in words else found[0], text)


def code_block(text: str, language: str = "") -> str:
    """Return *text* as a code block that no line of it can close."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def escape_markdown(text: str) -> str:
    """Return *text* on one line with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>#|~!@&])", r"\\\1", " ".join(text.split()))


def bullet_list(lines: Iterable[str]) -> str:
    """Return a list with one item for each of *lines*."""
    return "\n".join(f"- {line}" for line in lines)


def as_refusal(error: AgentRuntimeError) -> CommandRefused:
    """Return *error* as a reply with its full text, for admins, who can act on it."""
    return CommandRefused(str(error) or error.user_text)


def role_refusal(role: Role, command: Command) -> str:
    """Return the reply to a person whose *role* may not use *command*."""
    whom = {Role.ADMIN: "admins", Role.MEMBER: "members", Role.VIEWER: "everybody"}[command.role]
    return f"Only {whom} can use {code('/' + command.name)}. Your role here is {role.value}."


def whole_number(text: str) -> int | None:
    """Return the number from 0 to 999,999,999 in *text*, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def format_number(number: int) -> str:
    """Return *number* as ``12,345``."""
    return f"{number:,}"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 reply`` or ``2,000 replies``; *plural* is needed if it is not the noun with an ``s``."""
    return f"{format_number(number)} {noun if number == 1 else plural or noun + 's'}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
