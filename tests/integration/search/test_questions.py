"""What is asked is searched for, in the workspace of the sample, and in one in other languages, over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import runtime
from connectors.message import Scope
from tests.emulators.face import Face

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLE = Path(runtime.__file__).parent / "sample"
OTHER_LANGUAGES = {
    "urlaub.md": "# Urlaub\n\nAlle haben 28 Urlaubstage im Jahr. Der Antrag wird zwei Wochen vorher gestellt.\n",
    "remboursement.md": "# Remboursement\n\nUn client peut demander un remboursement dans les 30 jours après la "
    "livraison.\n",
    "precios.md": "# Precios\n\nEl plan Puerto cuesta 12 euros al mes. La factura se paga en 14 días.\n",
}


async def filled(face: Face, workspace: str, documents: dict[str, str]) -> str:
    here = await face.workspace(workspace)
    lines = "\n".join(json.dumps({"path": path, "text": text}) for path, text in documents.items())
    answer = await face.client.post(f"{here}/documents?wait=true", content=lines.encode())
    assert answer.status_code == 200, answer.text
    return here


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sample(face: Face) -> str:
    files = (SAMPLE / "docs").rglob("*.md")
    documents = {file.relative_to(SAMPLE / "docs").as_posix(): file.read_text(encoding="utf-8") for file in files}
    return await filled(face, "handbook", documents)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other_languages(face: Face) -> str:
    return await filled(face, "languages", OTHER_LANGUAGES)


async def ground(face: Face, here: str, text: str, *history: str) -> tuple[str, str, set[str]]:
    """The strategy and the reason for *text* after *history*, and the documents that its passages are of."""
    body: dict[str, Any] = {"text": text, "context": "searching"}
    if history:
        body["history"] = [{"role": "user", "text": one} for one in history]
    answer = await face.client.post(f"{here}/ground", json=body)
    assert answer.status_code == 200, answer.text
    user = answer.json()["messages"][-1]["content"]
    passages = user.partition("<workspace_passages>")[2].partition("</workspace_passages>")[0]
    sources = set(re.findall(r"^\[(\S+\.md)", passages, re.MULTILINE))
    return answer.json()["strategy"], answer.json()["reason"], sources


async def test_each_question_that_the_sample_answers_gets_the_document_that_answers_it(face: Face, sample: str) -> None:
    lines = (SAMPLE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [json.loads(line) for line in lines]
    missed = []
    for one in asked:
        for text in (one["question"], one["question"].rstrip("?")):
            strategy, reason, sources = await ground(face, sample, text)
            if strategy != "qmd" or not sources & set(one["expected"]):
                missed.append((text, reason, sources))
    assert len(asked) == 40
    assert missed == []


@pytest.mark.parametrize(
    "text",
    [
        "What is the weather like today?",
        "Tell me a joke",
        "What is the capital of France?",
        "Who won the world cup in 2010?",
        "How do I sort a list in Python?",
        "Wie wird das Wetter morgen?",
        "I feel sad today",
    ],
)
async def test_what_the_documents_do_not_speak_of_gets_none(face: Face, sample: str, text: str) -> None:
    assert await ground(face, sample, text) == ("none", "no_retrieval_cue", set())


@pytest.mark.parametrize("text", ["hello", "Thanks a lot!", "good morning everyone", "ok", "how are you?", "👍"])
async def test_small_talk_loads_nothing(face: Face, sample: str, text: str) -> None:
    assert await ground(face, sample, text) == ("none", "small_talk", set())


@pytest.mark.parametrize("text", ["What did I say earlier?", "what did we decide?", "Who am I?"])
async def test_what_is_only_about_the_conversation_stays_with_it(face: Face, sample: str, text: str) -> None:
    assert await ground(face, sample, text, "How much is the Quay plan?") == ("tail", "chat_memory_cue", set())


@pytest.mark.parametrize(
    ("before", "text", "source"),
    [
        ("What discount do universities get?", "And for students?", "products/pricing.md"),
        ("How long does delivery to Norway take?", "and to Iceland", "products/shipping.md"),
        ("How much is the Harbour plan?", "And the Quay one?", "products/pricing.md"),
        ("How many vacation days do we have?", "and after ten years?", "people/holidays.md"),
    ],
)
async def test_a_follow_up_is_searched_with_what_was_asked_before(
    face: Face, sample: str, before: str, text: str, source: str
) -> None:
    strategy, reason, sources = await ground(face, sample, text, before)
    assert (strategy, reason) == ("tail", "leans_on_conversation")
    assert source in sources


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("haha, good one", "none"),
        ("that's great to hear", "none"),
        ("what is your name?", "none"),
        ("and what is the weather like in Rome?", "tail"),
    ],
)
async def test_what_is_said_after_a_question_gets_no_documents_by_that_alone(
    face: Face, sample: str, text: str, expected: str
) -> None:
    strategy, _, sources = await ground(face, sample, text, "How many vacation days do we have?")
    assert (strategy, sources) == (expected, set())


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Wie viele Urlaubstage haben wir?", "urlaub.md"),
        ("wann muss ich den Urlaub beantragen", "urlaub.md"),
        ("Quand peut-on demander un remboursement ?", "remboursement.md"),
        ("combien de jours pour un remboursement", "remboursement.md"),
        ("¿Cuánto cuesta el plan Puerto?", "precios.md"),
        ("cuándo se paga la factura", "precios.md"),
    ],
)
async def test_other_languages_are_searched_too(face: Face, other_languages: str, text: str, source: str) -> None:
    strategy, reason, sources = await ground(face, other_languages, text)
    assert (strategy, reason) == ("qmd", "workspace_match")
    assert source in sources


async def test_a_passage_that_has_every_word_of_the_question_is_kept(face: Face) -> None:
    """Whoever asks for a file by its one word means it, however little its text has to do with that word."""
    documents = {
        "governor.md": "# Limits that always hold\n\nWhat a prompt may be at most, what is refused, and what the model "
        "is told of the machine. The governor shrinks what does not fit.\n",
        "events.md": "# Events\n\nOne line for each event, with its fields. See governor.md and files.md.\n",
    }
    others = {f"n{number}.md": f"# Note {number}\n\nMast {number}, hull {number}.\n" for number in range(60)}
    here = await filled(face, "engine", documents | others)
    strategy, reason, sources = await ground(face, here, "Which file describes the governor?")
    assert (strategy, reason) == ("qmd", "workspace_retrieval_cue")
    assert "governor.md" in sources


async def test_documents_in_a_folder_named_logs_or_memory_are_found(face: Face) -> None:
    """The chat logs lie elsewhere: whatever a person puts below docs/ is a document."""
    here = await face.workspace("folders")
    folder = face.runtime.settings.data_dir / "workspaces" / "folders" / "docs"
    for name, text in {
        "logs/dives.md": "Dive 12 found an anchor.",
        "memory/boats.md": "The boat Petrel leaks.",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# Notes\n\n{text}\n", encoding="utf-8")
    await face.runtime.knowledge.sync(Scope("folders"))
    assert "logs/dives.md" in (await ground(face, here, "What did dive 12 find?"))[2]
    assert "memory/boats.md" in (await ground(face, here, "Does the Petrel leak?"))[2]


async def test_without_a_deeper_model_documents_are_found_and_the_doctor_says_why(face: Face) -> None:
    here = await face.workspace("article")
    async with asyncio.timeout(60):  # before that every search says that nobody looked at the documents yet
        while not face.runtime.knowledge.is_followed:
            await asyncio.sleep(0.05)
    await face.client.put(
        f"{here}/documents/money.md?wait=true", content=b"# Money\n\nWhoever sends an article back is paid."
    )
    found = (await face.client.get(f"{here}/search", params={"q": "article"})).json()
    assert [hit["source"] for hit in found["results"]] == ["money.md"]
    assert found["degraded"] == []
    assert (await face.client.get(f"{here}/index")).json()["shallow"] == 0
    checks = (await face.client.get("/v1/doctor")).json()["checks"]
    (check,) = [one for one in checks if one["name"] == "deep embedding"]
    assert (check["ok"], check["detail"]) == (True, "off: AGENT_RUNTIME_DEEP_EMBEDDING_MODEL is none")
