"""What people asked earlier in a conversation, as a search uses it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from grounding.cues.english import ENGLISH
from grounding.cues.kinds import Cues
from grounding.documents.followup import EARLIER_MAX_CHARACTERS, EARLIER_TURNS
from grounding.run_context import TailEntry
from grounding.strategy import is_small_talk, search_text

ASSISTANT = "assistant"


def asked_before(tail: Sequence[TailEntry], cues: Cues = ENGLISH) -> tuple[str, ...]:
    """What people said in the last turns of *tail*, the oldest first, without what *cues* call small talk and the
    words that only say where to look. Messages that were answered together are one turn."""
    found = islice(_newest_first(tail, cues), EARLIER_TURNS)
    return tuple(search_text(turn, cues) for turn in found)[::-1]


def _newest_first(tail: Sequence[TailEntry], cues: Cues) -> Iterator[str]:
    spoken = [entry for entry in reversed(tail) if entry.speaker != ASSISTANT]
    for _, turn in groupby(enumerate(spoken), key=lambda item: item[1].turn_id or item[0]):
        text = "\n".join(entry.text for _, entry in reversed(list(turn)))[:EARLIER_MAX_CHARACTERS]
        if text.strip() and not is_small_talk(text, cues):
            yield text
