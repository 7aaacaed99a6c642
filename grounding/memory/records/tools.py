"""The model's tools for items (tasks, events, notes) and for reading a record in full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import Field

from connectors.message import Scope
from grounding.memory.global_context import foreign_in
from grounding.memory.records.dates import MAX_CHARACTERS as MAX_DUE_CHARACTERS
from grounding.memory.records.dates import NoSuchDay, due, in_words
from grounding.memory.records.model import (
    ItemKind,
    ItemStatus,
    NewRecord,
    NoSuchRecord,
    Origin,
    Provenance,
    Record,
    RecordRefused,
    State,
    Type,
    indexed_text,
)
from grounding.memory.records.records import Records
from grounding.prompt_input import audience_of, one_line
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable, terms
from grounding.tools import Arguments, Call, Tool, ToolRefused

T = TypeVar("T")
MAX_ITEM_CHARACTERS = 2000
MAX_QUERY_CHARACTERS = 400
MAX_FOUND = 50
"""Most items that a search returns."""
MAX_LISTED = 500
"""Most items that are read if there is no search text: the newest."""
SHOWN = 20
_ITEMS = (Type.ITEM,)
_READS = frozenset({"records:read"})
_CHANGES = partial(Tool, scopes=frozenset({"items:write"}), repeatable=True, spare=2)
_ID = Field(min_length=1, max_length=64, description="The item's id, as query_items and the records show it.")
_DUE = (
    "When it is due or happens: a day like 2026-11-27, a time like 2026-11-27T15:00, or words like 'tomorrow', "
    "'next Friday', 'in two weeks', 'Friday at 15:00'."
)


class CreateItem(Arguments):
    kind: ItemKind = Field(description="A task has to be done, an event happens.")
    text: str = Field(min_length=1, max_length=MAX_ITEM_CHARACTERS, description="What it is, without its date.")
    due: str = Field(default="", max_length=MAX_DUE_CHARACTERS, description=_DUE)


class UpdateItem(Arguments):
    id: str = _ID
    text: str | None = Field(default=None, min_length=1, max_length=MAX_ITEM_CHARACTERS, description="What it is now.")
    status: ItemStatus | None = Field(default=None, description="What became of it.")
    due: str | None = Field(default=None, max_length=MAX_DUE_CHARACTERS, description=f"{_DUE} Empty: no day any more.")


class DeleteItem(Arguments):
    id: str = _ID


class QueryItems(Arguments):
    text: str = Field(default="", max_length=MAX_QUERY_CHARACTERS, description="What they are about; empty: all.")
    status: ItemStatus | Literal["any"] = Field(default="open", description="Which of them.")
    kind: ItemKind | None = Field(default=None, description="Which of them.")
    due_before: str = Field(default="", max_length=MAX_DUE_CHARACTERS, description="Due on that day or earlier.")
    due_after: str = Field(default="", max_length=MAX_DUE_CHARACTERS, description="Due on that day or later.")


class Expand(Arguments):
    record: str = Field(min_length=1, max_length=64, description="The record's id, as the records show it.")


def create_item(records: Records) -> Tool[CreateItem]:
    """Return the tool that stores an item for the people who read the conversation."""

    async def run(call: Call, arguments: CreateItem) -> str:
        new = NewRecord(Type.ITEM, arguments.text, kind=arguments.kind, due=_due(arguments.due, call))
        added = await _await_or_refuse(records.add(_scope(call), new, _by(call, arguments.text), call.idempotency_key))
        return f"kept: {shown(added.record)}"

    return _CHANGES(
        "create_item",
        "Keep a task, an event or a note with its day, so that it is found again in later conversations. Use it when "
        "somebody says that something has to be done, will happen, or is to be noted; not for lasting preferences "
        "and background.",
        CreateItem,
        run,
    )


def update_item(records: Records) -> Tool[UpdateItem]:
    """Return the tool that changes an item's text, due date or status."""

    async def run(call: Call, arguments: UpdateItem) -> str:
        values = {"text": arguments.text, "status": arguments.status}
        fields: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        if arguments.due is not None:
            fields["due"] = _due(arguments.due, call)
        if not fields:
            raise ToolRefused("nothing is to change: give text, status or due")
        item = await _item(records, call, arguments.id)
        if "text" in fields and not item.audience and audience_of(call.context) is not None:
            raise ToolRefused(
                f"everybody in the workspace sees {item.id}, and this conversation is private: create another item"
            )
        by = _by(call, arguments.text or "")
        changing = records.change(_scope(call), arguments.id, fields, by, call.idempotency_key)
        return f"changed: {shown(await _await_or_refuse(changing))}"

    return _CHANGES(
        "update_item",
        "Change an item: its text, its day, or its status when it is done or cancelled.",
        UpdateItem,
        run,
    )


def delete_item(records: Records) -> Tool[DeleteItem]:
    """Return the tool that hides an item. People can still see and restore it."""

    async def run(call: Call, arguments: DeleteItem) -> str:
        item = await _item(records, call, arguments.id)
        put_away = records.change(_scope(call), item.id, {"state": State.INACTIVE}, _by(call), call.idempotency_key)
        await _await_or_refuse(put_away)
        return f"deleted: {one_line(item.micro)}"

    return _CHANGES(
        "delete_item",
        "Delete an item that should not be there. What is done or cancelled is better updated.",
        DeleteItem,
        run,
    )


def query_items(records: Records) -> Tool[QueryItems]:
    """Return the tool that finds items by topic, status and day."""

    async def run(call: Call, arguments: QueryItems) -> str:
        scope, text = _scope(call), arguments.text.strip()
        states = () if arguments.status == "any" else (State(arguments.status),)
        before, after = _due(arguments.due_before, call), _due(arguments.due_after, call)
        found = await _found(records, scope, text) if text else None
        said = "" if found is not None or not text else "The search does not work just now; these share words.\n"
        if found is None or len(found) >= MAX_FOUND:  # a full result may have pushed out items that match the filters
            listed = await records.list(scope, _ITEMS, states, MAX_LISTED)
            found = await asyncio.to_thread(_merged, found or (), listed, set(terms(text)))
        fitting = [
            one
            for one in found
            if (not states or one.state in states)
            and (arguments.kind is None or one.kind == arguments.kind)
            and _is_between(one.due, after, before)
        ]
        return said + _listed(fitting, by_day=not text)

    return Tool(
        "query_items",
        "Look up the tasks, events and notes that are kept: all open ones, or by what they are about, by status, or "
        "by day, e.g. due_before 'Friday'. Use it before you say what there is to do.",
        QueryItems,
        run,
        scopes=_READS,
        untrusted=True,
        together=True,
        repeatable=True,
        spare=2,
    )


def expand(records: Records) -> Tool[Expand]:
    """Return the tool that reads a record in full. Prompts only show its short form."""

    async def run(call: Call, arguments: Expand) -> str:
        record = await _await_or_refuse(records.get(_scope(call), arguments.record))
        of = record.provenance
        lines = [
            f"{record.type} {record.id}, {record.state}, of {record.created_at[:10]}",
            f"outcome: {record.outcome}" if record.outcome else "",
            f"due: {in_words(record.due)}" if record.due else "",
            f"said by {one_line(of.author)}" if of.author else "",
            "(unverified: it came from documents or other people's words)"
            if of.origin in ("retrieved", "others")
            else "",
            f"superseded by {record.superseded_by}" if record.superseded_by else "",
            f"in place of {record.supersedes}" if record.supersedes else "",
        ]
        return "\n".join(line for line in lines if line) + f"\n\n{record.text}"

    return Tool(
        "expand",
        "Read a record (decision, fact, procedure, episode, item) whole, by its id. The records in the prompt are "
        "shortened: use this where their details matter.",
        Expand,
        run,
        scopes=_READS,
        untrusted=True,
        together=True,
        repeatable=True,
        spare=1,
    )


def shown(item: Record) -> str:
    """Return an item on one line: ``[id] open task, due Friday 27 November 2026: buy milk``."""
    day = f", due {in_words(item.due)}" if item.due else ""
    return f"[{item.id}] {item.state} {item.kind}{day}: {one_line(item.text)}"


def _listed(items: Sequence[Record], *, by_day: bool) -> str:
    """Return *items* as lines, with *by_day* sorted by due date, those without one last."""
    if not items:
        return "No item fits."
    ordered = sorted(items, key=lambda one: (not one.due, one.due)) if by_day else list(items)
    lines = [f"- {shown(one)}" for one in ordered[:SHOWN]]
    left = len(items) - SHOWN
    return "\n".join([*lines, f"({left} more: ask for a shorter time or by text.)"] if left > 0 else lines)


def _merged(found: Sequence[Record], listed: Sequence[Record], words: set[str]) -> list[Record]:
    """Return *found* and those of *listed* that share one of *words* with text or due date; all if *words* is empty."""
    sharing = (one for one in listed if not words or words & set(terms(indexed_text(one))))
    return list({one.id: one for one in (*found, *sharing)}.values())


def _is_between(day: str, after: str, before: str) -> bool:
    """Say whether *day* is between *after* and *before*, both inclusive. A day without a time covers the whole day."""
    if not (after or before):
        return True
    return bool(day) and (not after or _reaches(day, after)) and (not before or _reaches(before, day))


def _reaches(later: str, earlier: str) -> bool:
    length = min(len(later), len(earlier)) if "T" not in later or "T" not in earlier else 19
    return later[:length] >= earlier[:length]


async def _found(records: Records, scope: Scope, text: str) -> Sequence[Record] | None:
    """Return what a search finds; None if the search is not available."""
    try:
        return [one.record for one in await records.search(scope, text, MAX_FOUND, _ITEMS)]
    except (IndexUnavailable, EmbedderUnavailable):
        return None


async def _item(records: Records, call: Call, item_id: str) -> Record:
    """Return the item with that id. Raises `ToolRefused`."""
    record = await _await_or_refuse(records.get(_scope(call), item_id))
    if record.type is not Type.ITEM:
        raise ToolRefused(f"{record.id} is a {record.type} and no item: only people change those")
    return record


async def _await_or_refuse(doing: Awaitable[T]) -> T:
    """Await *doing*, and raise `ToolRefused` if the records refuse it."""
    try:
        return await doing
    except NoSuchRecord as error:
        raise ToolRefused(f"{error}: query_items lists the items that there are") from None
    except RecordRefused as error:
        raise ToolRefused(str(error)) from None


def _due(words: str, call: Call) -> str:
    try:
        return due(words, call.at) if words.strip() else ""
    except NoSuchDay as error:
        raise ToolRefused(str(error)) from None


def _scope(call: Call) -> Scope:
    """Return the scope of the conversation's readers: reads include the workspace's records, writes belong to the
    readers."""
    return Scope(call.key.workspace_id, call.key.context_id, audience_of(call.context))


def _by(call: Call, content: str = "") -> Provenance:
    """Return the provenance of *content*; its origin says if the content may be somebody else's words."""
    origin: Origin = "retrieved" if call.has_read_untrusted else foreign_in(call.context, content) or "tool"
    return Provenance(author=call.user, turn_id=call.turn_id, context_id=call.key.context_id, origin=origin)
