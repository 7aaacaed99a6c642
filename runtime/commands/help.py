"""``help`` and ``start``: what the bot can be told to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from connectors.message import Role
from runtime.commands.command import Command, CommandRefused, Invocation
from runtime.commands.wording import code, items, not_for

GREETING = (
    "Hello! Ask me anything: I answer from this conversation and from the documents of this workspace. "
    "In a group, mention me or reply to me."
)


class Help:
    """What there is for a person of some role. *commands* gives all, in the order in which they are shown."""

    def __init__(self, commands: Callable[[], Sequence[Command]]) -> None:
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
        return f"{items(shown)}\n\n{code('/help COMMAND')} explains one.{both}"

    def _one(self, word: str, role: Role) -> str:
        command = next((one for one in self._commands() if one.name == word), None)
        if command is None:
            close = difflib.get_close_matches(word, [one.name for one in self._allowed(role)], 1)
            meant = f" Did you mean {code('/' + close[0])}?" if close else f" {code('/help')} lists my commands."
            raise CommandRefused(f"There is no command {code('/' + word)}.{meant}")
        if not role.covers(command.role):
            raise CommandRefused(not_for(role, command))
        return "\n\n".join(filter(None, (f"{code(_usage(command))} {command.summary}", command.details)))

    def _allowed(self, role: Role) -> list[Command]:
        return [command for command in self._commands() if role.covers(command.role)]


def _usage(command: Command) -> str:
    return f"/{command.name} {command.arguments}".strip()
