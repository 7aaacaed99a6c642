"""Inputs of prompts, and the prompts made of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from config import load
from grounding.prompt import build_prompt
from grounding.prompt_input import (
    Censor,
    ContextLine,
    Passage,
    Prompt,
    PromptLimits,
    Query,
    RecalledTurn,
    RunContext,
    SelectedRecord,
    Selection,
    SummaryInput,
    TailEntry,
    Trace,
    load_tokens,
)

TOKENS = load_tokens()
BUDGETS = PromptLimits.from_settings(load({}).settings, window_tokens=8192)
SUMMARY = "## Description\nAbout boats.\n\n## Active Context\n- buying a boat\n\n## Facts\n- boat: blue\n"
ANY_TEXT = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="日本語カタカナ。、", max_size=400),
    st.text(alphabet="👩‍👩‍👧‍👦🏳️‍🌈é e\u0301", max_size=200),
    st.integers(1, 4000).map(lambda count: "a" * count),
    st.integers(1, 900).map(lambda count: "word. " * count),
    st.integers(1, 300).map(lambda count: "\n" * count + "x"),
)


def context(**changes: Any) -> RunContext:
    """The input of a turn that has a bit of everything; *changes* are its fields."""
    fields: dict[str, Any] = {
        "turn_id": "t1",
        "workspace_id": "acme",
        "context_id": "http:default",
        "connector": "http",
        "external_id": "default",
        "direct": False,
        "authors": (),
        "identity": "You are a helper.",
        "query": Query(text="Which file holds the pricing policy?"),
        "strategy": "qmd",
        "reason": "workspace_retrieval_cue",
        "small_talk": False,
        "wants_history": True,
        "wants_documents": True,
        "summary": SummaryInput(text=SUMMARY, turns=3, version=1),
        "tail": (TailEntry(speaker="Lena", text="hello", turn_id="t0"),),
        "recalled": (RecalledTurn(turn_id="t-9", said_on="2026-01-02", text="Lena: blue, please", score=1.0),),
        "passages": (Passage(source="pricing.md", heading="Plans", text="The basic plan costs 5.", score=1.0),),
        "hint": "Begin with a short acknowledgement.",
        "budgets": BUDGETS,
    }
    return RunContext(**(fields | changes))


def record(name: str, text: str, of: str = "fact", **changes: Any) -> SelectedRecord:
    """A record as a prompt is given it."""
    fields: dict[str, Any] = {"level": "summary", "state": "new", "score": 1.0, "similarity": 0.5, "tokens": 9}
    return SelectedRecord(id=name, type=of, text=text, **(fields | changes))


def build(**changes: Any) -> Prompt:
    """The prompt of `context` with *changes*."""
    return build_prompt(context(**changes), TOKENS)


HUGE = st.sampled_from(["規" * 300_000, "👩‍👩‍👧‍👦" * 40_000, "x" * 1_000_000, " " * 900_000 + "x", "a b " * 200_000])
HUGE |= st.sampled_from(
    ["27182818" * 9000, "\n" * 90_000, "고객님의 주문 " * 20_000, "getElementById;" * 20_000, "1,2\n" * 30_000]
)
TEXT = ANY_TEXT | HUGE
SELECTION = Selection(why="cold", found=4, budget=2000)


def exchange(turn: str, asked: str = "why?", answered: str = "because") -> tuple[TailEntry, TailEntry]:
    return (
        TailEntry(speaker="Lena", text=asked, turn_id=turn),
        TailEntry(speaker="assistant", text=answered, turn_id=turn),
    )


def everything(text: str, records: tuple[SelectedRecord, ...], query: str) -> dict[str, Any]:
    """A turn of which each part is *text*, and some."""
    return {
        "query": Query(text=query),
        "global_context": tuple(ContextLine(number=number, content=text[:400]) for number in range(5)),
        "censors": (Censor(id="c", severity="block", text=text),),
        "karma_floor": (Trace(turn_id="t", asked=text, answered=text, marked_on="2026-01-01", good=1),),
        "summary": SummaryInput(text=f"## Facts\n- {text}", turns=1, version=1),
        "tail": exchange("t1", text, text) + exchange("t2", "and?", text),
        "recalled": (RecalledTurn(turn_id="t0", said_on="2026-01-01", text=text, score=1.0),),
        "passages": (Passage(source="a.md", heading="h", text=text, score=1.0),),
        "karma": (Trace(turn_id="t", asked=text, answered=text, marked_on="2026-01-01", good=1),),
        "selection": SELECTION,
        "records": records,
    }
