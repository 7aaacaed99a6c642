"""Quoting an answer out of a prompt, as it is sent to any model."""

from __future__ import annotations

import pytest

from grounding.extractive.answer import reply
from grounding.extractive.quotable import read_prompt
from grounding.prompt import layers
from grounding.retrieval import WordLlamaEmbedder

PASSAGES = f"""{layers.RETRIEVAL_HEAD}
[pricing.md › Pricing › Plans]
# Pricing

## Plans

| Plan | Price a month | Stations |
|---|---|---|
| Quay | 119 € | 8 |
| Harbour | 490 € | 60 |

A plan can be raised at any time. It is lowered at the end of a month only.

[oncall.md › On call › Alerts]
## DiskAlmostFull

Remove old bundles:

```sh
tw bundles prune
```
{layers.RETRIEVAL_FOOT}"""
NOW = "<now>\nToday is Monday, 2026-11-23.\n</now>"
SYSTEM = "You are a chat assistant."


async def answer(user: str, system: str = SYSTEM) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return await reply(messages, WordLlamaEmbedder())


def block(head: str, body: str, foot: str) -> str:
    return "\n".join((head, body, foot))


@pytest.mark.parametrize(
    ("said", "back"),
    [
        ("Hello!", "Hello!"),
        ("help", "I answer from the documents of this workspace"),
        ("What can you do?", "I answer from the documents of this workspace"),
        ("Who are you?", "I answer from the documents of this workspace"),
        ("Was kannst du?", "Ich antworte aus den Dokumenten"),
        ("Qu'est-ce que tu peux faire ?", "Je réponds à partir des documents"),
        ("¿Qué puedes hacer?", "Respondo a partir de los documentos"),
        ("thanks a lot", "You are welcome."),
        ("Guten Morgen", "Hallo!"),
        ("vielen Dank", "Gern geschehen."),
        ("Merci beaucoup", "Je vous en prie."),
        ("¡Hola!", "¡Hola!"),
        ("bye", "Goodbye!"),
        ("ok", "All right."),
        ("👍", "All right."),
        ("yes", "All right."),
        ("ja", "In Ordnung."),
        ("How are you?", "Hello!"),
        ("What documents do you have?", "I answer from the documents of this workspace"),
    ],
)
async def test_politeness_is_returned_in_its_language(said: str, back: str) -> None:
    assert (await answer(said)).startswith(back)


async def test_who_asks_what_the_documents_are_is_told_those_that_the_prompt_brings() -> None:
    said = await answer(f"{PASSAGES}\n\n{NOW}\n\nWhat is in your documents?")
    assert said.startswith("I answer from the documents of this workspace (pricing.md, oncall.md):")


@pytest.mark.parametrize("said", ["What is 2+2?", "what is 119 times 8?"])
async def test_a_sum_is_not_answered_by_a_number_of_the_documents(said: str) -> None:
    assert (await answer(f"{PASSAGES}\n\n{NOW}\n\n{said}")).startswith("Nothing that I was given")


@pytest.mark.parametrize("query_first", [False, True])
async def test_a_row_is_quoted_with_its_header_and_citation_in_either_layout(query_first: bool) -> None:
    question = "How much is the Harbour plan?"
    said = await answer("\n\n".join((question, PASSAGES, NOW) if query_first else (PASSAGES, NOW, question)))
    assert said.startswith(
        "| Plan | Price a month | Stations |\n|---|---|---|\n| Harbour | 490 € | 60 |\n\n"
        "[pricing.md › Pricing › Plans]\n\n"
    )
    assert "119" not in said
    assert "./agent-runtime setup" in said


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("What does a submarine cost?", "Nothing that I was given answers this."),
        ("Was kostet ein U-Boot?", "Nichts von dem, was mir vorliegt, beantwortet das."),
        ("Combien coûte un sous-marin ?", "Rien de ce qui m'a été donné"),
        ("¿Cuánto cuesta un submarino?", "Nada de lo que tengo"),
    ],
)
async def test_where_nothing_answers_it_says_so_in_the_questions_language(question: str, line: str) -> None:
    for sources in (PASSAGES, layers.NOTHING_FOUND, ""):
        assert (await answer("\n\n".join(filter(None, (sources, NOW, question))))).startswith(line)


async def test_a_number_or_name_that_no_source_has_is_not_answered_by_another() -> None:
    table = "[api.md › Codes]\n| Code | Meaning |\n|---|---|\n| TW1 | no key |"
    codes = f"{layers.RETRIEVAL_HEAD}\n{table}\n{layers.RETRIEVAL_FOOT}"
    assert "no key" in await answer(f"{codes}\n\nWhat does code TW1 mean?")
    assert "no key" not in await answer(f"{codes}\n\nWhat does code TW7 mean?")


@pytest.mark.parametrize(
    "source",
    [
        block(layers.RECORDS_HEAD, "- decision (2026-01-02): The boat is called Petrel.", layers.RECORDS_FOOT),
        block(layers.SUMMARY_HEAD, "## Decisions\n- The boat is called Petrel.", layers.SUMMARY_FOOT),
        block(layers.TAIL_HEAD, "Lena: The boat is called Petrel.", layers.TAIL_FOOT),
        block(layers.RECALL_HEAD, "[2026-01-02]\nLena: The boat is called Petrel.", layers.RECALL_FOOT),
    ],
)
async def test_what_is_remembered_answers_too(source: str) -> None:
    assert "The boat is called Petrel." in await answer(f"{source}\n\nWhat is the boat called?")


@pytest.mark.parametrize(
    ("record", "quoted"),
    [
        ("- fact (2026-01-02): the boat is called Petrel", "The boat is called Petrel. (memory)"),
        ("- decision 3f7a (2026-01-02): The boat is called Petrel!", "The boat is called Petrel! (memory)"),
        ("- fact: The boat is called Petrel", "The boat is called Petrel. (memory)"),
        (
            "- fact (2026-01-02, superseded): The boat is called Petrel",
            "The boat is called Petrel. (memory, superseded)",
        ),
        (
            "- item (2026-01-02, due 2026-02-03): Say what the boat is called",
            "Say what the boat is called. (memory, due 2026-02-03)",
        ),
        ("- procedure (2026-01-02):\nThe boat is called\nPetrel.", "The boat is called Petrel. (memory)"),
    ],
)
async def test_a_record_is_quoted_as_a_sentence(record: str, quoted: str) -> None:
    other = "- fact (2026-01-03): The crew meets on Fridays"
    source = block(layers.RECORDS_HEAD, f"{other}\n{record}\n{other}", layers.RECORDS_FOOT)
    said = await answer(f"{source}\n\nWhat is the boat called?")
    assert said.split("\n\n")[0] == quoted


async def test_material_and_global_context_of_the_system_message_answer_too() -> None:
    material = block(layers.CODEX_HEAD, "=== ship/manual.md\nThe engine needs 12 litres of oil.", layers.CODEX_FOOT)
    known = block(layers.GLOBAL_CONTEXT_HEAD, "1-The crew meets on Fridays.", layers.GLOBAL_CONTEXT_FOOT)
    system = "\n\n".join((SYSTEM, known, material))
    assert "12 litres of oil. [ship/manual.md]" in await answer("How many litres of oil does the engine need?", system)
    assert "The crew meets on Fridays." in await answer("On which days does the crew meet?", system)


async def test_an_earlier_question_and_an_earlier_quotation_are_no_sources() -> None:
    said = "Lena: What is the boat called?\nassistant: The boat may be called Falcon.\n  The boat is called Falcon."
    assert "Falcon" not in await answer(
        f"{block(layers.TAIL_HEAD, said, layers.TAIL_FOOT)}\n\nWhat is the boat called?"
    )


@pytest.mark.parametrize(
    "source",
    [
        block(layers.SUMMARY_HEAD, "## Active Context\n- How much is the Harbour plan?", layers.SUMMARY_FOOT),
        block(layers.TAIL_HEAD, "Lena: How much is the Harbour plan?", layers.TAIL_FOOT),
        block(layers.RECORDS_HEAD, "- episode (2026-01-02): How much is the Harbour plan", layers.RECORDS_FOOT),
    ],
)
async def test_a_question_that_was_asked_before_answers_nothing(source: str) -> None:
    assert "Nothing that I was given answers this." in await answer(f"{source}\n\nHow much is the Harbour plan?")


async def test_without_an_embedding_model_words_count() -> None:
    messages = [{"role": "user", "content": f"{PASSAGES}\n\nHow much is the Harbour plan?"}]
    assert "| Harbour | 490 € | 60 |" in await reply(messages, None)


def test_a_message_in_parts_and_an_attached_text_are_read() -> None:
    user = "Content of note.txt:\n> The key is under the mat.\n\nWhere is the key?"
    prompt = read_prompt([{"role": "user", "content": [{"type": "text", "text": user}, {"type": "image_url"}]}])
    assert prompt.question == "Where is the key?"
    assert prompt.sources == (("", "The key is under the mat."),)
