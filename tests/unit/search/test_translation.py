"""A question in another language than the documents is translated, once, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from connectors.message import Scope, StoreUnavailable, Usage
from grounding.retrieval import Hit, Kind, Passage, QueryTranslation
from runtime.llm import Completion, Message, ModelUnavailable
from runtime.search import QueryTranslator

ACME = Scope("acme")
GERMAN, ENGLISH = "Wie lange dauert die Probezeit?", "How long is probation?"
IN_ENGLISH, IN_GERMAN = "The notice period is three months.", "Die Frist beträgt drei Monate, und sie ist fest."


class Model:
    """Answers *answer*, or raises it, after *seconds*."""

    def __init__(self, answer: str | Exception = ENGLISH, seconds: float = 0.0) -> None:
        self.answer = answer
        self.seconds = seconds
        self.asked: list[Sequence[Message]] = []

    async def ask(
        self, scope: Scope, purpose: str, messages: Sequence[Message], *, output_tokens: int | None = None
    ) -> Completion:
        self.asked.append(messages)
        await asyncio.sleep(self.seconds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Completion(self.answer, "openai/fake", usage=Usage(1, completion=1))


class Documents:
    """Finds passages with *texts* for every question."""

    def __init__(self, *texts: str) -> None:
        self.hits_found = [
            Hit(Passage(str(number), Kind.DOCUMENT, "a.md", text), 1.0) for number, text in enumerate(texts)
        ]
        self.searches = 0

    async def nearest(self, scope: Scope, query: str) -> Sequence[Hit]:
        self.searches += 1
        return self.hits_found


async def test_a_german_question_to_english_documents_is_asked_in_english() -> None:
    """The model is told the language, and gets the question and no more of the conversation."""
    model = Model()
    done = await QueryTranslator(model).translate(ACME, GERMAN, Documents(IN_ENGLISH, "x = 1"))

    assert done == QueryTranslation(ENGLISH)
    ((system, user),) = model.asked
    assert "into English" in system["content"]
    assert user == {"role": "user", "content": GERMAN}


@pytest.mark.parametrize(
    ("question", "texts"),
    [
        (ENGLISH, [IN_ENGLISH]),
        (GERMAN, [IN_ENGLISH, IN_GERMAN]),
        (GERMAN, []),
        (GERMAN, ["x = 1"]),
        ("Probezeit?", [IN_ENGLISH]),
        ("Wie geht das? " * 100, [IN_ENGLISH]),
    ],
    ids=["same", "mixed", "empty", "code", "one word", "long"],
)
async def test_a_question_is_left_as_it_is_if_its_words_may_be_found(question: str, texts: list[str]) -> None:
    model = Model()
    assert await QueryTranslator(model).translate(ACME, question, Documents(*texts)) is None
    assert model.asked == []


async def test_a_question_is_translated_once_and_documents_of_its_language_are_looked_for_once() -> None:
    """Several searches of one turn, and the next turn, use the same translation."""
    model, documents = Model(), Documents(IN_ENGLISH)
    translator = QueryTranslator(model)
    for _ in range(3):
        assert await translator.translate(ACME, GERMAN, documents) == QueryTranslation(ENGLISH)
        assert await translator.translate(ACME, ENGLISH, documents) is None
    assert translator.last(ACME, GERMAN) == QueryTranslation(ENGLISH)
    assert translator.last(Scope("other"), GERMAN) is None
    assert (len(model.asked), documents.searches) == (1, 2)


async def test_names_and_codes_that_the_translation_lacks_are_searched_for_too() -> None:
    model = Model("A queue fired with error 12, what now?")
    done = await QueryTranslator(model).translate(
        ACME, "IngestQueueDeep hat mit TW1203 in #ops ausgelöst, was nun, nach 12 Uhr?", Documents(IN_ENGLISH)
    )
    assert done == QueryTranslation("A queue fired with error 12, what now? IngestQueueDeep TW1203 #ops")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ModelUnavailable("away", why="unreachable", model="m"), "unreachable"),
        (StoreUnavailable("redis is away"), "redis is away"),
        ("", "unusable"),
        (GERMAN, "unusable"),
        ("Probation is, as far as I know, " + "a long story. " * 40, "unusable"),
    ],
    ids=["model", "store", "nothing", "not translated", "chatter"],
)
async def test_a_failed_translation_says_why_and_is_not_tried_again_at_once(answer: str | Exception, why: str) -> None:
    model = Model(answer)
    translator = QueryTranslator(model)
    for _ in range(2):
        assert await translator.translate(ACME, GERMAN, Documents(IN_ENGLISH)) == QueryTranslation(why=why)
    assert len(model.asked) == 1


async def test_no_search_waits_longer_for_a_translation_than_it_may() -> None:
    translator = QueryTranslator(Model(seconds=60.0), timeout_seconds=0.01)
    assert await translator.translate(ACME, GERMAN, Documents(IN_ENGLISH)) == QueryTranslation(why="timeout")


async def test_without_a_language_model_only_a_question_that_needs_one_says_so() -> None:
    translator = QueryTranslator(None)
    assert await translator.translate(ACME, GERMAN, Documents(IN_ENGLISH)) == QueryTranslation(why="no_model")
    assert await translator.translate(ACME, "Wie geht das mit der Frist?", Documents(IN_GERMAN)) is None
    assert await translator.translate(ACME, ENGLISH, Documents(IN_ENGLISH)) is None
