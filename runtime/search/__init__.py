"""Search over documents and memory: which collection answers, how it is filled and kept in step.

`Knowledge` is the main entry point; its `Searcher` is what turns ask.
"""

from runtime.search.collections import Collection, tell_index_failed
from runtime.search.deepening import Deepening, why_not
from runtime.search.knowledge import Knowledge
from runtime.search.staleness import APART

__all__ = [
    "APART",
    "Collection",
    "Deepening",
    "Knowledge",
    "tell_index_failed",
    "why_not",
]
