"""What is extracted from realistic talk without a model: several languages, units, groups, corrections, code, lists."""

from __future__ import annotations

import pytest

from grounding.memory.context_document import DocumentLine, Facts, bodies, kept_lines, sentences, summarise
from grounding.memory.context_document.document import lines
from grounding.memory.context_document.summarise import paragraphs
from grounding.transcript import EntryRole, TranscriptEntry


def talk(*lines: str, first: int = 1) -> list[TranscriptEntry]:
    """Entries from lines such as ``Lena> text``; ``BOT> text`` answers the turn before it."""
    entries: list[TranscriptEntry] = []
    number = first - 1
    for line in lines:
        who, _, text = line.partition("> ")
        number += who != "BOT"
        role = EntryRole.OUTBOUND if who == "BOT" else EntryRole.INBOUND
        entries.append(TranscriptEntry(role, text, f"t{number:03}", "2026-11-21T10:00:00.000Z", author=who))
    return entries


def noted(*lines: str, previous: str = "", kept: tuple[DocumentLine, ...] = ()) -> dict[str, str]:
    return bodies(summarise.document(previous, talk(*lines), 7, kept))


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (["The budget is 12,500.50 EUR and the deadline is 3.5 weeks from now."], ["budget: 12,500.50 EUR"]),
        (["Our server runs v2.4.1. The max weight is 3.75 kg."], ["max weight: 3.75 kg"]),
        (["Owner: Ana\nDue: 2026-12-01"], ["owner: Ana", "due: 2026-12-01"]),
        (["My address is 5 Main St. Apt. 3, Springfield."], ["Lena's address: 5 Main St. Apt. 3, Springfield"]),
        (["The deadline is Friday, not Thursday."], ["deadline: Friday"]),
        (["The codename is not Hawk but Kite."], ["codename: Kite"]),
        (["The link is https://example.com/a.b?c=d now"], ["link: https://example.com/a.b?c=d"]),
        (["The launch has been moved to 20 March because of the audit"], ["launch: 20 March"]),
    ],
)
def test_numbers_units_dates_and_names_stay_whole(said: list[str], facts: list[str]) -> None:
    found = noted(*(f"Lena> {text}" for text in said))["Facts"].splitlines()
    assert set(found) >= {f"- {fact}" for fact in facts}


def test_a_correction_of_a_correction_is_what_holds() -> None:
    first = summarise.document(
        "",
        talk(
            "Lena> The launch date is 12 March.",
            "Lena> Actually, make it 14 March.",
            "Lena> Sorry, I meant 15 March, not 14.",
        ),
        7,
    )
    assert bodies(first)["Facts"] == "- launch date: 15 March"
    second = summarise.document(first, talk("Lena> No, back to 12 March.", first=4), 7)
    assert bodies(second)["Facts"] == "- launch date: 12 March"


def test_a_correction_is_about_the_last_value_of_its_sort() -> None:
    facts = noted("Jo> The codename is Falke. The budget is 5.000 €.", "Jo> No, it's Habicht.")["Facts"]
    assert facts.splitlines() == ["- budget: 5.000 €", "- codename: Habicht"]


def test_a_remark_is_no_correction() -> None:
    assert noted("Jo> The budget is 5,000 EUR.", "Jo> Actually, it's raining.")["Facts"] == "- budget: 5,000 EUR"


@pytest.mark.parametrize(
    "text",
    [
        "If the budget is 9000 we can hire.",
        "I wonder whether the office is open.",
        "Maybe the deadline is Friday.",
        "What if the codename is Hawk?",
        "Is the codename Hawk?",
        "> the codename is Hawk",
        "```\nthe codename is Hawk\n```",
        "The whole thing is a mess.",
        "Note: call first",
    ],
)
def test_what_is_supposed_asked_quoted_or_code_is_no_fact(text: str) -> None:
    assert "Facts" not in noted(f"Bo> {text}")


def test_in_a_group_everybody_has_facts_of_their_own() -> None:
    made = noted(
        "Lena> My desk is 4B.",
        "Omar> My desk is 7A, and I prefer short answers.",
        "Lena> my desk is 5C now",
        "Kim> Who has the projector?",
        "BOT> I don't know who has it. I'll ask Sam.",
        "Omar> We decided to use Postgres instead of MySQL.",
    )
    assert made["Description"] == "People: Lena, Omar, Kim"
    assert made["Facts"].splitlines() == ["- Omar's desk: 7A", "- Lena's desk: 5C"]
    assert made["Preferences"] == "- Omar: I prefer short answers"
    assert made["Decisions"] == "- Omar: We decided to use Postgres instead of MySQL"
    assert made["Progress"].splitlines() == ["- Open: Kim: Who has the projector?"]
    assert made["Active Context"] == "- Kim: Who has the projector?"


def test_a_group_is_remembered_as_one_when_a_single_person_goes_on() -> None:
    first = summarise.document("", talk("Lena> hm, the desk?", "Omar> no idea, the door?"), 7)
    second = bodies(summarise.document(first, talk("Omar> my desk is 7A", first=3), 7))
    assert second["Description"] == "People: Lena, Omar"
    assert second["Facts"] == "- Omar's desk: 7A"


def test_answered_questions_are_not_open() -> None:
    made = noted("Ana> What does it cost?", "BOT> 12 euros a month.", "Ana> Where is the invoice?")
    assert made["Progress"] == "- Open: Where is the invoice?"


def test_what_the_assistant_did_is_progress() -> None:
    made = noted(
        "Sam> book a venue please",
        "BOT> I have booked Porto. Would you like anything else?",
        "Sam> Great.",
        "BOT> Noted.",
    )
    assert made["Progress"] == "- Done: I have booked Porto."
    assert made["Active Context"] == "- book a venue please"


def test_what_was_done_before_stays_while_there_is_room() -> None:
    made = ""
    for number in range(1, 10):
        made = summarise.document(made, talk(f"Sam> do step {number}", f"BOT> I have finished step {number}."), 4)
    assert bodies(made)["Progress"].splitlines() == [f"- Done: I have finished step {n}." for n in (6, 7, 8, 9)]


def test_a_list_stands_with_what_announces_it_and_code_stays_out() -> None:
    made = noted(
        "Ana> Please buy:\n- 2 kg of flour\n- 1.5 l milk\n- eggs",
        "Dev> Why does this fail?\n```python\nthe_value = 1\n```",
        "Mia> My order is 4711-22 and it has not arrived yet. Where is it?",
    )
    assert made["Active Context"].splitlines() == [
        "- Ana: Please buy: 2 kg of flour; 1.5 l milk; eggs",
        "- Dev: Why does this fail?",
        "- Mia: My order is 4711-22 and it has not arrived yet. Where is it?",
    ]


def test_lines_of_a_section_that_are_no_pairs_are_kept() -> None:
    """As a model or a person wrote them."""
    previous = "## Facts\n- Lena lives in Berlin\n- boat: blue\n\n## Patterns\n- retry once\n"
    made = noted("Lena> the boat is red", previous=previous)
    assert made["Facts"].splitlines() == ["- Lena lives in Berlin", "- boat: red"]
    assert made["Patterns"] == "- retry once"


def test_what_a_person_wrote_stays_in_every_section() -> None:
    kept = (
        DocumentLine("", "Only for the crew"),
        DocumentLine("Active Context", "- the regatta"),
        DocumentLine("Facts", "- boat: blue"),
    )
    previous = "Only for the crew\n\n## Active Context\n- the regatta\n\n## Facts\n- boat: blue\n"
    made = noted("Lena> where do we moor?", "Lena> the boat is red", previous=previous, kept=kept)
    assert made["Description"].splitlines() == ["People: Lena", "Only for the crew"]
    assert made["Active Context"].splitlines() == ["- where do we moor?", "- the regatta"]
    assert made["Facts"] == "- boat: red"


def test_lists_as_people_write_them_are_neither_doubled_nor_lost() -> None:
    put = (
        "## Progress\n- Done: signed the contract\n\n"
        "## Facts\n* Office: Oslo\n1. Boss: Ada\n- Meeting: Monday in room 4\n- Meeting: Friday online\n"
    )
    kept = tuple(lines(put))
    talked = [f"Lena> I have sent letter {number}." for number in range(9)] + ["BOT> Done: filed it."]
    once = summarise.document(put, talk(*talked, "Lena> the office is Bergen"), 7, kept)
    made = bodies(summarise.document(once, talk("Lena> I have sent all."), 7, kept_lines(once, kept)))
    assert made["Facts"].splitlines() == [
        "- Boss: Ada",
        "- Meeting: Monday in room 4",
        "- Meeting: Friday online",
        "- Office: Bergen",
    ]
    assert "- Done: signed the contract" in made["Progress"].splitlines()
    assert "- Done: filed it." in made["Progress"].splitlines()


def test_sentences_end_where_people_end_them() -> None:
    assert sentences("It costs 3.50 EUR. Ask Dr. Müller (ext. 5)! e.g. today… See notes.md") == [
        "It costs 3.50 EUR.",
        "Ask Dr. Müller (ext. 5)!",
        "e.g. today…",
        "See notes.md",
    ]
    assert paragraphs("todo:\n1. write\n2. review\n\nthanks") == ["todo: write; review", "thanks"]


def test_a_renamed_thing_keeps_one_name() -> None:
    facts = Facts.read("- project name: Falcon")
    facts.learn("Rename the project to Osprey")
    assert facts.items() == ["project name: Osprey"]
