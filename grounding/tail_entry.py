"""An entry of the transcript as a tail tells it. Pure."""

from __future__ import annotations

from grounding.asked import ASSISTANT
from grounding.recent import RecentObjects
from grounding.run_context import TailEntry
from grounding.sections import speaker
from grounding.sessions.growing import MAX_ENTRY_CHARACTERS
from grounding.transcript.entry import Entry, EntryRole

_told: RecentObjects[Entry, TailEntry] = RecentObjects(512)


def tail_entry(entry: Entry) -> TailEntry:
    """*entry* as a tail tells it. That of the same entry is the same object, of which more is remembered
    (`grounding.layers.tail`)."""
    return _told.of(entry, _tail_entry)


def _tail_entry(entry: Entry) -> TailEntry:
    by = ASSISTANT if entry.role is EntryRole.OUTBOUND else speaker(entry.author)
    text = entry.text[:MAX_ENTRY_CHARACTERS]
    return TailEntry(speaker=by, text=text, turn_id=entry.turn_id, user=entry.user, foreign=entry.foreign)
