"""Search over documents and memory: which collection answers, how it is filled and kept in step.

`Knowledge` is the main entry point; its `Searcher` is what turns ask.
"""

from runtime.search.collections import Collection, CollectionFactory, TurnsEverywhere, identity_of, log_index_error
from runtime.search.deepening import Deepening, deepening_unavailable_reason
from runtime.search.knowledge import Knowledge
from runtime.search.staleness import APART, STALE, Staleness, Timing
from runtime.search.translation import TRANSLATION_SECONDS, QueryTranslator

__all__ = [
    "APART",
    "STALE",
    "TRANSLATION_SECONDS",
    "Collection",
    "CollectionFactory",
    "Deepening",
    "Knowledge",
    "QueryTranslator",
    "Staleness",
    "Timing",
    "TurnsEverywhere",
    "deepening_unavailable_reason",
    "identity_of",
    "log_index_error",
]
