"""Search over documents and memory: which index answers, how it is filled and kept in step."""

from runtime.search.collections import APART, Collection, tell_index_failed
from runtime.search.deepening import Deepening, why_not
from runtime.search.knowledge import Knowledge

__all__ = [
    "APART",
    "Collection",
    "Deepening",
    "Knowledge",
    "tell_index_failed",
    "why_not",
]
