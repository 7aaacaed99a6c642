"""Whole conversations: which turns their prompts show, what stays from one to the next, and that nothing is lost."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
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
    last_turns,
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
    utf8_length,
)
from tests.emulators.prompts import BUDGETS, build, context

TOKENS = LineByLine(load_tokens())
TODAY = "2026-11-22"
CONTINUING = SessionContinuity(cast("Any", None), PrefixPolicy(TOKENS, "prefix_stable"))
WORDS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("aeio \n漢字🙂é<>/")), min_size=1, max_size=400
).filter(lambda text: bool(text.strip()))
SAID = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30)
SHORT = [(f"question number {n}?", f"The answer to that is {n} and a few words more.") for n in range(12)]


def turn(number: int, asked: str, answered: str) -> list[TailEntry]:
    name = f"t{number:04}"
    return [
        TailEntry(speaker="Lena", text=asked, turn_id=name, user="slack:U1"),
        TailEntry(speaker="assistant", text=answered, turn_id=name),
    ]


def tail(entries: list[TailEntry], begins: str = "", told: str = "", **limits: int) -> tuple[TailEntry, ...]:
    """The tail after one that began with the turn *begins*; the context document tells of all turns up to *told*."""
    before = Shown(id="t", began_on=TODAY, turns=1, turn_id="t", begins=begins) if begins else None
    document = ContextDocument("## Facts\n- a", 1, 1, 2, "model", TODAY, (told,), id="1-0") if told else None
    budgets = BUDGETS.model_copy(update=limits)
    newest = tuple(entries[-budgets.tail_lines - 1 :])
    return CONTINUING.go_on(before, None, (document, None), newest, None, budgets, TODAY).settled.tail


def tail_text(shown: tuple[TailEntry, ...]) -> str:
    block = build(tail=shown, layout="prefix_stable").block("tail")
    assert block is not None
    return block.text


@given(SAID, st.integers(1, 6))
def test_no_ceiling_of_the_tail_is_exceeded_and_no_turn_halved_while_it_grows(
    said: list[tuple[str, str]], turns: int
) -> None:
    entries: list[TailEntry] = []
    shown: tuple[TailEntry, ...] = ()
    for number, (asked, answered) in enumerate(said, start=1):
        entries += turn(number, asked, answered)
        shown = tail(entries, shown[0].turn_id if shown else "", "t0000", history_turns=turns)
        ids = [entry.turn_id for entry in shown]
        assert ids[::2] == ids[1::2] == sorted({*ids})
        assert ids[-1] == f"t{number:04}"
        assert len(ids) <= 2 * turns
        assert utf8_length(tail_text(shown)) <= BUDGETS.tail_bytes


def test_the_tail_grows_at_its_end_and_is_compacted_only_now_and_then() -> None:
    entries: list[TailEntry] = []
    begins: list[str] = []
    for number in range(1, 61):
        entries += turn(number, *SHORT[number % 12])
        begins.append(tail(entries, begins[-1] if begins else "", "t9999")[0].turn_id)

    compacted = [at for at, (one, other) in enumerate(pairwise(begins)) if one != other]
    assert len(compacted) > 3
    assert all(later - earlier >= 4 for earlier, later in pairwise(compacted))


def test_which_turns_are_told_goes_by_their_order_and_not_by_the_clocks_of_who_answered_them() -> None:
    entries = [entry for number, one in enumerate(SHORT) for entry in turn(number, *one)]
    skewed = {f"t{number:04}": f"t{number + 50 * (number % 2):04}" for number in range(12)}
    moved = [one.model_copy(update={"turn_id": skewed[one.turn_id]}) for one in entries]

    for told in skewed:
        as_it_was, shown = tail(entries, told=told), tail(moved, told=skewed[told])
        assert [one.text for one in shown] == [one.text for one in as_it_was]


@given(WORDS, WORDS)
def test_a_long_message_is_cut_the_same_wherever_it_stands(one: str, other: str) -> None:
    long = turn(2, one * 20, other)
    alone, behind, again = tail(long), tail([*turn(1, "hi", "ok"), *long]), tail(list(tail(long)))

    assert behind[-2:] == alone == again


def test_of_a_long_message_its_beginning_and_its_end_stay() -> None:
    said = "\n".join(f"line {number} of a long answer" for number in range(40))
    spoken = tail(turn(1, said, "ok"))[0].text.splitlines()

    assert spoken[0] == "line 0 of a long answer"
    assert spoken[-1] == "line 39 of a long answer"
    assert len(spoken) < 40


@pytest.mark.parametrize("line", ["ሰላም እንዴት ነህ ", "9f8a7c6e-1b2d-4e3f ", "👩‍👩‍👧‍👦"])
def test_a_line_of_many_tokens_takes_no_more_than_half_so_that_its_reply_is_shown_with_it(line: str) -> None:
    shown = tail_text(tail(turn(1, line * 40, line * 40))).splitlines()[1:-1]

    assert [said.partition(":")[0] for said in shown] == ["Lena", "assistant"]
    assert all(said.partition(": ")[2].startswith(line.strip()) for said in shown)


@pytest.mark.parametrize("letter", ["a", "漢", "\n\n- x"])
def test_a_megabyte_in_one_message_keeps_the_ceilings(letter: str) -> None:
    fitted = tail_text(tail(turn(1, letter * (1_000_000 // len(letter)), "ok")))

    assert load_tokens().count(fitted) <= BUDGETS.tail_tokens
    assert utf8_length(fitted) <= BUDGETS.tail_bytes
    assert len(fitted.splitlines()) <= BUDGETS.tail_lines + 2


def test_where_the_first_turn_of_the_tail_was_forgotten_it_begins_anew() -> None:
    entries = [entry for number in range(1, 4) for entry in turn(number, "and now?", "That.")]

    assert tail(entries, "t0000")[0].turn_id == "t0001"


def test_messages_without_turns_are_paired_by_who_speaks() -> None:
    said = [TailEntry(speaker=by, text=by, turn_id="") for by in ("user", "user", "assistant", "user", "assistant")]

    assert last_turns(said, 1) == tuple(said[3:])
    assert last_turns(said, 2) == tuple(said)


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
