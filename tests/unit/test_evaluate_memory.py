"""Sets of long conversations are read, and what was recalled of them is scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grounding.evaluation import Conversation, ConversationQuestion, MemoryAnswer
from grounding.evaluation.datasets import BadQuestionSet, load_conversations
from grounding.evaluation.memory import score_memory, stands_in


def message(name: str, text: str, session: int = 1, date: str = "", speaker: str = "Ann") -> dict[str, Any]:
    metadata = {"workspace": "c", "session": session, "date": date, "speaker": speaker}
    return {"_id": name, "text": text, "metadata": metadata}


def conversation_set(folder: Path, *messages: dict[str, Any], evidence: str = "m1") -> Path:
    """A set in which one question is asked."""
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in messages))
    question = {"_id": "q", "text": "Which boat?", "metadata": {"workspace": "c", "category": "open"}}
    (folder / "queries.jsonl").write_text(json.dumps(question) + "\n")
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\t{evidence}\t1\n")
    return folder


def test_messages_are_said_one_after_the_other_on_the_dates_of_their_sessions(tmp_path: Path) -> None:
    [conversation] = load_conversations(
        conversation_set(
            tmp_path,
            message("m1", "Ann: the red boat", 1, "1:56 pm on 8 May, 2023"),
            message("m2", "assistant: noted", 1, "1:56 pm on 8 May, 2023", "assistant"),
            message("m3", "a new day", 2, "May-15-2023"),
            message("m4", "the same day again", 3, "May-15-2023"),
            message("m5", "nobody knows when", 4),
        )
    )
    assert [(one.speaker, one.text) for one in conversation.said[:2]] == [
        ("Ann", "the red boat"),
        ("assistant", "noted"),
    ]
    assert [one.at.isoformat(timespec="seconds") for one in conversation.said] == [
        "2023-05-08T13:56:00+00:00",
        "2023-05-08T13:56:30+00:00",
        "2023-05-15T00:00:00+00:00",
        "2023-05-15T00:00:30+00:00",
        "2023-05-15T00:01:00+00:00",
    ]
    assert conversation.asked == (ConversationQuestion("q", "Which boat?", "open", frozenset({"m1"})),)


def test_a_set_that_asks_nothing_about_its_conversations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestionSet, match="no question with evidence"):
        load_conversations(conversation_set(tmp_path, message("m1", "the red boat"), evidence="elsewhere"))


def test_a_folder_without_conversations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadQuestionSet, match=r"corpus\.jsonl"):
        load_conversations(tmp_path)


def test_a_message_stands_in_a_prompt_with_three_fifths_of_its_content_words() -> None:
    told = frozenset({"red", "boat", "harbour"})

    assert stands_in("The red boats, in the harbour of Kiel, sank", told)
    assert not stands_in("The red boat of Kiel sank", told)
    assert not stands_in("We were there", told)


def test_what_was_twisted_on_purpose_is_scored_apart() -> None:
    [said] = [Conversation("c", (), ())]
    found = _recalled("open", ranked=("m1",), told="")
    twisted = _recalled("adversarial", ranked=("m2",), told="")

    result = score_memory([said], [found, twisted])

    assert (result.scores.recall_at_10, result.with_adversarial.recall_at_10) == (1.0, 0.5)
    assert sorted(result.categories) == ["adversarial", "open"]


def _recalled(category: str, ranked: tuple[str, ...], told: str) -> MemoryAnswer:
    return MemoryAnswer(
        ConversationQuestion(category, "Which boat?", category, frozenset({"m1"})), ranked, told, 0, 0, 1.0, 0, 0
    )
