"""The model's three tools for the global context."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Literal

from pydantic import Field

from grounding.memory.global_context.lines import (
    Editor,
    EditOrigin,
    EditResult,
    GlobalContextRefused,
    Origin,
    foreign_in,
    model_in,
    must_wait,
)
from grounding.memory.global_context.store import GlobalContexts
from grounding.prompt_input import audience_of
from grounding.tools import Arguments, Call, Tool, ToolRefused

Approval = Literal["untrusted", "always", "never"]
_CHANGES = partial(Tool, scopes=frozenset({"global-context:write"}), repeatable=True)
_LINE = Field(ge=0, description="The number before the line in <global-context>.")
_CONTENT = Field(
    min_length=1,
    max_length=4000,
    description="One short line that will still be true in weeks, e.g. 'Prefers deep work in the mornings'.",
)


class AppendContext(Arguments):
    content: str = _CONTENT


class ReplaceContext(Arguments):
    line: int = _LINE
    content: str = _CONTENT


class DeleteContext(Arguments):
    line: int = _LINE


def append_context(lines: GlobalContexts, approval: Approval) -> Tool[AppendContext]:
    """Return the tool that adds a line for the conversation's readers: the person, the place, or the workspace."""

    async def run(call: Call, arguments: AppendContext) -> str:
        by, waits = _by(call, approval, arguments.content)
        return await _message_about(lines.append(_editor(call), arguments.content, by, waits=waits), "added as line {}")

    return _CHANGES(
        "append_context",
        "Add a line to the global context, which is shown to you in every conversation. For lasting preferences, "
        "patterns, constraints and background that you learned about the people here, said or noticed. Not for single "
        "tasks and events, one-time facts, or what will soon change. Replace a line that says nearly the same instead.",
        AppendContext,
        run,
    )


def replace_context(lines: GlobalContexts, approval: Approval) -> Tool[ReplaceContext]:
    """Return the tool that replaces a line."""

    async def run(call: Call, arguments: ReplaceContext) -> str:
        editor = _editor(call)
        seen = {line.number: line.owner for line in await lines.open(editor, store=False)}
        if editor.scope.audience is not None and seen.get(arguments.line) == "workspace":
            raise ToolRefused(
                f"everybody in the workspace sees line {arguments.line}, and this conversation is private: "
                "append a line instead"
            )
        by, waits = _by(call, approval, arguments.content)
        editing = lines.replace(editor, arguments.line, arguments.content, by, waits=waits)
        return await _message_about(editing, "line {} is replaced")

    return _CHANGES(
        "replace_context",
        "Replace a line of the global context, by its number: where it is no longer true, can be said better, or can "
        "take in what another line says. Numbers stay the same for the whole session.",
        ReplaceContext,
        run,
    )


def delete_context(lines: GlobalContexts, approval: Approval) -> Tool[DeleteContext]:
    """Return the tool that deletes a line."""

    async def run(call: Call, arguments: DeleteContext) -> str:
        by, waits = _by(call, approval)
        return await _message_about(lines.delete(_editor(call), arguments.line, by, waits=waits), "line {} is deleted")

    return _CHANGES(
        "delete_context",
        "Delete a line of the global context, by its number, that is no longer true or relevant. The other numbers "
        "stay the same for the whole session.",
        DeleteContext,
        run,
    )


def _by(call: Call, approval: Approval, content: str = "") -> tuple[EditOrigin, bool]:
    foreign = "retrieved" if call.has_read_untrusted else foreign_in(call.context, content)
    origin: Origin = foreign or "model"
    return EditOrigin(call.user, call.turn_id, origin, call.idempotency_key), must_wait(origin, approval)


def _editor(call: Call) -> Editor:
    return model_in(call.key, audience_of(call.context))


async def _message_about(editing: Awaitable[EditResult], done: str) -> str:
    """Return the message to the model about an edit. Raises `ToolRefused`."""
    try:
        edited = await editing
    except GlobalContextRefused as error:
        raise ToolRefused(str(error)) from None
    if edited.waits:
        return (
            f"kept as edit {edited.waits}, which does not hold before a person approves it (/context waiting): you "
            "were shown more than the words of the person you talk to. Say so, and do not try again"
        )
    return done.format(edited.number)
