"""``context``: the lines that the bot always knows, for people to see and change."""

from __future__ import annotations

from connectors.message import Role, Scope
from grounding.memory.global_context import GlobalContexts
from grounding.memory.global_context_lines import MARK, UNTRUSTED, By, Editor, Line, Waiting
from runtime.commands.command import Command, CommandRefused, Invocation
from runtime.commands.wording import code, items, plain

EMPTY = (
    "I always know nothing in particular here yet. Lasting preferences, patterns, constraints and background belong "
    "here: `/context add TEXT`. Single tasks, one-time facts and what will soon change do not."
)
DETAILS = (
    "`/context` lists the lines of every prompt, `/context add TEXT` adds one, `/context replace 3 TEXT` and "
    "`/context delete 3` change one. In a direct message what you add is yours alone and shown nowhere else; in groups "
    "it is the workspace's. `/context waiting` lists what I noted from documents or other people's words and use "
    "only when somebody says `/context approve 1` (or `deny 1`): you for your own lines, admins for the workspace's. "
    "`/context history` lists the newest edits. `/context forget`, in a direct message, takes away all lines of yours."
)
FORGOT = "I have forgotten all lines of your own, and what they once were."
_HINT = f"Say {code('/context add TEXT')}, {code('/context replace 3 TEXT')} or {code('/context delete 3')}."
_DIRECT_ONLY = "Your own lines are for direct messages: say it there."
_ADMINS = "Lines of the workspace are approved by admins."
_SHOWN_EDITS = 10


class GlobalContext:
    """What a person may do with the lines in view where they say it."""

    def __init__(self, lines: GlobalContexts) -> None:
        self._lines = lines

    def commands(self) -> list[Command]:
        return [
            Command("context", "what I always know here", self.run, "[add|replace|delete|waiting|…]", details=DETAILS)
        ]

    async def run(self, invocation: Invocation) -> str:
        word, _, rest = invocation.rest.partition(" ")
        match word.lower():
            case "":
                return await self._show(invocation)
            case "history":
                return await self._history(invocation)
            case "waiting":
                return await self._waiting(invocation)
            case "add" | "replace" | "delete" as action:
                return await self._edit(invocation, action, rest.strip())
            case "approve" | "deny" as decision:
                return await self._decide(invocation, decision, rest.strip())
            case "forget":
                return await self._forget(invocation)
            case _:
                raise CommandRefused(f"{_HINT}\n\n{DETAILS}")

    async def _show(self, invocation: Invocation) -> str:
        lines = await self._lines.open(_editor(invocation))
        said = "\n".join(_shown(line) for line in lines if line.content) or EMPTY
        waits = [one for scope in _scopes(invocation) for one in await self._lines.waiting(scope)]
        return f"{said}\n\n{len(waits)} more wait for approval: {code('/context waiting')}." if waits else said

    async def _history(self, invocation: Invocation) -> str:
        found = [one for scope in _scopes(invocation) for one in await self._lines.history(scope, _SHOWN_EDITS)]
        newest = sorted(found, key=lambda one: one.at, reverse=True)[:_SHOWN_EDITS]
        return (
            items(
                f"{one.at[:16].replace('T', ' ')} UTC, {code(one.by)}: {one.action} {plain(one.after or one.before)}"
                for one in newest
            )
            or "Nothing was ever changed here."
        )

    async def _waiting(self, invocation: Invocation) -> str:
        found = [one for scope in _scopes(invocation) for one in await self._lines.waiting(scope)]
        return items(map(_waits, found)) or "Nothing waits for approval."

    async def _edit(self, invocation: Invocation, action: str, rest: str) -> str:
        if not invocation.role.covers(Role.MEMBER):
            raise CommandRefused(f"To change lines is for members, and you are here as a {invocation.role.value}.")
        editor, by = _editor(invocation), By(invocation.user, key=invocation.idempotency_key)
        if action == "add":
            edited = await self._lines.append(editor, rest, by)
            return f"Kept as line {edited.number}."
        number, _, content = rest.partition(" ")
        if not (number.isascii() and number.isdecimal() and len(number) <= 9):
            raise CommandRefused(_HINT)
        if action == "replace":
            await self._lines.replace(editor, int(number), content, by)
            return f"Line {int(number)} is changed."
        await self._lines.delete(editor, int(number), by)
        return f"Line {int(number)} is gone. The other numbers stay for now."

    async def _decide(self, invocation: Invocation, decision: str, id_: str) -> str:
        scope = _scopes(invocation)[-1]
        if id_.startswith("w"):  # of the workspace, said in a direct message
            scope, id_ = _scopes(invocation)[0], id_.removeprefix("w")
        if scope.user is None and invocation.role is not Role.ADMIN:
            raise CommandRefused(_ADMINS)
        act = self._lines.approve if decision == "approve" else self._lines.deny
        await act(scope, id_, invocation.user)
        return "It holds from now on." if decision == "approve" else "It is dropped."

    async def _forget(self, invocation: Invocation) -> str:
        scope = _scopes(invocation)[-1]
        if scope.user is None:
            raise CommandRefused(_DIRECT_ONLY)
        await self._lines.forget_person(scope)
        return FORGOT


def _editor(invocation: Invocation) -> Editor:
    """Each person has numbers of their own in a place: those of the list that they were shown last."""
    return Editor(_scope(invocation), "person", invocation.user)


def _scope(invocation: Invocation) -> Scope:
    person = invocation.user if invocation.message.direct else None
    return Scope(invocation.key.workspace_id, invocation.key.context_id, person)


def _scopes(invocation: Invocation) -> list[Scope]:
    """The workspace, and in a direct message the person."""
    scope = _scope(invocation)
    workspace = Scope(scope.workspace_id, scope.context_id)
    return [workspace] if scope.user is None else [workspace, scope]


def _shown(line: Line) -> str:
    own = " (yours)" if line.owner == "user" else ""
    return f"{code(f'{line.number}--')} {plain(line.content)}{own}{MARK if line.origin in UNTRUSTED else ''}"


def _waits(one: Waiting) -> str:
    id_ = f"w{one.id}" if one.owner == "workspace" else one.id
    was = f", instead of {plain(one.before)}" if one.action == "replace" else ""
    return (
        f"{code(id_)} {one.action}: {plain(one.content or one.before)}{was} (from {one.origin}, for {code(one.author)})"
    )
