"""How much of the prompts of long conversations a cache has read before: the gate for whatever changes their order.

Made-up conversations are held in turn, and their prompts read by simulated caches that never forget, so that each
figure is the best that can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import tiktoken

from config import load
from grounding.memory.context_document import SECTIONS, ContextDocument
from grounding.prompt import PrefixPolicy, SessionContinuity, Shown, build_prompt, next_session_state, session_input
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
from tests.emulators.prompts import context

CHATS, TURNS = 6, 15
SIZES: dict[str, Any] = {
    "llm_grounding_memory_summary_max_tokens": 400,
    "llm_grounding_memory_summary_refresh_turns": 3,
    "llm_grounding_chat_tail_max_tokens": 3000,
    "llm_grounding_chat_tail_lines": 400,
    "llm_grounding_chat_tail_bytes": 24_000,
    "llm_grounding_qmd_max_tokens": 1200,
    "llm_grounding_top_k": 5,
    "llm_grounding_max_doc_excerpt_bytes": 1800,
    "llm_grounding_max_prompt_tokens": 6000,
    "llm_grounding_max_prompt_bytes": 40_000,
    "llm_context_window_tokens": 32_768,
}
"""Budgets of the blocks. The context document is made anew so often that it tells of what leaves the tail when the
tail is compacted."""
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


@dataclass(frozen=True)
class Kind:
    """How a cache keeps beginnings: in whole ``step``s of tokens, of prompts of at least ``least`` tokens."""

    step: int
    least: int = 0


VLLM = Kind(16)
"""A hash chain over full blocks (vLLM, "Automatic Prefix Caching")."""
OPENAI = Kind(128, 1024)
"""platform.openai.com, "Prompt caching"."""


class Cache:
    """One cache. At least one token of a prompt is always read anew: its answer begins there."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._kept: set[int] = set()

    def read(self, prompt: Sequence[int]) -> int:
        """How many of the tokens of *prompt* are kept; all whole steps of it are from now on."""
        chain, found, is_known = 0, 0, True
        for end in range(self._kind.step, len(prompt) + 1, self._kind.step):
            chain = hash((chain, *prompt[end - self._kind.step : end]))
            if (is_known := is_known and chain in self._kept) and end < len(prompt):
                found = end
            self._kept.add(chain)
        return found if len(prompt) >= self._kind.least and found >= self._kind.least else 0


@dataclass
class Counted:
    """Tokens of all prompts, and how many of them were kept."""

    tokens: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        return sum(self.cached) / sum(self.tokens)

    @property
    def uncached(self) -> float:
        """Tokens a turn that had to be read."""
        return (sum(self.tokens) - sum(self.cached)) / len(self.tokens)


def simulated(kind: Kind, prompts: Iterable[tuple[str, Sequence[int]]], *, is_shared: bool) -> Counted:
    """*prompts* in their order, each with the name of its conversation; in one cache for all where it *is_shared*, else
    in one for each conversation."""
    caches: dict[str, Cache] = {}
    counted = Counted()
    for name, prompt in prompts:
        cache = caches.setdefault("" if is_shared else name, Cache(kind))
        counted.tokens.append(len(prompt))
        counted.cached.append(cache.read(prompt))
    return counted


_PLACES = ("Alder Quay", "Birch Lock", "Cedar Mole", "Dune Head", "Elm Ferry", "Fern Basin", "Gull Rock", "Heron Weir")
_THINGS = ("crane", "gate", "pump", "beacon", "winch", "buoy", "slipway", "dredger", "pontoon", "hoist", "valve")
_STATES = ("is inspected", "was repainted", "runs warm", "stands idle", "needs a new bearing", "was moved by a metre")
_TIMES = ("on Monday", "after the storm", "at low water", "in the night shift", "since the thaw", "twice a week")
_REASONS = (
    "because the current is stronger than the builders thought",
    "so that the ferries can keep to their hours",
    "as the harbour master asked for in the spring",
    "which saves about a third of the fuel",
    "although nobody has measured it yet",
    "until the spare part comes from the yard",
)
ANSWER_SENTENCES = 9


@dataclass(frozen=True)
class Exchange:
    """One turn: what is said, and what is answered."""

    asked: str
    answered: str
    wants_documents: bool


@dataclass(frozen=True)
class Chat:
    name: str
    turns: tuple[Exchange, ...]


def _sentence(chance: random.Random) -> str:
    place, thing, state = chance.choice(_PLACES), chance.choice(_THINGS), chance.choice(_STATES)
    number = chance.randint(2, 98)
    return f"The {thing} number {number} of {place} {state} {chance.choice(_TIMES)}, {chance.choice(_REASONS)}."


def conversations(seed: int = 7) -> list[Chat]:
    """About a harbour. An answer takes about 250 tokens, a message 50; three of ten messages ask for documents."""
    chance = random.Random(seed)
    return [
        Chat(f"chat-{chat}", tuple(_exchange(chance, (3 * turn + chat) % 10 < 3) for turn in range(TURNS)))
        for chat in range(CHATS)
    ]


def _exchange(chance: random.Random, wants_documents: bool) -> Exchange:
    place, thing = chance.choice(_PLACES), chance.choice(_THINGS)
    question = (
        f"What do the docs say about the {thing} of {place}?" if wants_documents else f"Is the {thing} of {place} well?"
    )
    answer = "\n".join(_sentence(chance) for _ in range(ANSWER_SENTENCES))
    return Exchange(f"{_sentence(chance)} {question}", answer, wants_documents)


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
    continuing = SessionContinuity(cast("Any", None), PrefixPolicy(TOKENS, layout))
    entries = list[TailEntry]()
    documents: dict[str, ContextDocument] = {}
    shown: Shown | None = None
    for number, said in enumerate(chat.turns):
        turn_id = f"t{number:03}"
        latest = next(reversed(documents.values()), None)
        was = documents.get(shown.document) if shown else None
        settled = continuing.go_on(shown, LINES, (latest, was), tuple(entries), None, BUDGETS, TODAY).settled
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
    rows = [[(chat.name, prompt) for prompt in prompts(chat, layout)] for chat in conversations()]
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


def test_a_cache_keeps_whole_steps_of_a_beginning_and_never_all_of_a_prompt() -> None:
    blocks = Cache(VLLM)
    assert blocks.read(range(100)) == 0
    assert blocks.read(range(100)) == 96
    assert blocks.read(range(96)) == 80
    assert blocks.read([*range(40), 0, *range(60)]) == 32
    assert blocks.read([1, *range(100)]) == 0


def test_prompts_below_the_least_length_are_not_kept() -> None:
    cache = Cache(OPENAI)
    assert [cache.read(range(1000)), cache.read(range(1000))] == [0, 0]
    assert [cache.read(range(2000)), cache.read(range(2000))] == [0, 1920]
