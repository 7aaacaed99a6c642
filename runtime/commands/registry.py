"""The commands that there are, and the door through which they are given."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Sequence

import structlog

from connectors.connector import CommandHint
from connectors.message import AgentRuntimeError, ConversationKey, InboundMessage, Role
from runtime.commands.command import Command, Invocation
from runtime.commands.spoken import Spoken
from runtime.commands.wording import code, marked, not_for

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
