"""How the index makes one ranking of two, as the settings say."""

from __future__ import annotations

from config.settings import Settings
from grounding.documents.index import Fusion


def fusion_of(settings: Settings) -> Fusion:
    """The fusion that *settings* ask for."""
    return Fusion(
        method=settings.retrieval_fusion,
        k=settings.retrieval_rrf_k,
        dense=settings.retrieval_rrf_dense_weight,
        sparse=settings.retrieval_rrf_sparse_weight,
        candidates=settings.retrieval_candidates,
        centring=settings.retrieval_centring,
    )
