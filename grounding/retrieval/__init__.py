"""The passage index and its search.

`Search` finds passages of documents and `TurnIndex` recalls earlier turns of a conversation, both over a
`PassageIndex`.
Its two adapters, `qdrant_edge` and `qdrant_server`, are imported lazily, because their libraries are heavy.

A passage has two numbers. The score (`Hit.score`) orders passages. It is made in ``ranking.py``, once for both
adapters: fusion of BM25 (``bm25.py``) and cosines, then the second look by deeper vectors; a reranker may change the
order after that. The relevance decides whether a prompt shows a passage. It is made in ``relevance.py``, for passages
of documents (`Relevance.shown`); ``turn_ranking.py`` decides which earlier turns are shown, and in which order.

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
    DEEP_VECTOR_LATE,
    DeepEmbedder,
    Embedder,
    EmbedderUnavailable,
    ModelLoading,
    Vector,
    WordLlamaEmbedder,
)
from grounding.retrieval.index import (
    Hit,
    IndexEntry,
    IndexUnavailable,
    Kind,
    Passage,
    PassageIndex,
    PassageQuery,
    Source,
)
from grounding.retrieval.languages import UNTRANSLATED, QueryTranslation, language_of
from grounding.retrieval.minilm import DIMENSIONS as MINILM_DIMENSIONS
from grounding.retrieval.minilm import NAME as MINILM_NAME
from grounding.retrieval.minilm import WEIGHTS_PACKAGE as MINILM_PACKAGE
from grounding.retrieval.minilm import MiniLMEmbedder
from grounding.retrieval.multilingual import MULTILINGUAL_MODULE, MultilingualEmbedder
from grounding.retrieval.packing import NEGATIONS
from grounding.retrieval.query import (
    EARLIER_MAX_CHARACTERS,
    EARLIER_TURNS,
    SHORT_QUERY_CHARACTERS,
    encode_question,
    query_vectors,
    shorten,
    spell_out,
)
from grounding.retrieval.ranking import Reranker, RerankUnavailable
from grounding.retrieval.recall import TURN_INDEX_VERSION, TurnIndex, TurnText
from grounding.retrieval.relevance import ASKING, MEASURED_CHUNKS, SMALLEST_CHUNKS, largest_idf, question_terms
from grounding.retrieval.search import NOTHING, ContextField, Found, PassageRoom, Search
from grounding.retrieval.stored import PAYLOAD_VERSION, collection_name
from grounding.retrieval.turn_ranking import TurnFloor, turn_floor_for

__all__ = [
    "ASKING",
    "CHUNKER_VERSION",
    "DEEP_VECTOR_LATE",
    "EARLIER_MAX_CHARACTERS",
    "EARLIER_TURNS",
    "MEASURED_CHUNKS",
    "MINILM_DIMENSIONS",
    "MINILM_NAME",
    "MINILM_PACKAGE",
    "MULTILINGUAL_MODULE",
    "NEGATIONS",
    "NOTHING",
    "PAYLOAD_VERSION",
    "SHORT_QUERY_CHARACTERS",
    "SMALLEST_CHUNKS",
    "STOP_WORDS",
    "TURN_AVERAGE_TERMS",
    "TURN_INDEX_VERSION",
    "UNTRANSLATED",
    "Chunk",
    "ContextField",
    "CountTokens",
    "DeepEmbedder",
    "Embedder",
    "EmbedderUnavailable",
    "Found",
    "Hit",
    "IndexEntry",
    "IndexUnavailable",
    "Kind",
    "MiniLMEmbedder",
    "ModelLoading",
    "MultilingualEmbedder",
    "Passage",
    "PassageIndex",
    "PassageQuery",
    "PassageRoom",
    "QueryTranslation",
    "RerankUnavailable",
    "Reranker",
    "Search",
    "Sizes",
    "Source",
    "SparseVector",
    "TurnFloor",
    "TurnIndex",
    "TurnText",
    "Vector",
    "WordLlamaEmbedder",
    "chunk_document",
    "collection_name",
    "coverage",
    "encode_chunk",
    "encode_document",
    "encode_question",
    "language_of",
    "largest_idf",
    "query_vectors",
    "question_terms",
    "section_text",
    "shorten",
    "spell_out",
    "term_set",
    "terms",
    "turn_floor_for",
]
