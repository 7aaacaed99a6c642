"""Questions in another language than the documents, over HTTP, with a model that knows their translations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import runtime
from connectors.message import Scope
from tests.emulators.face import Face
from tests.emulators.openai import FakeOpenAI, Reply, echo, is_translation

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLE = Path(runtime.__file__).parent / "sample"
QUESTIONS = Path(__file__).parents[2] / "data" / "sample_questions"


def questions(language: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (QUESTIONS / f"{language}.jsonl").read_text(encoding="utf-8").splitlines()]


TRANSLATIONS = {one["question"]: one["english"] for name in ("french", "german", "spanish") for one in questions(name)}
_, _, REBATE, MEMBRANE, *_ = (one["question"] for one in questions("german"))


def translate(body: dict[str, Any]) -> Reply | str:
    return TRANSLATIONS[body["messages"][-1]["content"]] if is_translation(body) else echo(body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def handbook(face: Face) -> str:
    here = await face.workspace("handbook")
    files = (SAMPLE / "docs").rglob("*.md")
    lines = [
        json.dumps({"path": file.relative_to(SAMPLE / "docs").as_posix(), "text": file.read_text(encoding="utf-8")})
        for file in files
    ]
    answer = await face.client.post(f"{here}/documents?wait=true", content="\n".join(lines).encode())
    assert answer.status_code == 200, answer.text
    return here


@pytest.fixture
def model(provider: FakeOpenAI) -> Iterator[FakeOpenAI]:
    provider.answer = translate
    provider.requests.clear()
    yield provider
    provider.answer = echo


def asked(model: FakeOpenAI) -> list[str]:
    """The questions that the model was to translate."""
    return [body["messages"][-1]["content"] for body in model.requests if is_translation(body)]


async def ground(face: Face, here: str, text: str, *history: str) -> dict[str, Any]:
    body = {"text": text, "context": "languages", "history": [{"role": "user", "text": one} for one in history]}
    answer = await face.client.post(f"{here}/ground", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("language", ["french", "german", "spanish"])
async def test_nearly_every_question_gets_the_english_document_that_answers_it(
    face: Face, handbook: str, model: FakeOpenAI, language: str
) -> None:
    """As in English, but for a question whose language its words do not tell."""
    missed = []
    for one in questions(language):
        found = await ground(face, handbook, one["question"])
        passages = found["messages"][-1]["content"].partition("<workspace_passages>")[2]
        if found["strategy"] != "qmd" or not any(f"[{path}" in passages for path in one["expected"]):
            missed.append(one["question"])
    assert len(missed) <= 1, missed


async def test_a_turn_a_dry_run_and_a_search_share_a_translation_and_the_workspace_pays_once(
    face: Face, handbook: str, model: FakeOpenAI
) -> None:
    """The model that answers gets the person's own words; `explain` has the others."""

    async def calls() -> int:
        return sum(one.calls for one in await face.runtime.usage.totals(Scope("handbook")))

    text = "Wie lange ist denn die Probezeit bei uns?"
    TRANSLATIONS[text] = "How long is probation?"
    before = await calls()
    dry = await ground(face, handbook, text)
    searched = (await face.client.get(f"{handbook}/search", params={"q": text})).json()
    assert await calls() == before + 1
    answer = (await face.client.post(f"{handbook}/messages", json={"text": text, "context": "pay"})).json()
    explained = (await face.client.get(f"{handbook}/turns/{answer['turn_id']}")).json()

    assert (answer["strategy"], answer["reason"]) == ("qmd", "workspace_match")
    assert answer["sources"][0]["source"] == searched["results"][0]["source"] == "people/onboarding.md"
    assert dry["translation"] == explained["context"]["translation"] == TRANSLATIONS[text]
    assert text in dry["messages"][-1]["content"]
    assert TRANSLATIONS[text] not in dry["messages"][-1]["content"]
    assert asked(model) == [text]


async def test_a_follow_up_is_searched_with_the_translation_of_what_was_asked_before(
    face: Face, handbook: str, model: FakeOpenAI
) -> None:
    """Each message is translated by itself."""
    TRANSLATIONS["und für Studenten?"] = "and for students?"
    found = await ground(face, handbook, "und für Studenten?", REBATE)
    assert found["strategy"] == "tail"
    assert "[products/pricing.md" in found["messages"][-1]["content"]


async def test_english_questions_and_small_talk_are_not_translated(
    face: Face, handbook: str, model: FakeOpenAI
) -> None:
    for text in (TRANSLATIONS[MEMBRANE], "Vielen Dank!", "Guten Morgen", "IngestQueueDeep TW1203"):
        await ground(face, handbook, text)
    assert asked(model) == []


async def test_without_a_translation_turn_and_search_say_so_and_go_on(
    face: Face, handbook: str, model: FakeOpenAI
) -> None:
    """The question's own words are searched for."""
    model.answer = lambda body: Reply(trouble="unauthorized") if is_translation(body) else echo(body)
    text = "Was bedeutet eigentlich der Fehler TW1203 bei uns?"
    found = await ground(face, handbook, text)
    searched = (await face.client.get(f"{handbook}/search", params={"q": text})).json()

    assert {"block": "translation", "why": "auth"} in found["degraded"]
    assert {"block": "translation", "why": "auth"} in searched["degraded"]
    assert "[engineering/api-limits.md" in found["messages"][-1]["content"]  # by the code
    assert len(asked(model)) == 1
