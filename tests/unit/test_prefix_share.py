"""How much of the prompts of long conversations a cache has read before: the gate for whatever changes their order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tiktoken

from bench.caches import OPENAI, VLLM, simulated
from bench.chats import Chat, made_up
from bench.prompts import SIZES
from config import load
from grounding.memory.context_document import SECTIONS, ContextDocument
from grounding.prompt import PrefixPolicy, Shown, build_prompt, next_session_state, session_input
from grounding.prompt.session_prefix import Now
from grounding.prompt_input import (
    ContextLine,
    Layout,
    LineByLine,
    Passage,
    Prompt,
    PromptLimits,
    Query,
    TailEntry,
    load_tokens,
    tokens,
)
from tests.unit.test_assemble import context

CHATS, TURNS = 6, 15
TOKENS = LineByLine(load_tokens())
ENCODING = tiktoken.get_encoding(tokens.ENCODING)
SETTINGS = load({}).settings.model_copy(update=SIZES)
BUDGETS = PromptLimits.from_settings(SETTINGS, window_tokens=32_768)
IDENTITY = "Give figures with their unit, and say who measured them on which day and how. " * 39
LINES = tuple(
    ContextLine(number=n, content=f"The pilot of watch {n} is called on channel {n + 3}, and answers till late.")
    for n in range(14)
)
TODAY = "2026-11-22"


def passages(turn: int) -> tuple[Passage, ...]:
    """About 1,200 tokens."""
    text = f"In book {turn} the crane of the outer mole is said to stand idle at low water, since the thaw. " * 11
    return tuple(Passage(source=f"{turn}-{n}.md", heading="Crane", text=text, score=1.0) for n in range(5))


def document(turn: int, turn_ids: tuple[str, ...]) -> ContextDocument:
    """The context document as it is made after *turn*, about 350 tokens."""
    item = f"- Till turn {turn} the watch found nothing to be done at once, and went to look after all of the lamps."
    text = "\n\n".join(f"## {section}\n\n{item}\n{item} Twice." for section in SECTIONS)
    return ContextDocument(text, turn, turn, 2 * turn, at=TODAY, made_by="model", turn_ids=turn_ids, id=f"{turn}-0")


def prompts(chat: Chat, layout: Layout) -> Iterator[Prompt]:
    """The prompts of a conversation, as the runtime makes them one after the other."""
    freezing, entries = PrefixPolicy(TOKENS, layout), list[TailEntry]()
    documents: dict[str, ContextDocument] = {}
    shown: Shown | None = None
    for number, said in enumerate(chat.turns):
        turn_id = f"t{number:03}"
        latest = next(reversed(documents.values()), None)
        was = documents.get(shown.document) if shown else None
        settled = freezing.settle(shown, Now(LINES, latest, was, tuple(entries)), None, BUDGETS, TODAY)
        made = context(
            turn_id=turn_id, layout=layout, identity=IDENTITY, budgets=BUDGETS, today=TODAY, recalled=(), hint="",
            query=Query(text=said.asked), global_context=settled.global_context, summary=settled.summary,
            tail=settled.tail, deltas=settled.deltas, session=session_input(shown, turn_id, TODAY),
            wants_documents=said.wants_documents, passages=passages(number) if said.wants_documents else (),
        )  # fmt: skip
        prompt = build_prompt(made, TOKENS)
        yield prompt
        shown = next_session_state(made, prompt, shown, None)
        entries.append(TailEntry(speaker="Lena", text=said.asked, turn_id=turn_id))
        entries.append(TailEntry(speaker="assistant", text=said.answered, turn_id=turn_id))
        if number % SETTINGS.llm_grounding_memory_summary_refresh_turns == 0:
            made_of = document(number + 1, tuple(f"t{n:03}" for n in range(number + 1)))
            documents[made_of.id] = made_of


def read(layout: Layout) -> list[tuple[str, list[int]]]:
    """All conversations in turn, a turn of each, as tokens."""
    rows = [[(chat.name, prompt) for prompt in prompts(chat, layout)] for chat in made_up(CHATS, TURNS).chats]
    return [
        (name, ENCODING.encode_ordinary(prompt.system + prompt.user))
        for turn in zip(*rows, strict=True)
        for name, prompt in turn
    ]


@pytest.fixture(scope="module")
def stable() -> list[tuple[str, list[int]]]:
    return read("prefix_stable")


def test_three_quarters_of_long_conversations_are_read_from_a_cache(stable: list[tuple[str, list[int]]]) -> None:
    together = simulated(VLLM, stable, is_shared=True)
    alone = simulated(VLLM, stable, is_shared=False)

    assert together.share >= 0.75
    assert together.uncached <= 950
    assert alone.share >= 0.72
    assert simulated(OPENAI, stable, is_shared=True).share >= 0.74


def test_much_less_is_read_from_it_where_the_message_stands_first(stable: list[tuple[str, list[int]]]) -> None:
    assert simulated(VLLM, read("user_first"), is_shared=True).share < 0.5
