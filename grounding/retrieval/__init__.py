"""The passage index and its search.

`Search` finds passages of documents and `Turns` recalls earlier turns of a conversation, both over a `PassageIndex`.
Its two adapters, `qdrant_edge` and `qdrant_server`, are imported lazily, because their libraries are heavy.

A passage has two numbers. The score (`Hit.score`) orders passages. It is made in ``ranking.py``, once for both
adapters: fusion of BM25 (``bm25.py``) and cosines, then the second look by deeper vectors; a reranker may change the
order after that. The relevance decides whether a prompt shows a passage. It is made in ``relevance.py``, for passages
of documents (`Floor.keep`); ``turn_ranking.py`` decides which earlier turns are shown, and in which order.

``chunking.py`` cuts documents, ``query.py`` mixes a question with the turns before it, ``packing.py`` fills the
prompt's room.
"""

from grounding.retrieval.bm25 import (
    STOP_WORDS,
    TURN_AVERAGE_TERMS,
    SparseVector,
    coverage,
    encode_chunk,
    encode_document,
    term_set,
    terms,
)
from grounding.retrieval.chunking import (
    CHUNKER_VERSION,
    Chunk,
    CountTokens,
    Sizes,
    chunk_document,
    section_text,
)
from grounding.retrieval.embedding import (
    LATE,
    Deeper,
    Embedder,
    EmbedderUnavailable,
    NotYet,
    Vector,
    WordLlamaEmbedder,
)
from grounding.retrieval.index import (
    AskDeep,
    Entry,
    Fusion,
    Hit,
    IndexUnavailable,
    Kind,
    Passage,
    PassageIndex,
    Source,
)
from grounding.retrieval.minilm import DIMENSIONS as MINILM_DIMENSIONS
from grounding.retrieval.minilm import NAME as MINILM_NAME
from grounding.retrieval.minilm import WEIGHTS_PACKAGE as MINILM_PACKAGE
from grounding.retrieval.minilm import MiniLMEmbedder
from grounding.retrieval.packing import NEAR_DUPLICATE, NEGATIONS
from grounding.retrieval.query import (
    EARLIER_MAX_CHARACTERS,
    EARLIER_TURNS,
    encoded,
    query_terms,
    query_vectors,
    shorten,
    spell_out,
)
from grounding.retrieval.ranking import Reranker, RerankUnavailable
from grounding.retrieval.recall import FORM, Look, Memory, Part, Turns, looked_back
from grounding.retrieval.relevance import ASKING, MEASURED_CHUNKS, asked_terms, largest_idf
from grounding.retrieval.search import Chosen, ContextField, LookUp, Match, Search, Vocabulary, looked_up
from grounding.retrieval.stored import PAYLOAD_VERSION, collection_name
from grounding.retrieval.turn_ranking import TurnFloor, turn_floor_for

__all__ = [
    "ASKING",
    "CHUNKER_VERSION",
    "EARLIER_MAX_CHARACTERS",
    "EARLIER_TURNS",
    "FORM",
    "LATE",
    "MEASURED_CHUNKS",
    "MINILM_DIMENSIONS",
    "MINILM_NAME",
    "MINILM_PACKAGE",
    "NEAR_DUPLICATE",
    "NEGATIONS",
    "PAYLOAD_VERSION",
    "STOP_WORDS",
    "TURN_AVERAGE_TERMS",
    "AskDeep",
    "Chosen",
    "Chunk",
    "ContextField",
    "CountTokens",
    "Deeper",
    "Embedder",
    "EmbedderUnavailable",
    "Entry",
    "Fusion",
    "Hit",
    "IndexUnavailable",
    "Kind",
    "Look",
    "LookUp",
    "Match",
    "Memory",
    "MiniLMEmbedder",
    "NotYet",
    "Part",
    "Passage",
    "PassageIndex",
    "RerankUnavailable",
    "Reranker",
    "Search",
    "Sizes",
    "Source",
    "SparseVector",
    "TurnFloor",
    "Turns",
    "Vector",
    "Vocabulary",
    "WordLlamaEmbedder",
    "asked_terms",
    "chunk_document",
    "collection_name",
    "coverage",
    "encode_chunk",
    "encode_document",
    "encoded",
    "largest_idf",
    "looked_back",
    "looked_up",
    "query_terms",
    "query_vectors",
    "section_text",
    "shorten",
    "spell_out",
    "term_set",
    "terms",
    "turn_floor_for",
]
