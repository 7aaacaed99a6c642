"""What replies of commands are made of: spans, fences, items. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from connectors.message import AgentRuntimeError, Role
from runtime.commands.command import Command, CommandRefused

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
