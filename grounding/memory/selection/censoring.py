"""Censors in force, and what sets them off. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from grounding.cues.matching import matches
from grounding.cues.words import words_of
from grounding.memory.records.record import Record, State, Type
from grounding.run_context import Censor

FOREIGN = ("retrieved", "others")
"""Origins whose words bind nobody: a document, or somebody who does not ask, could otherwise stop all replies."""
CONSIDERED_CHARACTERS = 100_000


def in_force(records: Iterable[Record]) -> tuple[Censor, ...]:
    """The censors among *records*, in their order."""
    return tuple(
        Censor(
            id=one.id,
            severity="block" if one.state is State.ESCALATED else one.severity,
            text=one.text,
            trigger=one.trigger,
            reason=one.reason,
        )
        for one in records
        if one.type is Type.CENSOR and not one.is_hidden and one.provenance.origin not in FOREIGN
    )


def set_off(censors: Sequence[Censor], text: str) -> tuple[Censor, ...]:
    """Those of *censors* of whose triggers one stands in *text*, as whole words without case and accents."""
    if not censors or not text:
        return ()
    words = words_of(text[:CONSIDERED_CHARACTERS])
    return tuple(one for one in censors if next(matches(words, _phrases(one.trigger)), None) is not None)


@lru_cache(maxsize=4096)
def _phrases(trigger: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in trigger.split("|") if part.strip())
