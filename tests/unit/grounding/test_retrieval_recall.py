"""Which earlier turns are told, by what stands beside them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from grounding.retrieval import Hit, Kind, Passage, TurnFloor
from grounding.retrieval.index import CONTINUED, Arm
from grounding.retrieval.recall import PART_MAX_CHARACTERS, split_turn
from grounding.retrieval.turn_ranking import rank_turns, with_adjacent


def said(number: int, text: str, day: str = "2026-11-01") -> Passage:
    before = f"t{number - 1}" if number else ""
    return Passage(f"t{number}:0", Kind.TURN, f"t{number}", text, said_at=f"{day}T10:00:00+00:00", previous=before)


def order(query: str, hits: list[Hit], beside: list[Passage] | None = None) -> list[str]:
    return [one.passage.source for one in rank_turns(query, hits, beside or [])]


def test_an_answer_that_does_not_say_the_words_of_the_question_follows_who_asked_them() -> None:
    hits = [Hit(said(1, "Ann: What is your dog called?"), 1.0), Hit(said(9, "Bo: Dogs are fine."), 0.4)]
    hits += [Hit(said(number, "Cy: Rain again."), 0.1) for number in range(20, 26)]

    found = order("what is the dog called?", hits, [said(2, "Bo: Rex!")])

    assert set(found[:2]) == {"t1", "t2"}


def test_what_was_said_on_another_day_is_no_answer() -> None:
    hits = [Hit(said(1, "Ann: What is your dog called?"), 1.0), Hit(said(9, "Bo: Dogs are fine."), 0.4)]
    hits += [Hit(said(number, "Cy: Rain again."), 0.1) for number in range(20, 26)]

    assert "t2" not in order("what is the dog called?", hits, [said(2, "Bo: Rex!", "2026-11-05")])[:2]


def test_of_two_who_say_the_same_whom_the_question_names_comes_first() -> None:
    hits = [Hit(said(1, "Ann: I went to Rome."), 1.0), Hit(said(5, "Bo: I went to Rome."), 1.0), Hit(said(9, "x"), 0.0)]

    assert order("where did Bo go?", hits)[0] == "t5"


def test_of_two_who_say_the_same_a_person_comes_before_the_assistant() -> None:
    hits = [Hit(said(1, "assistant: It is due in May."), 1.0), Hit(said(5, "Bo: It is due in May."), 1.0)]

    assert order("when is it due?", hits) == ["t5", "t1"]


def test_a_day_that_fits_well_lifts_what_was_said_on_it() -> None:
    trip = [Hit(said(number, "Ann: the trip", "2026-11-02"), 1.0) for number in (30, 40)]
    rest = [Hit(said(number, "Bo: other things", "2026-11-03"), 0.1) for number in (60, 70, 80)]
    equal = [Hit(said(90, "Cy: it was nice", "2026-11-03"), 0.5), Hit(said(50, "Cy: it was nice", "2026-11-02"), 0.5)]

    assert order("the trip", trip + equal + rest).index("t50") < order("the trip", trip + equal + rest).index("t90")


texts = st.sampled_from(
    ["Ann: Where?", "Bo: Here.", "assistant: Yes.", "the end of a long one", "", "Ann: x\nassistant: y"]
)
turns = st.lists(st.tuples(texts, st.floats(-2, 2), st.sampled_from(["2026-11-01", "2026-11-02"])), max_size=8)


@given(turns, st.lists(st.tuples(st.integers(0, 12), texts), max_size=4))
def test_all_that_was_found_is_judged_once_whatever_the_order_in_which_it_comes(
    found: list[tuple[str, float, str]], near: list[tuple[int, str]]
) -> None:
    hits = [Hit(said(number, text, day), score) for number, (text, score, day) in enumerate(found)]
    beside = list({number: said(number, text) for number, text in near}.values())

    judged = rank_turns("where was Ann?", hits, beside)

    assert sorted(one.passage.id for one in judged) == sorted({one.id for one in [*(h.passage for h in hits), *beside]})
    mixed = random.Random(1).sample(hits, len(hits)), random.Random(2).sample(beside, len(beside))
    again = rank_turns("where was Ann?", *mixed)
    assert sorted(round(one.score, 6) for one in again) == sorted(round(one.score, 6) for one in judged)
    some = [one.passage for one in judged[::2]]
    assert rank_turns("where was Ann?", hits, beside, some) == judged[::2]


def test_nothing_is_told_unless_one_turn_surely_speaks_of_it_and_then_its_neighbours_are_too() -> None:
    def hit(number: int, text: str, cosine: float) -> Hit:
        return Hit(said(number, text), 1.0, Arm(0, cosine))

    floor = TurnFloor(0.6, 0.4, dense_weight=1.0, coverage_weight=0.0)
    neighbours = [said(0, "x"), said(2, "Bo: Rex")]
    unsure = floor.sure_turns("dogs", [hit(1, "Ann: a dog", 0.5), hit(7, "Bo: rain", 0.1)])
    sure = floor.sure_turns("dogs", [hit(1, "Ann: a dog", 0.7), hit(7, "Bo: rain", 0.1)])

    assert unsure == set()
    assert sure == {"t1"}
    passages = [said(1, "Ann: a dog"), said(7, "Bo: rain"), *neighbours]
    assert {one.source for one in with_adjacent(sure, passages)} == {"t0", "t1", "t2"}


def test_what_nobody_asked_for_has_to_bear_on_the_message_more_and_still_more_where_that_says_little() -> None:
    floor = TurnFloor(0.5, 0.3, coverage_weight=0.0, unasked=0.6, unasked_few=0.8)

    def kept(text: str, cosine: float, *, asked_for: bool = False) -> bool:
        found = [Hit(said(1, "Ann: a dog of hers"), 1.0, Arm(0, cosine))]
        return bool(floor.sure_turns(text, found, asked_for=asked_for))

    assert kept("my dog barks", 0.55, asked_for=True)
    assert not kept("my dog barks", 0.55)
    assert kept("my dog barks", 0.65)
    assert not kept("dogs", 0.65)
    assert kept("dogs", 0.85)
    assert kept("where is my dog?", 0.65)


def test_a_turn_with_a_deeper_vector_is_judged_by_it_and_others_by_their_words() -> None:
    deeper = TurnFloor(0.5, 0.3, dense_weight=0.0, coverage_weight=0.0, deep_weight=1.0)
    floor = TurnFloor(0.5, 0.3, dense_weight=1.0, coverage_weight=0.0, deeper=deeper)
    near = Hit(said(1, "Ann: a dog"), 1.0, Arm(0, 0.1), deep=Arm(0, 0.6))
    far = Hit(said(3, "Ann: a cat"), 1.0, Arm(0, 0.9), deep=Arm(0, 0.1))
    later = Hit(said(5, "Ann: a cow"), 1.0, Arm(0, 0.4))

    assert floor.sure_turns("pets", [near, far, later]) == {"t1", "t5"}
    assert floor.sure_turns("pets", [far, later]) == set()


def test_who_asks_about_their_own_is_told_what_somebody_said_of_their_own() -> None:
    deeper = TurnFloor(0.5, 0.3, unasked=0.5, unasked_few=0.5, deep_weight=1.0, own_weight=0.2)
    floor = TurnFloor(9.0, 9.0, deeper=deeper)

    def recalls(question: str, text: str) -> bool:
        return bool(floor.sure_turns(question, [Hit(said(1, text), 1.0, deep=Arm(0, 0.4))], asked_for=False))

    assert recalls("what is my pet called?", "Ann: we named the puppy Biscuit\nassistant: Lovely!")
    assert not recalls("what is a pet called?", "Ann: we named the puppy Biscuit\nassistant: Lovely!")
    assert not recalls("what is my pet called?", "Ann: which names do we like?\nassistant: I like Biscuit.")


def test_of_two_alike_the_one_that_is_nearer_by_its_deeper_vector_comes_first() -> None:
    rain = [Hit(said(n, "Cy: Rain again."), 0.5, deep=Arm(0, 0.1)) for n in (20, 30, 40)]
    hits = [Hit(said(1, "Ann: A cat."), 1.0), Hit(said(5, "Ann: A cat."), 1.0, deep=Arm(0, 0.5)), *rain]

    assert order("pets?", hits)[0] == "t5"


def test_what_answers_a_question_comes_before_the_turns_in_which_it_was_asked_before() -> None:
    asked = "who is my dentist?"
    again = [Hit(said(n, "Ann: Who is my dentist?\nassistant: I do not know."), 0.9) for n in (20, 30, 40)]
    told = Hit(said(3, "Ann: Dr. Sharma is my dentist.\nassistant: Noted."), 0.5)
    rain = [Hit(said(n, "Cy: Rain again."), 0.1) for n in (5, 21, 31)]

    assert order(asked, [*again, told, *rain])[0] == "t3"
    assert order(asked, [*again, told, *rain])[-3:] == ["t20", "t30", "t40"]


def test_that_something_was_said_need_not_be_said_in_what_is_recalled() -> None:
    floor = TurnFloor(0.6, 0.4, dense_weight=0.0, coverage_weight=1.0)
    question = "What did I tell you about the boat, as we discussed?"
    found = [Hit(said(1, "Ann: The boat is red."), 1.0), Hit(said(5, "Ann: I told you!"), 0.5)]

    assert floor.sure_turns(question, found) == {"t1"}


def test_a_part_of_a_long_turn_says_who_goes_on_speaking() -> None:
    long = "word " * 500
    first, second, *_ = split_turn(f"Ann: how?\nassistant: {long}")
    after = split_turn(f"Ann: {'x' * (PART_MAX_CHARACTERS - 10)}\nassistant: short")

    assert first.startswith("Ann: how?\nassistant: word")
    assert second.startswith(f"assistant: {CONTINUED}word")
    assert after[1] == "assistant: short"


@given(st.text(max_size=5000))
def test_parts_of_a_turn_hold_all_its_words(text: str) -> None:
    # Who goes on speaking is named again, with a mark that the texts do not have.
    parts = [part.partition(CONTINUED)[2] or part for part in split_turn(text.replace(CONTINUED, ""))]
    assert "".join("".join(parts).split()) == "".join(text.replace(CONTINUED, "").split())
