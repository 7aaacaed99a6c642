"""Translates a question into the language of the workspace's documents, so that its words are found in them.

``Was kostet der Harbour-Tarif?`` has no word in common with English documents. If the passages that are nearest to a
question are all in another language, the language model translates the question, and the translation is searched for.
A question in the language of the documents costs nothing: its own words say so. Without a language model the search
says that a translation is missing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Protocol

import structlog

from connectors.message import AgentRuntimeError, Scope
from grounding.retrieval import EmbedderUnavailable, Hit, QueryTranslation, language_of
from runtime.billing import BudgetExceeded
from runtime.llm import Completion, Message, ModelFailed

TRANSLATION_SECONDS = 2.0
"""Longer no search waits for a translation. The look into the documents by which a strategy is chosen has 3 s."""
OUTPUT_TOKENS = 300
LONGEST_CHARACTERS = 1000
"""A longer question is searched for as it is: it has words enough, and its translation would take too long."""
REMEMBERED = 500
"""So many translations are remembered: one message is searched for several times, and again with the next one."""
FAILED_SECONDS = 60.0
"""So long no further translation of the same question is tried after one has failed."""
LANGUAGES_SECONDS = 60.0
"""So long the languages that were seen in a workspace's documents are believed."""
NO_MODEL = "no_model"
"""The reason if no language model is set."""
PURPOSE = "translation"
"""The name of these calls in events."""
_INSTRUCTIONS = (
    "Translate the question into {language}. It is searched for in documents that are written in {language}: use the "
    "words that such documents would use. Keep names, codes, figures and file names as they are. "
    "Write the translation and nothing else. Do not answer the question."
)
_NAME = re.compile(r"[^\s,;!?()\"]*(?:[\d_#@/\\]|[^\W\d_A-Z][A-Z])[^\s,;!?()\"]*")
"""A word with a figure, a sign or a capital letter inside: a code or a name, which means the same in every language."""
_log = structlog.get_logger()


class AsksModel(Protocol):
    """See `runtime.billing.Spending`."""

    async def ask(
        self, scope: Scope, purpose: str, messages: Sequence[Message], *, output_tokens: int | None = None
    ) -> Completion: ...


class FindsNearest(Protocol):
    """See `grounding.retrieval.Search`."""

    async def nearest(self, scope: Scope, query: str) -> Sequence[Hit]: ...


class QueryTranslator:
    """Translates questions by *model*, and lets the workspace pay. Without one, says so of each question that needs
    it."""

    def __init__(self, model: AsksModel | None, *, timeout_seconds: float = TRANSLATION_SECONDS) -> None:
        self._model = model
        self._timeout_seconds = timeout_seconds
        self._translations: OrderedDict[tuple[str, str], tuple[QueryTranslation, float]] = OrderedDict()
        """By workspace and question, and when each was made."""
        self._languages: dict[tuple[str, str], float] = {}
        """The languages in which workspaces were seen to have documents, or no documents at all, and when."""

    async def translate(self, scope: Scope, query: str, documents: FindsNearest) -> QueryTranslation | None:
        """Return how *query* is searched for in *documents*; None as it is, because it is in a language of theirs.

        Never raises for a failed translation. Raises `IndexUnavailable`.
        """
        language = language_of(query)
        if not language or len(query) > LONGEST_CHARACTERS:
            return None
        now = time.monotonic()
        if now - self._languages.get((scope.workspace_id, language), -LANGUAGES_SECONDS) < LANGUAGES_SECONDS:
            return None
        if (known := self.last(scope, query)) is not None:
            return known
        try:
            hits = await documents.nearest(scope, query)
        except EmbedderUnavailable:  # the search goes without vectors, or says so
            return None
        wanted = _language_of_all(hits, language)
        if wanted == language:
            self._languages[scope.workspace_id, language] = now
        if wanted in ("", language):
            return None
        done = await self._translate(scope, query, language, wanted)
        self._translations[scope.workspace_id, query] = done, now
        if len(self._translations) > REMEMBERED:
            self._translations.popitem(last=False)
        return done

    def last(self, scope: Scope, query: str) -> QueryTranslation | None:
        """Return how *query* was searched for just now; None if it was not translated. Asks nobody."""
        done, at = self._translations.get((scope.workspace_id, query), (None, 0.0))
        return done if done is not None and (done.text or time.monotonic() - at < FAILED_SECONDS) else None

    async def _translate(self, scope: Scope, query: str, language: str, wanted: str) -> QueryTranslation:
        if self._model is None:
            return QueryTranslation(why=NO_MODEL)
        began = time.monotonic()
        messages = [
            {"role": "system", "content": _INSTRUCTIONS.format(language=wanted.capitalize())},
            {"role": "user", "content": query},
        ]
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._model.ask(scope, PURPOSE, messages, output_tokens=OUTPUT_TOKENS)
        except TimeoutError:
            why = "timeout"
        except BudgetExceeded:
            why = "budget"
        except ModelFailed as error:
            why = error.why
        except AgentRuntimeError as error:
            why = str(error) or type(error).__name__
        else:
            text = answer.text.strip()
            if text and len(text) <= 3 * len(query) + 100 and language_of(text) != language:
                took_ms = round((time.monotonic() - began) * 1000)
                _log.info("query.translated", workspace_id=scope.workspace_id, language=language, into=wanted,
                          duration_ms=took_ms)  # fmt: skip
                return QueryTranslation(_with_names(text, query))
            why = "unusable"
        _log.warning("query.untranslated", workspace_id=scope.workspace_id, language=language, into=wanted, why=why)
        return QueryTranslation(why=why)


def _language_of_all(hits: Sequence[Hit], language: str) -> str:
    """Return *language* if one of *hits* is in it; else the language that most of them have, empty if none is known."""
    found = Counter(language_of(hit.passage.text) for hit in hits)
    del found[""]
    if language in found or not found:
        return language if language in found else ""
    return found.most_common(1)[0][0]


def _with_names(translation: str, query: str) -> str:
    """Return *translation* with the names and codes of *query* that it lacks."""
    folded = translation.casefold()
    missing = [name.strip(".:'’") for name in _NAME.findall(query)]
    return " ".join([translation, *(name for name in missing if name and name.casefold() not in folded)])
