"""Cues as data: the file of a workspace, and the languages that ship."""

import pytest

from grounding.strategy import ENGLISH, LANGUAGES, InvalidCues, choose, cues_of, joined_cues, problem_in, words_of
from grounding.strategy.cues import KINDS
from grounding.strategy.languages import MAX_PHRASES, parse

FILE = """
languages = ["german"]
[add]
documents = ["price book", "Netlist"]
[remove]
documents = ["policy"]
"""


def test_a_file_adds_removes_and_chooses_languages() -> None:
    cues = cues_of((FILE,))

    assert choose("is it in the price book?", cues).wants_documents
    assert choose("open the NETLIST", cues).wants_documents
    assert choose("Was steht im Handbuch?", cues).wants_documents
    assert not choose("what is our policy?", cues).wants_documents
    assert choose("what is our policy?").wants_documents


def test_the_more_specific_file_has_the_last_word() -> None:
    assert choose("our policy?", cues_of((FILE, '[add]\ndocuments = ["policy"]'))).wants_documents


def test_the_same_files_are_the_same_object_and_none_are_the_cues_that_ship() -> None:
    assert cues_of((FILE,)) is cues_of((FILE,))
    assert cues_of(()) is ENGLISH


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("languages = [", "no TOML"),
        ("documents: price book", 'no TOML, such as add.documents = ["price book"]'),
        ('languages = "german"', "languages must be a list"),
        ('languages = ["klingon"]', "'klingon' does not ship: use french, german, spanish"),
        ('languages = [["german"]]', "['german'] does not ship"),
        ("x = " + "[" * 20_000, "brackets in brackets"),
        ("x = " + "1" * 5000, "no TOML"),
        ("[add]\ndocuments = ['C++']", "'C++' would be seen in every 'c'"),
        ("[add]\ndocumentz = ['x']", "add.documentz is no kind of cue: use small_talk"),
        ("[add]\ndocuments = 'x'", "add.documents must be a list of phrases"),
        ("[add]\ndocuments = [3]", "add.documents: 3 is no text"),
        ("[add]\ndocuments = ['!?']", "'!?' holds no word"),
        (f"[add]\ndocuments = ['{'x' * 101}']", "more than 100 characters"),
        ("add = 3", "add must be a table"),
        ("[extra]\nx = 1", "'extra' is unknown: use languages, [add] and [remove]"),
        (f"[add]\ndocuments = {['x'] * (MAX_PHRASES + 1)}", f"more than {MAX_PHRASES} phrases"),
    ],
)
def test_a_bad_file_is_refused_with_what_would_do(text: str, said: str) -> None:
    assert said in problem_in(text)
    with pytest.raises(InvalidCues):
        parse(text)


def test_all_that_is_wrong_is_said_together() -> None:
    problem = problem_in("x = 1\nlanguages = ['klingon']\n[add]\ny = ['z']")

    assert "'x' is unknown" in problem
    assert "klingon" in problem
    assert "add.y" in problem


def test_a_good_file_has_no_problem() -> None:
    assert problem_in(FILE) == ""


def test_case_and_accents_make_no_difference() -> None:
    assert words_of("¿DÓNDE está l'équipe d’accord?") == ("donde", "esta", "l", "equipe", "d", "accord")
    assert words_of("It's what's-his-name, weißt") == ("it's", "what's-his-name", "weisst")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_phrase_of_a_language_that_ships_can_be_matched(language: str) -> None:
    cues = LANGUAGES[language]

    assert all(words_of(phrase) for kind in KINDS for phrase in getattr(cues, kind))


def test_a_language_takes_nothing_from_english() -> None:
    everything = joined_cues(LANGUAGES)

    assert all(set(getattr(ENGLISH, kind)) <= set(getattr(everything, kind)) for kind in KINDS)
