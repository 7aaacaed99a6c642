"""What a message is searched with: itself, what was asked before it, and its deeper vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.prompt_input import TailEntry
from grounding.retrieval import (
    EARLIER_MAX_CHARACTERS,
    EARLIER_TURNS,
    Hit,
    PassageIndex,
    PassageQuery,
    Search,
    SparseVector,
    Vector,
    shorten,
    term_set,
)
from grounding.retrieval.bm25 import encode_query, term_index
from grounding.retrieval.query import LARGEST_WEIGHT, QUERY_MAX_CHARACTERS, mix_terms, mix_vectors, recent, weights
from grounding.strategy import earlier_questions
from tests.emulators.embedder import HashedWords

texts = st.lists(st.sampled_from(["refund", "window", "parcel", "office", "invoice", "the", "of"]), max_size=8).map(
    " ".join
)
turns = st.lists(texts, max_size=EARLIER_TURNS)
vectors = st.lists(st.integers(-9, 9).map(float), min_size=4, max_size=4)


def said(speaker: str, text: str, turn_id: str = "") -> TailEntry:
    return TailEntry(speaker=speaker, text=text, turn_id=turn_id)


def mixed_terms(message: str, *earlier: str) -> SparseVector:
    return mix_terms(encode_query(message), [encode_query(turn) for turn in earlier], len(term_set(message)))


def weight_of(word: str, message: str, *earlier: str) -> float:
    mixed = mixed_terms(message, *earlier)
    return dict(zip(mixed.indices, mixed.values, strict=True)).get(term_index(word), 0.0)


@given(texts, turns)
def test_the_message_s_own_terms_count_as_alone_and_those_before_it_at_most_their_share(
    message: str, earlier: list[str]
) -> None:
    own = encode_query(message)
    mixed = mixed_terms(message, *earlier)

    assert set(zip(own.indices, own.values, strict=True)) <= set(zip(mixed.indices, mixed.values, strict=True))
    assert list(mixed.indices) == sorted(set(mixed.indices))
    carried = {
        index: value for index, value in zip(mixed.indices, mixed.values, strict=True) if index not in own.indices
    }
    assert set(carried) == {index for turn in earlier for index in encode_query(turn).indices} - set(own.indices)
    assert all(0 < value <= LARGEST_WEIGHT for value in carried.values())


@given(st.integers(0, 50), st.integers(0, EARLIER_TURNS))
def test_a_turn_counts_less_the_older_it_is_and_the_more_the_message_says_itself(own_terms: int, count: int) -> None:
    found = weights(own_terms, count)

    assert len(found) == count
    assert found == sorted(found)
    assert all(more <= less for more, less in zip(weights(own_terms + 1, count), found, strict=True))


def test_a_word_said_in_both_turns_counts_as_in_the_later_one() -> None:
    both = weight_of("refund", "window", "refund office", "refund")

    assert both == weight_of("refund", "window", "refund") > weight_of("refund", "window", "refund", "office") > 0


def test_a_word_that_a_turn_repeats_counts_once() -> None:
    assert weight_of("refund", "window", "refund refund refund") == weight_of("refund", "window", "refund")


@given(vectors, st.lists(vectors, min_size=1, max_size=EARLIER_TURNS), st.integers(0, 20))
def test_mixed_vectors_have_the_length_one_or_none(own: list[float], earlier: list[list[float]], terms: int) -> None:
    length = math.dist(mix_vectors(own, earlier, terms), [0.0] * 4)

    assert length == pytest.approx(1.0, abs=1e-6) or length == 0


def test_a_message_that_says_more_is_turned_less_by_the_turn_before() -> None:
    short, long = (mix_vectors([1.0, 0.0], [[0.0, 1.0]], terms) for terms in (1, 8))

    assert long[0] > short[0] > short[1] > long[1] > 0


def test_only_the_beginnings_of_the_last_turns_are_used() -> None:
    pasted = "log " * 1000

    assert recent(["first", " ", "second", pasted]) == ("second", pasted[:EARLIER_MAX_CHARACTERS])


def test_what_people_asked_is_searched_with_and_not_what_they_were_answered() -> None:
    tail = [said("Lena", "How do refunds work?", "t1"), said("assistant", "Within thirty days.", "t1")]

    assert earlier_questions(tail) == ("How do refunds work?",)


def test_small_talk_on_the_way_does_not_hide_what_was_asked_before_it() -> None:
    tail = [said("Lena", "How do refunds work?"), said("Lena", "thanks!"), said("Lena", "hello")]

    assert earlier_questions(tail) == ("How do refunds work?",)


def test_the_last_turns_are_used_in_their_order_and_messages_answered_together_are_one() -> None:
    tail = [
        said("Lena", "Parcels?", "t1"),
        said("Lena", "Refunds:", "t2"),
        said("Bo", "how long?", "t2"),
        said("assistant", "Thirty days.", "t2"),
        said("Lena", "Which file explains invoices?", "t3"),
    ]

    assert earlier_questions(tail) == ("Refunds: how long?", "invoices?")


def test_turns_of_a_given_history_have_no_ids_and_are_turns_of_their_own() -> None:
    assert earlier_questions([said("user", "parcels"), said("user", "refunds")]) == ("parcels", "refunds")


def test_a_very_long_question_is_searched_by_its_beginning_and_end() -> None:
    assert len(shorten("a" * 100_000 + "end")) == QUERY_MAX_CHARACTERS + 1
    assert shorten("a" * 100_000 + "end").endswith("end")


class Asked:
    """An index that remembers the deeper vectors with which it was searched, and finds nothing."""

    deepens = True

    def __init__(self) -> None:
        self.deep: list[Vector | None] = []

    async def search(self, query: PassageQuery) -> list[Hit]:
        self.deep.append(query.deep)
        return []


class Reads(HashedWords):
    """A deeper model that can read texts about refunds."""

    def prepare(self, texts: Sequence[str]) -> None:
        """Nothing can be begun."""

    def _embed(self, text: str) -> Vector:
        return super()._embed(text) if "refund" in text else [0.0] * self.dimensions


@pytest.mark.parametrize(
    ("question", "earlier", "is_looked_at_again"),
    [
        ("what of the refund", (), True),
        ("what of the refund", ("und das Fenster",), True),
        ("und das Fenster", (), False),
        ("und das Fenster", ("what of the refund",), False),
    ],
)
async def test_a_question_that_the_deeper_model_cannot_read_is_searched_for_without(
    question: str, earlier: tuple[str, ...], is_looked_at_again: bool
) -> None:
    index = Asked()
    search = Search(cast("PassageIndex", index), HashedWords(), deep=Reads(32, "deeper"))
    await search.search(Scope("acme"), question, 5, earlier=earlier)
    (deep,) = index.deep
    assert (deep is not None) == is_looked_at_again
