"""``help`` and ``start``, ``new`` and ``stop``, and ``status``."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from connectors.connector import ConnectionState, Health
from connectors.message import AgentRuntimeError, ConversationKey, Role, Scope
from grounding.documents import Status as IndexStatus
from grounding.memory.global_context import GlobalContexts, model_in
from grounding.prompt import Sessions
from grounding.transcript import Transcript
from runtime.commands.registry import (
    Command,
    CommandRefused,
    Invocation,
    bullet_list,
    code,
    escape_markdown,
    format_count,
    format_number,
    role_refusal,
)
from runtime.llm import Model

FRESH = (
    "This is a new session: I no longer look at what was said here before. My notes on this conversation (`/memory`) "
    "and the documents stay. `/forget` explains how to delete them."
)
STOPPED = "Stopped."
NOTHING_TO_STOP = "I am not writing anything here."
GREETING = (
    "Hello! Ask me anything: I answer from this conversation and from the documents of this workspace. "
    "In a group, mention me or reply to me."
)
_ASK_SECONDS = 5.0
"""How long `status` waits for one answer; without one the reply says so."""


class Help:
    """Lists the commands that a person's role allows, in the order of *commands*, which may still be filled."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = commands

    def commands(self) -> list[Command]:
        return [
            Command(
                "help",
                "list my commands",
                self.help,
                "[command]",
                details="`/help model` explains the command `model`.",
            ),
            Command("start", "show a greeting and my commands", self.start),
        ]

    async def help(self, invocation: Invocation) -> str:
        word = invocation.rest.split(maxsplit=1)[0].lstrip("/!").lower() if invocation.rest else ""
        return self._one(word, invocation.role) if word else self._all(invocation)

    async def start(self, invocation: Invocation) -> str:
        return f"{GREETING}\n\n{self._all(invocation)}"

    def _all(self, invocation: Invocation) -> str:
        shown = [f"{code(_usage(command))} {command.summary}" for command in self._allowed(invocation.role)]
        both = f" {code('!')} works like {code('/')}." if invocation.message.command_mark == "/" else ""
        return f"{bullet_list(shown)}\n\n{code('/help COMMAND')} explains one.{both}"

    def _one(self, word: str, role: Role) -> str:
        command = next((command for command in self._commands if command.name == word), None)
        if command is None:
            close = difflib.get_close_matches(word, [command.name for command in self._allowed(role)], 1)
            meant = f" Did you mean {code('/' + close[0])}?" if close else f" {code('/help')} lists my commands."
            raise CommandRefused(f"There is no command {code('/' + word)}.{meant}")
        if not role.covers(command.role):
            raise CommandRefused(role_refusal(role, command))
        return "\n\n".join(filter(None, (f"{code(_usage(command))} {command.summary}", command.details)))

    def _allowed(self, role: Role) -> list[Command]:
        return [command for command in self._commands if role.covers(command.role)]


def _usage(command: Command) -> str:
    return f"/{command.name} {command.arguments}".strip()


class Session:
    """Begins a new session, or stops the answer. *stop* returns False if none is being written."""

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


class Status:
    """Shows the health of the *stores*, the *connectors* and a workspace's *index*, and the person's role."""

    def __init__(
        self,
        model: Model,
        stores: Callable[[], Awaitable[Mapping[str, Health]]],
        connectors: Callable[[], Mapping[str, Health]],
        index: Callable[[Scope], Awaitable[IndexStatus]],
    ) -> None:
        self._model = model
        self._stores = stores
        self._connectors = connectors
        self._index = index

    def commands(self) -> list[Command]:
        return [
            Command("status", "check my connections", self.status, details="Admins also see the reason for a problem.")
        ]

    async def status(self, invocation: Invocation) -> str:
        details = invocation.role is Role.ADMIN
        lines = [f"model: {code(self._model.name)}"]
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                lines += [_line(name, health, details) for name, health in (await self._stores()).items()]
        except TimeoutError:
            lines.append("stores: no answer")
        lines += [_line(name, health, details) for name, health in self._connectors().items()]
        lines.append(await self._documents(Scope(invocation.key.workspace_id), details))
        return f"{bullet_list(lines)}\n\n{_you(invocation)}"

    async def _documents(self, scope: Scope, details: bool) -> str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                status = await self._index(scope)
        except (AgentRuntimeError, TimeoutError) as error:
            return "documents: cannot be searched now" + (
                f" ({escape_markdown(str(error))})" if details and str(error) else ""
            )
        waiting = f", {status.pending} still to be indexed" if status.pending else ""
        deeper = f", {format_count(status.shallow, 'passage')} not yet in the deep index" if status.shallow else ""
        return f"documents: {format_number(status.documents)} can be searched{waiting}{deeper}"


def _you(invocation: Invocation) -> str:
    # A person's id is shown as settings and `access` take it.
    author, role = invocation.message.author, invocation.role
    called = f" ({escape_markdown(author.name)})" if author.name and author.name != invocation.signature else ""
    return f"You are {code(invocation.signature)}{called}, {'an' if role is Role.ADMIN else 'a'} {role.value} here."


def _line(name: str, health: Health, details: bool) -> str:
    why = (
        f" ({escape_markdown(health.why)})"
        if details and health.why and health.state is not ConnectionState.CONNECTED
        else ""
    )
    return f"{name}: {health.state}{why}"
