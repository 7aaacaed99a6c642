"""Karma: answers that people marked, and their use as examples."""

from grounding.memory.karma.karma import SCOPE, Exchange, Marked, Opinion, Sign, preferred
from grounding.memory.karma.store import NOTHING, Karma, Likeness, Looked, MarkBusy, MarkStore

__all__ = [
    "NOTHING",
    "SCOPE",
    "Exchange",
    "Karma",
    "Likeness",
    "Looked",
    "MarkBusy",
    "MarkStore",
    "Marked",
    "Opinion",
    "Sign",
    "preferred",
]
