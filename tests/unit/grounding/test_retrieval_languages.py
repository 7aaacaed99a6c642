"""The language of a text, by its function words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grounding.retrieval import language_of

ROOT = Path(__file__).parents[3]
QUESTIONS = ROOT / "tests" / "data" / "sample_questions"


def questions(file: Path) -> list[str]:
    return [json.loads(line)["question"] for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("language", ["french", "german", "spanish"])
def test_questions_have_their_language_and_hardly_any_has_none(language: str) -> None:
    found = [language_of(question) for question in questions(QUESTIONS / f"{language}.jsonl")]
    assert set(found) <= {language, ""}
    assert found.count("") <= 1


def test_english_is_never_taken_for_another_language() -> None:
    """Else every such message would cost a translation."""
    cues = [json.loads(line) for line in (ROOT / "tests" / "data" / "explicit_cues.jsonl").open(encoding="utf-8")]
    texts = [cue["text"] for cue in cues if not cue.get("languages")]
    texts += questions(ROOT / "runtime" / "sample" / "questions.jsonl")
    texts += [file.read_text(encoding="utf-8") for file in (ROOT / "runtime" / "sample" / "docs").rglob("*.md")]
    assert {language_of(text) for text in texts} <= {"english", ""}


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("WIE LANGE IST DIE FRIST?", "german"),
        ("Wie viele Tage fur Vater?", "german"),
        ("Où est le contrat ?", "french"),
        ("¿Cuántos días?", "spanish"),
        ("And for how long is it?", "english"),
        ("Probezeit", ""),
        ("IngestQueueDeep TW1203", ""),
        ("total = count + 1; return total", ""),
        ("出張費は誰が承認しますか？", ""),
        ("", ""),
    ],
)
def test_accents_and_capitals_do_not_matter_and_a_text_of_names_has_no_language(text: str, language: str) -> None:
    assert language_of(text) == language


def test_only_the_beginning_of_a_long_text_is_read() -> None:
    assert language_of("the rules of the house. " * 500 + "der die das und oder nicht " * 5000) == "english"
