"""Frames: what kind of thing a message asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.memory.frames import (
    LARGEST,
    SMALLEST,
    InvalidFrames,
    choose,
    complexity,
    frames_of,
    problem_in,
    scale,
)
from grounding.memory.records import Type
from grounding.strategy import cues_of

CHOSEN = [
    ("I had a nice weekend with my kids", "conversation"),
    ("What is our refund policy?", "question"),
    ("who is Tim", "question"),
    ("Remind me to call Bob tomorrow", "task"),
    ("How do I deploy the service?", "task"),
    ("Come up with a slogan for our bakery", "creative"),
    ("Should we use Redis for caching?", "decision"),
    ("Why did the deploy fail?", "debugging"),
    ("The build doesn't work any more", "debugging"),
    ("Sollen wir Kafka oder RabbitMQ nehmen?", "decision"),
    ("Die Anwendung stürzt ab", "debugging"),
    ("Devrions-nous changer de fournisseur ?", "decision"),
    ("El servidor no funciona", "debugging"),
]


@pytest.mark.parametrize(("text", "frame"), CHOSEN)
def test_a_message_has_the_frame_of_what_it_asks_for(text: str, frame: str) -> None:
    assert choose(text).frame.name == frame


@pytest.mark.parametrize("greeting", ["Hi! ", "Hello there, ", "Good morning! Thanks for yesterday. "])
@pytest.mark.parametrize(("text", "frame"), CHOSEN)
def test_a_greeting_in_front_hides_nothing(greeting: str, text: str, frame: str) -> None:
    assert choose(greeting + text).frame.name == frame


@pytest.mark.parametrize(
    "text", ["and RabbitMQ?", "why?", "ok, and then?", "Can you tell me more?", "What about Redis?", "und RabbitMQ?"]
)
def test_a_message_that_names_nothing_by_itself_goes_on_in_the_frame_of_what_was_asked_before(text: str) -> None:
    chosen = choose(text, earlier=["Should we use Kafka?"], cues=cues_of(('languages = ["german"]',)))

    assert (chosen.frame.name, chosen.reason) == ("decision", "goes_on")


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("What is the refund policy?", "question"),
        ("and what is the refund policy?", "question"),
        ("Who is Tim?", "question"),
        ("Lena has a new phone", "conversation"),
    ],
)
def test_a_short_message_with_a_subject_of_its_own_has_its_own_frame(text: str, frame: str) -> None:
    assert choose(text, earlier=["The build fails with an error"]).frame.name == frame


def test_who_says_to_go_ahead_acts_on_a_decision() -> None:
    assert choose("ok, go ahead").acts
    assert not choose("Should we go?").acts


INCIDENT = """
[frames.incident]
description = "A service is down."
questions = ["Who is affected?"]
cues = ["pager", "sev1"]
priorities = { episode = 1.0 }
rank = 9
[frames.debugging]
remove = ["bug"]
[acting]
add = ["make the change"]
"""


def test_a_workspace_adds_frames_and_changes_those_that_ship() -> None:
    frames = frames_of((INCIDENT,))

    assert choose("the pager went off, an error", frames).frame.name == "incident"
    assert frames["incident"].priority(Type.EPISODE) == 1.0
    assert choose("there is a bug", frames).frame.name == "conversation"
    assert choose("make the change", frames).acts
    assert choose("there is a bug").frame.name == "debugging"
    assert frames_of((INCIDENT,)) is frames


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frames = 3", "frames"),
        ("[frames.Bad]", "no name of a frame"),
        ("[frames.x]\npriorities = { memories = 1.0 }", "'decision', 'fact'"),
        ("[frames.x]\npriorities = { fact = 2.0 }", "less than or equal to 1"),
        ('[frames.x]\ncues = ["?!"]', "holds no word"),
        ("[frames.x]\ncolour = 1", "colour"),
        ("[", "no TOML"),
    ],
)
def test_a_file_with_mistakes_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    assert said in problem_in(text)
    with pytest.raises(InvalidFrames):
        frames_of((text,))


@given(st.text(max_size=400), st.text(max_size=80))
def test_no_word_more_makes_a_message_simpler(text: str, more: str) -> None:
    assert 0 <= complexity(text) <= 1
    assert SMALLEST <= scale(text) <= LARGEST
    assert complexity(f"{text} {more}") >= complexity(text) - 1e-9


def test_a_long_message_of_many_parts_has_larger_budgets_than_a_short_question() -> None:
    long = (
        "We run 3 services, Billing, Search and Mail, on `k8s` 1.29; since Tuesday Mail drops 4 % of its jobs, while "
        "Billing is fine. Should we move Mail to its own pool, or raise its limits? And what would that cost, if we "
        'keep the "old" queue until May, because of the contract?'
    )
    assert scale(long) > 1.0 > 0.6 > scale("Who is Tim?")


@given(st.text(max_size=200))
def test_the_same_message_has_the_same_frame(text: str) -> None:
    assert choose(text) == choose(text)
