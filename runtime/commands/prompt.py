"""``prompt``: a workspace's directives, their versions, and rolling back, for its admins."""

from __future__ import annotations

import re
from dataclasses import dataclass

from connectors.message import Role, Scope
from promptpolicy.directives import NoSuchVersion, Origin, Version
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Level, Place, PolicyTooLarge, Slot
from promptpolicy.publishing import Publisher, VersionMoved
from runtime.commands.registry import (
    Command,
    CommandRefused,
    Invocation,
    as_refusal,
    bullet_list,
    code,
    code_block,
    escape_markdown,
    whole_number,
)

SHOWN_VERSIONS = 10
SHOWN_CHARACTERS = 80
"""How much of a directive's first line the list shows."""
DETAILS = """\
- `/prompt` lists all directives; `/prompt show soul` (or `system`, `skill NAME`, `cues`, `frames`) shows one
- `/prompt set soul TEXT` sets one; TEXT may have several lines
- `/prompt history soul`, `/prompt diff soul 1 2`, `/prompt rollback soul 1`, `/prompt clear soul`

Without a kind, `system` is meant. Directives hold in the whole workspace. `context` before the kind means this \
conversation only: `/prompt set context soul TEXT`."""
_GLOBAL = "Directives for all workspaces can only be changed on the server, with `agent-runtime prompt`."
_ORIGIN: Origin = "command"
_HINT = f"Write it like this:\n\n{DETAILS}"
_WORD = re.compile(r"(\S+)\s*")
_ERRORS = (InvalidDirective, PolicyTooLarge, NoSuchVersion, VersionMoved)
"""The errors whose text tells an admin what to do."""


@dataclass(frozen=True, slots=True)
class _Request:
    """The action, the slot that it is for, and the text after them."""

    action: str
    slot: Slot
    rest: str


class Prompts:
    """Shows and changes directives. *publisher* checks and stores them."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def commands(self) -> list[Command]:
        return [
            Command(
                "prompt",
                "show and change how I must behave (directives)",
                self.prompt,
                "list|show|set|history|diff|rollback|clear …",
                role=Role.ADMIN,
                details=DETAILS,
            )
        ]

    async def prompt(self, invocation: Invocation) -> str:
        try:
            request = _parse(invocation)
            match request.action:
                case "list":
                    return await self._list(invocation.scope)
                case "show":
                    return await self._show(request)
                case "set":
                    return await self._set(request, invocation.signature)
                case "history":
                    return await self._history(request)
                case "diff":
                    return await self._diff(request)
                case "rollback":
                    return await self._rollback(request, invocation.signature)
                case _:
                    return await self._clear(request, invocation.signature)
        except _ERRORS as error:
            raise as_refusal(error) from error

    async def _list(self, scope: Scope) -> str:
        versions = await self._publisher.holding(scope)
        lines = [_line(version) for version in versions]
        homes = (EVERYWHERE, Place(Scope(scope.workspace_id)))
        notes = [note for home in homes for note in await self._publisher.refused(home)]
        lines += [
            f"Not published: {code(note.path)}: {escape_markdown(note.why)}. To do: {escape_markdown(note.advice)}."
            for note in notes
        ]
        if not versions:
            lines.insert(0, f"No directive is set. {code('/prompt set system TEXT')} sets one.")
        return f"{bullet_list(lines)}\n\n{code('/prompt show KIND')} shows the text of one."

    async def _show(self, request: _Request) -> str:
        latest = await self._publisher.directives.latest(request.slot)
        if latest is None or latest.text is None:
            how = code(f"/prompt set {_words(request.slot)} TEXT")
            return f"There is no {escape_markdown(request.slot.label)}. {how} sets one."
        return f"{_headed(latest)}\n\n{code_block(latest.text)}"

    async def _set(self, request: _Request, author: str) -> str:
        _check_place(request.slot)
        if not request.rest:
            raise CommandRefused(f"The text is missing: {code('/prompt set ' + _words(request.slot) + ' TEXT')}.")
        version = await self._publisher.publish(request.slot, request.rest, author=author, origin=_ORIGIN)
        return f"{_headed(version)} It holds from the next message on."

    async def _history(self, request: _Request) -> str:
        versions = await self._publisher.directives.history(request.slot, SHOWN_VERSIONS)
        if not versions:
            return f"There has never been a {escape_markdown(request.slot.label)}."
        return f"{escape_markdown(request.slot.label)}, the newest first:\n\n{bullet_list(map(_row, versions))}"

    async def _diff(self, request: _Request) -> str:
        numbers = request.rest.split()
        if len(numbers) != 2:
            raise CommandRefused(
                f"Give two versions, for example {code('/prompt diff ' + _words(request.slot) + ' 1 2')}."
            )
        changed = await self._publisher.diff(request.slot, _number(numbers[0]), _number(numbers[1]))
        return code_block(changed, "diff") if changed else "There is no difference."

    async def _rollback(self, request: _Request, author: str) -> str:
        _check_place(request.slot)
        restored = _number(request.rest)
        version = await self._publisher.rollback(request.slot, restored, author=author, origin=_ORIGIN)
        if version.text is None:
            return f"{_headed(version)} It is cleared, as in version {restored}."
        return f"{_headed(version)} The text of version {restored} is in force from the next message on."

    async def _clear(self, request: _Request, author: str) -> str:
        _check_place(request.slot)
        if await self._publisher.clear(request.slot, author=author, origin=_ORIGIN) is None:
            return f"There has never been a {escape_markdown(request.slot.label)}."
        shows = code(f"/prompt history {_words(request.slot)}")
        return f"The {escape_markdown(request.slot.label)} is removed. {shows} shows its versions."


def _parse(invocation: Invocation) -> _Request:
    """Parse the command. Raises `CommandRefused` and `promptpolicy.policy.InvalidDirective`."""
    action, rest = _next(invocation.rest)
    action = action.lower() or "list"
    if action == "show" and not rest:
        action = "list"
    if action not in ("list", "show", "set", "history", "diff", "rollback", "clear"):
        raise CommandRefused(_HINT)
    level, kind, name = Level.WORKSPACE.value, "", ""
    word, after = _next(rest)
    if word.lower() in list(Level) and _next(after)[0].lower() in list(Kind):
        level, rest = word.lower(), after
        word, after = _next(rest)
    if word.lower() in list(Kind):
        kind, rest = word.lower(), after
    elif action in ("set", "clear"):
        raise CommandRefused(
            f"Give the kind: {code(f'/prompt {action} soul …')}, system, skill NAME, cues or frames.\n\n{DETAILS}"
        )
    if kind == Kind.SKILL:
        name, rest = _next(rest)
        if not name:
            raise CommandRefused(f"Give the name of the skill, for example {code(f'/prompt {action} skill refunds')}.")
    if rest and action in ("list", "show", "history", "clear"):
        raise CommandRefused(_HINT)
    return _Request(action, Slot.named(level, kind or Kind.SYSTEM.value, name, invocation.scope), rest)


def _next(text: str) -> tuple[str, str]:
    """Return the first word of *text*, and the text after it with its line breaks."""
    found = _WORD.match(text)
    return (found[1], text[found.end() :]) if found else ("", "")


def _number(text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise CommandRefused(f"A version is a whole number; {code('/prompt history')} lists them.")
    return number


def _check_place(slot: Slot) -> None:
    if slot.place.level is Level.GLOBAL:
        raise CommandRefused(_GLOBAL)


def _words(slot: Slot) -> str:
    level = [] if slot.place.level is Level.WORKSPACE else [slot.place.level.value]
    return " ".join([*level, slot.kind.value, *([slot.name] if slot.name else [])])


def _headed(version: Version) -> str:
    return f"{escape_markdown(version.slot.label)} is at version {version.version}, by {code(version.author)}."


def _line(version: Version) -> str:
    beginning = (version.text or "").partition("\n")[0]
    shown = beginning if len(beginning) <= SHOWN_CHARACTERS else f"{beginning[:SHOWN_CHARACTERS]}…"
    label = escape_markdown(version.slot.label)
    return f"{label}: version {version.version}, by {code(version.author)}: {escape_markdown(shown)}"


def _row(version: Version) -> str:
    what = "taken away" if version.text is None else f"{version.bytes} bytes"
    again = f", version {version.restores} again" if version.restores else ""
    return f"{version.version}: {what}{again}, by {code(version.author)}, {version.at:%Y-%m-%d %H:%M} UTC"
