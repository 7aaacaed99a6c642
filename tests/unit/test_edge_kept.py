"""What is kept of the engine's points is what the engine has, and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.documents.centre import centre_of
from grounding.documents.edge_kept import Kept, Named
from grounding.documents.edge_places import Places
from grounding.documents.index import Kind, Passage, cosine
from grounding.documents.stored import Place, payload

SCOPE = Scope("acme")


@dataclass
class Record:
    id: UUID
    payload: dict[str, Any] | None
    vector: dict[str, list[float]] | None


class Shard:
    """Points by number, and how many were handed over."""

    def __init__(self, vectors: dict[int, list[float]]) -> None:
        self.vectors = vectors
        self.handed = 0

    def retrieve(self, ids: list[UUID], with_payload: Any, with_vector: Any) -> list[Record]:
        there = [one for one in ids if one.int in self.vectors]
        self.handed += len(there)
        return [
            Record(
                one,
                payload(SCOPE, Passage(str(one.int), Kind.DOCUMENT, "a.md", "text")) if with_payload else None,
                {"dense": self.vectors[one.int]} if with_vector else None,
            )
            for one in reversed(there)
        ]


NUMBERS = st.floats(-4, 4, width=32).filter(lambda one: one == 0 or abs(one) > 1e-3)
VECTORS = st.dictionaries(st.integers(0, 40), st.lists(NUMBERS, min_size=3, max_size=3), min_size=1)


@given(VECTORS, st.lists(NUMBERS, min_size=3, max_size=3))
def test_cosines_are_those_of_the_stored_vectors_and_the_centre_is_theirs(
    vectors: dict[int, list[float]], to: list[float]
) -> None:
    shard, kept = Shard(vectors), Kept()
    for _ in range(2):
        assert kept.cosines(shard, to, [*vectors]) == pytest.approx(
            {point: cosine(to, one) for point, one in vectors.items()}
        )
    assert kept.centre(shard, [*vectors]) == centre_of([*vectors.values()])
    assert shard.handed == len(vectors)


@given(st.lists(st.lists(st.integers(0, 20), unique=True), max_size=20))
def test_what_is_asked_comes_in_its_order_however_much_was_kept_before(asked: list[list[int]]) -> None:
    shard, kept = Shard({point: [1.0] for point in range(15)}), Kept(most=6)
    for points in asked:
        there = [point for point in points if point < 15]
        assert [one.id for one in kept.passages(shard, points).values()] == [str(point) for point in there]


class Chat(Shard):
    """Parts of turns by number, and how often somebody asked which begin."""

    def __init__(self) -> None:
        super().__init__({})
        self.parts: dict[int, Passage] = {}
        self.asked = 0

    def retrieve(self, ids: list[UUID], with_payload: Any, with_vector: Any) -> list[Record]:
        return [Record(one, payload(CHAT, self.parts[one.int]), None) for one in ids if one.int in self.parts]

    def begin(self, by: Named, names: list[str]) -> list[int]:
        self.asked += 1
        return [point for point, one in sorted(self.parts.items()) if not one.ordinal and getattr(one, by) in names]


CHAT = Scope("acme", context_id="chat")
TURNS = st.sampled_from("abcd")
STORED = st.builds(
    lambda source, ordinal, previous: Passage(
        f"{source}:{ordinal}", Kind.TURN, source, "text", ordinal=ordinal, previous=previous
    ),
    TURNS,
    st.integers(0, 1),
    st.sampled_from(["", *"abcd"]),
)
GONE = st.integers(0, 7)
ASKED = st.tuples(st.sampled_from(get_args(Named)), st.lists(TURNS, unique=True))


@given(st.lists(st.one_of(STORED, GONE, ASKED), max_size=40))
def test_what_begins_a_turn_is_what_is_stored_now_whatever_was_kept_of_it(
    steps: list[Passage | int | tuple[Named, list[str]]],
) -> None:
    chat, kept = Chat(), Kept(most=6)
    for step in steps:
        if isinstance(step, Passage):
            point = 2 * "abcd".index(step.source) + step.ordinal
            kept.forget([point])
            kept.begin_anew([("chat", step)])
            chat.parts[point] = step
        elif isinstance(step, int):
            kept.forget([step])
            chat.parts.pop(step, None)
        else:
            by, names = step
            found = kept.beginnings(chat, "chat", by, names, lambda lacking, by=by: chat.begin(by, lacking))  # type: ignore[misc]
            assert found == [chat.parts[point] for point in chat.begin(by, names)]


def test_what_begins_a_turn_is_asked_for_once_until_something_of_it_is_stored() -> None:
    chat, kept = Chat(), Kept()
    chat.parts = {1: Passage("a:0", Kind.TURN, "a", "text"), 2: Passage("b:0", Kind.TURN, "b", "text", previous="a")}

    def found(*names: str) -> list[str]:
        begin = kept.beginnings(chat, "chat", "previous", names, lambda lacking: chat.begin("previous", lacking))
        return [one.id for one in begin]

    assert [found("a", "b"), found("b", "a"), found("b")] == [["b:0"], ["b:0"], []]
    assert chat.asked == 1
    chat.parts[3] = Passage("c:0", Kind.TURN, "c", "text", previous="b")
    kept.begin_anew([("chat", chat.parts[3])])
    assert [found("a"), found("b")] == [["b:0"], ["c:0"]]
    assert chat.asked == 2


def test_what_was_forgotten_is_read_again() -> None:
    shard, kept = Shard({1: [1.0], 2: [1.0]}), Kept()
    kept.passages(shard, [1, 2])
    kept.passages(shard, [2, 1])
    assert shard.handed == 2
    kept.forget([1])
    kept.passages(shard, [1, 2])
    assert shard.handed == 3
    kept.clear()
    kept.passages(shard, [1, 2])
    assert shard.handed == 5


def test_places_are_read_once_until_a_passage_is_stored_again() -> None:
    shard, kept = Shard({1: [1.0], 2: [1.0]}), Kept()
    for _ in range(2):
        assert kept.places(shard, [1, 2, 3]) == {1: Place("a.md", 0), 2: Place("a.md", 0)}
    assert shard.handed == 2
    kept.forget([2])
    kept.places(shard, [1, 2])
    assert shard.handed == 3
    kept.clear()
    kept.places(shard, [1, 2])
    assert shard.handed == 5


IDS = st.integers(0, 2**64 - 1).map(lambda low: low | (low % 7) << 64)
"""No two of the same lower half, as mostly."""


def test_no_more_places_are_kept_than_there_is_room_for() -> None:
    places = Places(most=10, young=4)
    for start in range(0, 400, 5):
        places.put({point * 7919 << 60: Place(f"{point}.md", point) for point in range(start, start + 5)})
        assert len(places) <= 14
    last = [point * 7919 << 60 for point in range(395, 400)]
    assert [*places.all(last).values()] == [Place(f"{point}.md", point) for point in range(395, 400)]
    assert len(places._names) <= 28


@given(
    st.lists(
        st.one_of(
            st.dictionaries(IDS, st.integers(0, 3), max_size=9),
            st.lists(st.integers(0, 60), max_size=5),
        ),
        max_size=20,
    )
)
def test_places_are_those_that_were_put_last_and_not_forgotten(steps: list[dict[int, int] | list[int]]) -> None:
    places, known, met = Places(most=10_000, young=3), dict[int, Place](), list[int]()
    for step in steps:
        if isinstance(step, dict):
            new = {point: Place(f"{ordinal}.md", ordinal) for point, ordinal in step.items()}
            places.put(new)
            known |= new
            met += new
        else:
            gone = [met[number % len(met)] for number in step if met]
            places.forget(gone)
            for point in gone:
                known.pop(point, None)
        assert places.all(met) == {point: known.get(point) for point in met}
    places.clear()
    assert places.all(met) == dict.fromkeys(met)
