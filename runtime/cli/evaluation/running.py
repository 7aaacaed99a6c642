"""``eval retrieval``: the run, with the settings in force."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from config.settings import Settings
from connectors.message import AgentRuntimeError
from grounding.documents.evaluate import Evaluation, evaluate
from grounding.documents.index import Fusion
from grounding.documents.question_set import QuestionSet
from runtime.cli.output import StatusLine

if TYPE_CHECKING:
    from grounding.documents.deeper import AtHand
    from grounding.documents.embedding import Embedder
    from grounding.documents.index import PassageIndex
    from grounding.documents.rerank import Reranker

SHOW_EVERY_SECONDS = 0.2


class NoLocalIndex(AgentRuntimeError):
    """The embedded index, in which questions are scored, is not installed."""


async def run_retrieval(settings: Settings, questions: QuestionSet, folder: Path, status: StatusLine) -> Evaluation:
    """Score *questions* in an index of their own under *folder*.

    Raises `NoLocalIndex`, and what `grounding.documents.evaluate.evaluate` raises.
    """
    from grounding.tokens import load_tokens

    status.show("loading the embedding model …")
    embedder = await embedder_of(settings)
    tokens = await asyncio.to_thread(load_tokens)
    deep = deeper_of(settings)
    return await evaluate(
        questions,
        embedder,
        tokens.count,
        lambda: trial_index(settings, embedder, folder, deep.dimensions if deep else None),
        reranker=_reranker(settings),
        deep=deep,
        progress=_Shown(status).show,
    )


def trial_index(
    settings: Settings, embedder: Embedder, folder: Path, deep_dimensions: int | None = None
) -> PassageIndex:
    """An empty embedded index under *folder*. Raises `NoLocalIndex`."""
    try:
        from grounding.documents.qdrant_edge import EmbeddedIndex
    except ImportError as error:
        raise NoLocalIndex(
            "questions are scored in an embedded index, so that yours is left alone: install agent-runtime[local]"
        ) from error
    seconds = settings.qdrant_timeout_seconds
    return EmbeddedIndex(
        folder,
        embedder.name,
        embedder.dimensions,
        timeout_seconds=seconds,
        fusion=Fusion.from_settings(settings),
        deep_dimensions=deep_dimensions,
    )


def _reranker(settings: Settings) -> Reranker | None:
    if settings.rerank_model is None:
        return None
    from runtime.llm import LiteLLMReranker

    return LiteLLMReranker(settings)


async def embedder_of(settings: Settings) -> Embedder:
    """The embedding model of *settings*."""
    from runtime.llm import open_embedder

    return await open_embedder(settings)


def deeper_of(settings: Settings) -> AtHand | None:
    """The deeper model of *settings*, in this process; None where there is none."""
    from runtime.deeper import why_not

    if why_not(settings):
        return None
    from grounding.documents.deeper import AtHand
    from grounding.documents.minilm import MiniLMEmbedder

    return AtHand(MiniLMEmbedder(only_english=True))


class _Shown:
    """What is done of how much, and how fast it goes."""

    def __init__(self, status: StatusLine) -> None:
        self._status = status
        self._what = ""
        self._began = self._last = 0.0

    def show(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._last = what, now, 0.0
        if now - self._last < SHOW_EVERY_SECONDS:
            return
        self._last = now
        verb = "indexing" if what == "documents" else "asking"
        rate = f", {done / (now - self._began):,.0f} a second" if now - self._began > 1 else ""
        self._status.show(f"{verb} {done:,}/{total:,} {what}{rate} …")
