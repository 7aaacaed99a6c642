"""Marks, and which good exchanges a prompt shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import ConversationKey
from grounding.memory.karma import (
    Exchange,
    Marked,
    Opinion,
    Sign,
    add_sign,
    marks,
    preferred,
    remove_sign,
    set_by_command,
    sign_of,
)
from grounding.memory.karma.examples import CHOSEN_AT_MOST, STANDING_AT_MOST, bearing, good_ones, standing, trace_of
from grounding.prompt import build_prompt, next_session_state
from grounding.prompt_input import DegradedBlock, RecalledTurn, SessionInput
from tests.emulators.prompts import TOKENS, context

HERE = ConversationKey("acme", "telegram", "-1")
DIRECT = ConversationKey("acme", "telegram", "501")
LENA, BO, ANN = "telegram:501", "telegram:502", "telegram:503"
PLACE = "place:telegram:-1"


def marked(turn_id: str = "t1", asked: str = "how do I moor?", audience: str = "", **changes: Any) -> Marked:
    exchange = Exchange(asked=asked, answered="With two springs.", audience=audience)
    exchange = exchange.model_copy(update={"foreign": changes.pop("foreign", "")})
    good, bad = changes.pop("good", (LENA,)), changes.pop("bad", ())
    opinions = [Opinion(user=user, signs=("good",)) for user in good] + [
        Opinion(user=user, signs=("bad",)) for user in bad
    ]
    fields: dict[str, Any] = {"conversation": HERE.encoded, "opinions": tuple(opinions), "marked_on": "2026-11-22"}
    return Marked(turn_id=turn_id, exchange=exchange, **(fields | changes))


@pytest.mark.parametrize(
    ("emoji", "sign"),
    [
        ("👍", "good"),
        ("👍🏽", "good"),
        ("👍🏿", "good"),
        (":+1:", "good"),
        (":thumbsup:", "good"),
        (":+1::skin-tone-3:", None),
        ("👎", "bad"),
        ("👎🏻", "bad"),
        (":thumbsdown:", "bad"),
        ("👀", None),
        ("", None),
        ("❤️", None),
    ],
)
def test_two_emoji_say_what_people_think_of_a_reply_whatever_their_skin_tone(emoji: str, sign: Sign | None) -> None:
    assert sign_of(emoji) == sign


def test_who_puts_two_emoji_is_taken_at_the_newest_and_at_the_other_when_that_goes() -> None:
    both = add_sign(add_sign(Opinion(user=LENA), "good"), "bad")
    assert both.mark == "bad"
    assert remove_sign(both, "good").mark == "bad"
    assert remove_sign(both, "bad").mark == "good"
    assert remove_sign(both).mark is None


def test_the_same_command_again_says_the_same_and_the_same_delivery_again_does_nothing() -> None:
    once = set_by_command(Opinion(user=LENA), "good", "c1")
    assert set_by_command(once, "good", "c1") == once
    assert set_by_command(once, "good", "c2").mark == "good"
    assert set_by_command(once, "bad", "c3").mark == "bad"
    assert set_by_command(once, None, "c4").mark is None


@given(st.lists(st.tuples(st.sampled_from(["said", "took"]), st.sampled_from(["good", "bad"]), st.floats(0, 9))))
def test_a_change_is_counted_where_the_mark_became_another_and_nowhere_else(
    steps: list[tuple[str, Sign, float]],
) -> None:
    opinion, changes = Opinion(user=LENA), 0
    for what, sign, moment in steps:
        before = opinion
        do = add_sign if what == "said" else remove_sign
        opinion = do(opinion, sign, moment=moment)
        changes += opinion.mark != before.mark
        assert len(set(opinion.signs)) == len(opinion.signs)
        assert opinion.moment >= before.moment
    assert opinion.changes == changes


def test_when_the_last_mark_is_taken_back_the_words_go() -> None:
    one = marked(good=(LENA,))
    gone = one.with_opinion(remove_sign(one.opinion_of(LENA)))
    assert gone.exchange is None
    assert marked(good=(LENA, BO)).with_opinion(remove_sign(one.opinion_of(LENA))).exchange is not None


def test_a_mark_of_an_earlier_version_belongs_to_its_person_or_its_place() -> None:
    def kept(conversation: ConversationKey, **exchange: str) -> str:
        old = {"asked": "how?", "answered": "So.", "foreign": "", "asked_in": [], **exchange}
        row = {"v": 1, "turn_id": "t1", "conversation": conversation.encoded, "exchange": old}
        found = marks.read(json.dumps(row)).exchange
        assert found is not None
        return found.audience

    assert kept(HERE, reach="workspace", person="") == "place:telegram:-1"
    assert kept(DIRECT, reach="person", person=LENA) == LENA
    assert kept(DIRECT, reach="conversation", person="") == "place:telegram:501"


def test_what_stands_is_the_most_marked_about_different_things_and_vouched_for() -> None:
    kinds = ("pier", "harbour", "sail", "anchor", "compass", "rudder")
    many = [marked(f"t{n}", f"tell me about the {kind}", good=(LENA, BO)) for n, kind in enumerate(kinds)]
    best = marked("t8", "how do I moor the boat?", good=(LENA, BO, ANN))
    again = marked("t9", "how do I moor a boat?", good=(LENA, BO))
    alone = marked("t7", "what is a keel?", good=(LENA,))
    tainted = marked("t6", "what is a jib?", good=(LENA, BO, ANN), foreign="retrieved")

    names = [one.turn_id for one in standing(good_ones([*many, again, best, alone, tainted], None))]

    assert len(names) == STANDING_AT_MOST
    assert names[0] == "t8"
    assert {"t9", "t7", "t6"} & set(names) == set()


def test_what_bears_on_a_message_is_above_the_floor_and_not_shown_besides() -> None:
    kinds = ("pier", "harbour", "sail", "anchor", "compass", "rudder")
    many = [marked(f"t{n}", f"tell me about the {kind}") for n, kind in enumerate(kinds)]
    same = marked("t9", "tell me about the rudder", good=(LENA, BO))
    likeness = {"t0": 0.4, "t1": 0.6, "t2": 0.7, "t3": 0.8, "t4": 0.9, "t5": 0.95, "t9": 0.95}

    found = bearing([*many, same], likeness, 0.5, {"t3"})

    assert [one.turn_id for one in found] == ["t9", "t4", "t2", "t1"]
    assert len(found) == CHOSEN_AT_MOST
    assert all(one.shared for one in found)


def test_of_earlier_turns_that_fit_as_well_the_marked_one_comes_first() -> None:
    def turn(turn_id: str, score: float) -> RecalledTurn:
        return RecalledTurn(turn_id=turn_id, said_on="2026-11-22", text="x", score=score)

    found = [turn("t1", 2.0), turn("t2", 1.0), turn("t3", 1.0), turn("t4", 0.9)]
    assert [one.turn_id for one in preferred(found, {"t3", "t9"})] == ["t1", "t3", "t2", "t4"]
    assert preferred(found, {"t9"}) == found


@given(st.sampled_from(["", LENA, BO, PLACE]), st.sampled_from([LENA, BO, PLACE, None]))
def test_nothing_said_in_private_is_seen_by_anybody_else(audience: str, reader: str | None) -> None:
    assert bool(good_ones([marked(audience=audience)], reader)) == (audience in ("", reader))


def test_what_stands_is_remembered_with_the_session_and_not_lost_when_it_could_not_be_had() -> None:
    trace = trace_of(marked("t1", good=(LENA, BO)))
    assert trace is not None
    session = SessionInput(id="t5", began_on="2026-11-22", turns=0)
    first = context(turn_id="t5", session=session, karma_floor=(trace,))
    shown = next_session_state(first, build_prompt(first, TOKENS), None, None)
    assert shown is not None
    assert shown.karma_floor == ("t1",)

    lost = context(turn_id="t6", session=session, degraded=(DegradedBlock(block="karma", why="timeout"),))
    later = next_session_state(lost, build_prompt(lost, TOKENS), shown, None)
    assert later is not None
    assert later.karma_floor == ("t1",)
    gone = context(turn_id="t7", session=session)
    last = next_session_state(gone, build_prompt(gone, TOKENS), later, None)
    assert last is not None
    assert last.karma_floor == ()
