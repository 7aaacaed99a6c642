"""``context``: show and edit the lines of the global context."""

from __future__ import annotations

from connectors.message import Role, Scope
from grounding.memory.global_context import (
    MARK,
    UNTRUSTED,
    Editor,
    EditOrigin,
    GlobalContexts,
    Line,
    LineChange,
    PendingEdit,
)
from runtime.commands.registry import (
    Command,
    CommandRefused,
    Invocation,
    bullet_list,
    code,
    escape_markdown,
    whole_number,
)

EMPTY = (
    "There are no lines here yet. `/context add TEXT` adds one: a lasting preference, habit, rule or fact. "
    "Do not add single tasks, one-time events or things that soon change."
)
DETAILS = (
    "`/context` lists the lines that I always know. `/context add TEXT` adds one, `/context replace 3 TEXT` changes "
    "line 3, `/context delete 3` deletes it. What you add in a direct message is yours and shown nowhere else. "
    "A line from a private place is shown in that place only; a line from a public channel, in the whole workspace. "
    "`/context share 3` shares a line with the workspace. `/context waiting` lists what I noted from documents or "
    "other people's words. I use it only after `/context approve 1`; `deny 1` rejects it. You decide about your own "
    "lines, admins about all others. "
    "`/context history` lists the newest edits. `/context forget`, in a direct message, deletes all your lines."
)
FORGOT = "I have deleted all your own lines, and their history."
_HINT = f"Write {code('/context add TEXT')}, {code('/context replace 3 TEXT')} or {code('/context delete 3')}."
_DIRECT_ONLY = "You can delete your own lines only in a direct message. Please send the command there."
_ADMINS = "Only admins can decide about lines of a group or of the whole workspace."
_SHOWN_EDITS = 10


class GlobalContext:
    """Shows and edits the lines that are visible in the place."""

    def __init__(self, lines: GlobalContexts) -> None:
        self._lines = lines

    def commands(self) -> list[Command]:
        return [
            Command(
                "context",
                "show and edit the lines that I always know",
                self.run,
                "[add|replace|delete|waiting|…]",
                details=DETAILS,
            )
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
            case "share":
                return await self._share(invocation, rest.strip())
            case "forget":
                return await self._forget(invocation)
            case _:
                raise CommandRefused(f"{_HINT}\n\n{DETAILS}")

    async def _show(self, invocation: Invocation) -> str:
        lines = await self._lines.open(_editor(invocation))
        shown = "\n".join(_line(line) for line in lines if line.content) or EMPTY
        waiting = [edit for scope in _scopes(invocation) for edit in await self._lines.waiting(scope)]
        if not waiting:
            return shown
        return f"{shown}\n\nWaiting for approval: {len(waiting)} ({code('/context waiting')})."

    async def _history(self, invocation: Invocation) -> str:
        edits = [edit for scope in _scopes(invocation) for edit in await self._lines.history(scope, _SHOWN_EDITS)]
        newest = sorted(edits, key=lambda edit: edit.at, reverse=True)[:_SHOWN_EDITS]
        return bullet_list(map(_edit_line, newest)) or "There are no edits here yet."

    async def _waiting(self, invocation: Invocation) -> str:
        edits = [edit for scope in _scopes(invocation) for edit in await self._lines.waiting(scope)]
        return bullet_list(map(_waiting_line, edits)) or "No edit waits for approval."

    async def _edit(self, invocation: Invocation, action: str, rest: str) -> str:
        if not invocation.role.covers(Role.MEMBER):
            raise CommandRefused(f"Only members can change lines. Your role here is {invocation.role.value}.")
        editor, by = _editor(invocation), EditOrigin(invocation.user, key=invocation.idempotency_key)
        if action == "add":
            edited = await self._lines.append(editor, rest, by)
            return f"Added as line {edited.number}."
        word, _, content = rest.partition(" ")
        number = whole_number(word)
        if number is None:
            raise CommandRefused(_HINT)
        if action == "replace":
            await self._lines.replace(editor, number, content, by)
            return f"Line {number} is changed."
        await self._lines.delete(editor, number, by)
        return f"Line {number} is deleted. The other lines keep their numbers for now."

    async def _share(self, invocation: Invocation, word: str) -> str:
        if not invocation.role.covers(Role.MEMBER):
            raise CommandRefused(f"Only members can share lines. Your role here is {invocation.role.value}.")
        number = whole_number(word)
        if number is None:
            raise CommandRefused(f"Write {code('/context share 3')}, with the number of a line.")
        content = await self._lines.share(_editor(invocation), number, EditOrigin(invocation.user))
        return f"The whole workspace can see this line now: {escape_markdown(content)}"

    async def _decide(self, invocation: Invocation, decision: str, id_: str) -> str:
        scope = _scopes(invocation)[-1]
        if id_.startswith("w"):  # in a direct message: an edit of the workspace's lines
            scope, id_ = _scopes(invocation)[0], id_.removeprefix("w")
        is_own = invocation.message.direct and scope.audience is not None
        if not is_own and invocation.role is not Role.ADMIN:
            raise CommandRefused(_ADMINS)
        decide = self._lines.approve if decision == "approve" else self._lines.deny
        await decide(scope, id_, invocation.user)
        return "Approved. I use it from now on." if decision == "approve" else "Rejected. I do not use it."

    async def _forget(self, invocation: Invocation) -> str:
        if not invocation.message.direct:
            raise CommandRefused(_DIRECT_ONLY)
        await self._lines.forget_person(invocation.seen)
        return FORGOT


def _editor(invocation: Invocation) -> Editor:
    # In each place a person has numbers of their own: those of the last list that they saw.
    return Editor(invocation.seen, "person", invocation.user)


def _scopes(invocation: Invocation) -> list[Scope]:
    """Return the workspace's scope and, if the place is private, that of its audience."""
    scope = invocation.seen
    workspace = Scope(scope.workspace_id, scope.context_id)
    return [workspace] if scope.audience is None else [workspace, scope]


def _line(line: Line) -> str:
    owner = {"workspace": "", "user": " (yours)", "place": " (this place only)"}[line.owner]
    return (
        f"{code(f'{line.number}--')} {escape_markdown(line.content)}{owner}{MARK if line.origin in UNTRUSTED else ''}"
    )


def _edit_line(edit: LineChange) -> str:
    at = edit.at[:16].replace("T", " ")
    return f"{at} UTC, {code(edit.by)}: {edit.action} {escape_markdown(edit.after or edit.before)}"


def _waiting_line(edit: PendingEdit) -> str:
    id_ = f"w{edit.id}" if edit.owner == "workspace" else edit.id
    was = f", instead of {escape_markdown(edit.before)}" if edit.action == "replace" else ""
    text = escape_markdown(edit.content or edit.before)
    return f"{code(id_)} {edit.action}: {text}{was} (from {edit.origin}, for {code(edit.author)})"
