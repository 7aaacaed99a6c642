"""Whole sessions, whatever happens in them: what stays, what is told, and that nothing is lost."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from config import load
from grounding.memory.context_document import ContextDocument
from grounding.prompt import (
    PrefixPolicy,
    SessionContinuity,
    Shown,
    ShownState,
    TailLimits,
    next_session_state,
    session_input,
    shared_prefix,
)
from grounding.prompt_input import (
    ContextLine,
    Layout,
    LineByLine,
    Prompt,
    PromptLimits,
    Query,
    RunContext,
    TailEntry,
    load_tokens,
)
from tests.emulators.prompts import build, context

TOKENS = LineByLine(load_tokens())
TODAY = "2026-11-22"
TAIL_FOOT = "</recent_conversation>"
STEPS = st.one_of(
    st.tuples(st.just("turn"), st.text(alphabet="ab 漢🙂\n", max_size=150).map("a".__add__)),
    st.tuples(st.just("small talk"), st.just("hi")),
    st.tuples(st.just("line"), st.sampled_from(["tea", "coffee", "a boat " * 20])),
    st.tuples(st.just("delete"), st.just("")),
    st.tuples(st.just("document"), st.sampled_from(["a fact", "another fact", "a third one"])),
)


@dataclass
class Conversation:
    """A conversation with all that is kept of it, and what its prompts showed."""

    layout: Layout
    window: int = 8192
    said: list[TailEntry] = field(default_factory=list)
    lines: list[ContextLine] = field(default_factory=list)
    documents: list[ContextDocument] = field(default_factory=list)
    before: Shown | None = None
    prompt: Prompt | None = None
    turns: int = 0

    def happens(self, what: str, text: str) -> None:
        match what:
            case "line":
                self.lines.append(ContextLine(number=len(self.lines), content=text))
            case "delete" if self.lines:
                self.lines[-1] = self.lines[-1].model_copy(update={"content": ""})
            case "document":
                number = len(self.documents) + 1
                facts = f"## Facts\n- {text}\n- made after turn {self.turns}\n"
                of = (f"t{self.turns:03}",)
                made = ContextDocument(facts, number, number, number, "model", TODAY, of, id=f"{number}-0")
                self.documents.append(made)
            case "turn" | "small talk":
                self.turn(text, small_talk=what == "small talk")

    def turn(self, text: str, *, small_talk: bool) -> None:
        self.turns += 1
        name = f"t{self.turns:03}"
        settled, made, prompt = self.asked(text, name, small_talk=small_talk)
        check_known(self, settled)
        if not small_talk:
            check_documents(self, settled)
            check_prefix(self, settled, prompt)
            self.prompt = prompt
        self.before = next_session_state(made, prompt, self.before, None)
        self.said += [TailEntry(speaker=by, text=text, turn_id=name) for by in ("Lena", "assistant")]

    def asked(self, text: str, name: str, *, small_talk: bool) -> tuple[ShownState, RunContext, Prompt]:
        latest = self.documents[-1] if self.documents else None
        shown = next((one for one in self.documents if self.before and one.id == self.before.document), None)
        budgets = PromptLimits.from_settings(load({}).settings, window_tokens=self.window)
        limits = TailLimits.of(budgets)
        entries = tuple(self.said[-limits.lines - 1 :])
        continuing = SessionContinuity(cast("Any", None), PrefixPolicy(TOKENS, self.layout))
        if small_talk:
            state = continuing.small_talk(self.before, self.lines, None)
        else:
            state = continuing.go_on(self.before, self.lines, (latest, shown), entries, None, budgets, TODAY)
        settled = state.settled
        fields = {
            "turn_id": name,
            "layout": self.layout,
            "session": session_input(self.before, name, TODAY),
            "global_context": settled.global_context,
            "summary": settled.summary,
            "tail": settled.tail,
            "deltas": settled.deltas,
            "today": TODAY,
            "query": Query(text=text),
            "small_talk": small_talk,
            "budgets": budgets,
        }
        return settled, context(**fields), build(**fields)


def check_known(conversation: Conversation, settled: ShownState) -> None:
    """With what it is told of changes the model knows every line as it is, and none that was deleted."""
    known = {line.number: line.content for line in settled.global_context or ()}
    for delta in settled.deltas:
        if found := re.match(r"In the global context: (\d+)-- (.*)", delta):
            known[int(found[1])] = found[2]
    assert {number: text.split() for number, text in known.items() if text} == {
        line.number: line.content.split() for line in conversation.lines if line.content
    }


def check_documents(conversation: Conversation, settled: ShownState) -> None:
    """Of every turn that a document tells of, the tail, the document that is shown, or what is told beside it does."""
    if not conversation.documents:
        return
    latest, shown = conversation.documents[-1], settled.document
    first = settled.tail[0].turn_id if settled.tail else f"t{conversation.turns:03}"
    left_out = [entry.turn_id for entry in conversation.said if entry.turn_id < first]
    reaches = shown.newest_turn_id if shown else ""
    if any(reaches < turn_id <= latest.newest_turn_id for turn_id in left_out):
        told = "\n".join(settled.deltas)
        assert all(line[2:] in told for line in latest.text.splitlines() if line not in (shown.text if shown else ""))


def check_prefix(conversation: Conversation, settled: ShownState, prompt: Prompt) -> None:
    """Unless something in front of it changed, a prompt begins with the one before up to the end of its tail."""
    before, last = conversation.before, conversation.prompt
    if before is None or last is None or conversation.layout == "user_first":
        return
    broken = shared_prefix(before.blocks, prompt).broken_by
    same = (
        before.begins == (settled.tail[0].turn_id if settled.tail else "")
        and before.document == (settled.document.id if settled.document else "")
        and last.system == prompt.system  # small talk may have shown another between the two
    )
    if same and before.begins:
        assert broken not in ("identity", "global_context", "summary", "tail")
        assert prompt.user.startswith(last.user.partition("\n" + TAIL_FOOT)[0])


@given(
    st.lists(STEPS, max_size=30), st.sampled_from(["prefix_stable", "user_first"]), st.sampled_from([8192, 2600, 2100])
)
@settings(max_examples=100, deadline=None)
def test_in_a_session_nothing_is_lost_and_nothing_moves_that_need_not(
    steps: list[tuple[str, str]], layout: Layout, window: int
) -> None:
    conversation = Conversation(layout, window)
    for what, text in steps:
        conversation.happens(what, text)


def test_in_a_small_window_the_tail_is_compacted_before_it_has_to_be_cut() -> None:
    conversation, starts = Conversation("prefix_stable", 2100), []
    conversation.happens("document", "a fact " * 60)
    for number in range(24):
        conversation.happens("turn", f"{number} " + "so " * 12)
        assert conversation.before is not None
        starts.append(conversation.before.begins)

    assert len({*starts}) <= len(starts) / 2
