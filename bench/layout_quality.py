"""How often the bundled model finds in its prompt what it is asked for, in either layout, over the same questions.

Each asks for the number of one of several places; the answer stands in a passage or in the tail, beside others that
look the same. The prompts are the runtime's own, of contexts made up here. It is a small model: the comparison of the
layouts is what counts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.engine import Engine
from bench.figures import title
from config import load
from grounding.prompt import build_prompt
from grounding.prompt_input import (
    Layout,
    Passage,
    Prompt,
    PromptLimits,
    Query,
    RunContext,
    SummaryInput,
    TailEntry,
    Tokens,
)

QUESTIONS = 48
BESIDE = 3
"""Other numbers that stand beside the one that is asked for."""
LAYOUTS: tuple[Layout, ...] = ("user_first", "prefix_stable")
ANSWER_TOKENS = 32
_FIRST = ("Alder", "Birch", "Cedar", "Dune", "Elm", "Fern", "Gull", "Heron")
_SECOND = ("Quay", "Lock", "Mole", "Head", "Ferry", "Basin")
_THINGS = ("berth", "pump", "gate", "crane")


@dataclass(frozen=True)
class Asked:
    """A question, what must stand in its answer, and the context without its layout."""

    wanted: str
    source: str
    context: dict[str, Any]


def asked(count: int = QUESTIONS, seed: int = 11) -> list[Asked]:
    """Half of them are answered by a passage, half by the tail."""
    chance = random.Random(seed)
    places = [f"{first} {second}" for first in _FIRST for second in _SECOND]
    found = []
    for number in range(count):
        names = chance.sample(places, BESIDE + 1)
        thing = chance.choice(_THINGS)
        codes = [str(chance.randint(1000, 9999)) for _ in names]
        facts = [f"The {thing} of {name} has the number {code}." for name, code in zip(names, codes, strict=True)]
        order = chance.sample(range(len(facts)), len(facts))
        source = "passage" if number % 2 else "tail"
        given = _passages(names, facts, order) if number % 2 else _tail(facts, order)
        query = Query(text=f"Which number has the {thing} of {names[0]}?")
        found.append(Asked(codes[0], source, {"query": query, "wants_documents": source == "passage", **given}))
    return found


def _passages(names: Sequence[str], facts: Sequence[str], order: Sequence[int]) -> dict[str, Any]:
    return {
        "passages": tuple(
            Passage(source=f"{names[n].lower().replace(' ', '-')}.md", heading=names[n], text=facts[n], score=1.0)
            for n in order
        )
    }


def _tail(facts: Sequence[str], order: Sequence[int]) -> dict[str, Any]:
    said = []
    for place, n in enumerate(order):
        said.append(TailEntry(speaker="Lena", text=facts[n], turn_id=f"t{place}"))
        said.append(TailEntry(speaker="assistant", text="Noted.", turn_id=f"t{place}"))
    return {"tail": tuple(said)}


def prompt(one: Asked, layout: Layout, tokens: Tokens) -> Prompt:
    """The runtime's prompt of a question."""
    fields: dict[str, Any] = {
        "turn_id": "t",
        "workspace_id": "acme",
        "context_id": "http:default",
        "connector": "http",
        "external_id": "default",
        "direct": False,
        "authors": (),
        "identity": "You are a helpful assistant. Answer briefly, with what you are given.",
        "strategy": "qmd" if one.context["wants_documents"] else "tail",
        "reason": "measured",
        "small_talk": False,
        "wants_history": False,
        "summary": SummaryInput(text="## Description\n\nAbout a harbour.\n", turns=1, version=1),
        "layout": layout,
        "budgets": PromptLimits.from_settings(load({}).settings, window_tokens=8192),
    }
    return build_prompt(RunContext(**fields, **one.context), tokens)


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def sign_test(one: int, other: int) -> float:
    """How likely it is that *one* and *other* differ at least so much by chance: pairs in which only one was right."""
    count = one + other
    few = sum(math.comb(count, k) for k in range(min(one, other) + 1))
    return min(1.0, 2.0 * few * 0.5**count)


async def measure(engine: Engine, tokens: Tokens, count: int = QUESTIONS) -> None:
    """Print it."""
    title(f"Answers that stand in the prompt, {count} questions for each layout")
    right: dict[Layout, list[bool]] = {layout: [] for layout in LAYOUTS}
    questions = asked(count)
    for one in questions:
        for layout in LAYOUTS:
            completion = await engine.ask(prompt(one, layout, tokens).messages, ANSWER_TOKENS, temperature=0.0)
            right[layout].append(one.wanted in completion.text)
    for layout, answers in right.items():
        low, high = interval(sum(answers), count)
        by_source = ", ".join(
            f"{source} {sum(a for a, q in zip(answers, questions, strict=True) if q.source == source)}"
            for source in ("passage", "tail")
        )
        print(
            f"  {layout:<16}{sum(answers)} right, {sum(answers) / count:.2f} [{low:.2f} … {high:.2f}]   ({by_source})"
        )
    pairs = list(zip(*(right[layout] for layout in LAYOUTS), strict=True))
    first, second = (sum(1 for pair in pairs if pair[at] and not pair[1 - at]) for at in (0, 1))
    print(
        f"  only {LAYOUTS[0]} right: {first}; only {LAYOUTS[1]}: {second}; by chance p = {sign_test(first, second):.2f}"
    )
