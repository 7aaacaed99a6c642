"""Drafts of directives in Redis: texts that are not live yet, with their state and who wrote them.

Keys (owner ``directives``, under the hash tag of the slot's place, as in `directives`):

- ``…:drafts`` hash, draft id → draft, of all drafts that are open or wait for approval
- ``…:closed-drafts`` hash, draft id → draft, of those that were published or discarded. They are never read as a whole

A draft is stored as JSON with a format number, ``v``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from connectors.message import AgentRuntimeError
from promptpolicy.policy import Place, Slot, place_in, slot_in

FORMAT = 1


class DraftState(StrEnum):
    """The states of a draft. The last two are final."""

    OPEN = "open"
    WAITS = "waits"
    PUBLISHED = "published"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class Draft:
    """A text that may become the next version of ``slot``; None clears it.

    ``base`` is the version that it was made from, 0 for none. ``author`` wrote the present text. ``revision`` counts
    all changes from 1. ``asked_by`` asked for its publication while a second person was needed. ``version`` is the
    one that it became; ``restores`` the version whose text a rollback took. ``closed_by`` published or discarded it,
    with the ``reason`` for discarding.
    """

    id: str
    slot: Slot
    text: str | None
    base: int
    author: str
    origin: Literal["file", "command", "api"]
    note: str
    created_at: datetime
    changed_at: datetime
    revision: int = 1
    state: DraftState = DraftState.OPEN
    asked_by: str = ""
    version: int = 0
    restores: int | None = None
    closed_by: str = ""
    reason: str = ""

    @property
    def is_closed(self) -> bool:
        return self.state in (DraftState.PUBLISHED, DraftState.DISCARDED)

    def changed(self, at: datetime, **fields: Any) -> Draft:
        """Return the next revision of this draft, with *fields* changed *at* this time."""
        return replace(self, changed_at=at, revision=self.revision + 1, **fields)


class NoSuchDraft(AgentRuntimeError):
    """There is no draft with this id in the workspace."""

    user_text = "There is no such draft."


class DraftMoved(AgentRuntimeError):
    """Somebody changed or closed the draft in between. Nothing was changed.

    ``theirs`` is the draft as it is now; ``text`` is the text of the caller, if the caller wanted to save one.
    """

    user_text = "Somebody has changed this draft meanwhile. Compare both texts and try again."

    def __init__(self, theirs: Draft, expected: int, text: str | None = None) -> None:
        person = theirs.closed_by or theirs.asked_by or theirs.author
        super().__init__(
            f"draft {theirs.id} of {theirs.slot.label} is {theirs.state} at revision {theirs.revision}, not "
            f"{expected}: {person} changed it at {theirs.changed_at:%Y-%m-%d %H:%M} UTC"
        )
        self.theirs = theirs
        self.text = text


class ApprovalNeeded(AgentRuntimeError):
    """A second person must approve. Nothing is live yet: ``draft`` waits for them."""

    user_text = "This waits for a second person: somebody else must approve it."

    def __init__(self, draft: Draft) -> None:
        super().__init__(
            f"{draft.slot.label} needs a second person here: draft {draft.id} waits until somebody other than "
            f"{draft.asked_by or draft.author} approves it"
        )
        self.draft = draft


def pack_draft(draft: Draft) -> str:
    """Encode *draft* for Redis."""
    fields = asdict(draft) | {
        "v": FORMAT,
        "slot": [draft.slot.place.encoded, draft.slot.field],
        "created_at": draft.created_at.isoformat(),
        "changed_at": draft.changed_at.isoformat(),
    }
    return json.dumps(fields, ensure_ascii=False, sort_keys=True)


def unpack_draft(home: Place, packed: str) -> Draft:
    """Decode a draft of *home*. Raises `AgentRuntimeError` if a newer release wrote it."""
    fields = json.loads(packed)
    if (found := fields.pop("v")) > FORMAT:
        raise AgentRuntimeError(
            f"a draft has format {found}, and this release reads up to {FORMAT}: start the newer release again"
        )
    place, field = fields["slot"]
    fields |= {name: datetime.fromisoformat(fields[name]) for name in ("created_at", "changed_at")}
    return Draft(**fields | {"slot": slot_in(place_in(home, place), field), "state": DraftState(fields["state"])})


SAVE_DRAFT = """
local now = redis.call('HGET', KEYS[1], ARGV[1]) or redis.call('HGET', KEYS[2], ARGV[1])
local revision = now and cjson.decode(now).revision or 0
if revision ~= tonumber(ARGV[2]) then return now or '' end
if ARGV[4] == 'closed' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 'saved'
"""
"""Store a draft if its stored revision is the expected one (0: it is new); else return what is stored."""
