"""What a turn is shown as the session's last prompt showed it, and how it is told what has changed since. Pure.

The global context and the context document stay as they were, byte for byte, so that an engine need not read them, and
what stands behind them, again. What changed meanwhile is told behind the volatile boundary, in the block ``now``, or by
showing the block as it is now: whichever has fewer tokens read. Nothing that changed is left untold, and what was
deleted is not shown any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grounding.blocks import Layout
from grounding.budgets import Budgets
from grounding.history import places
from grounding.layers import now
from grounding.layers.tail import Limits
from grounding.memory.document import corrected, parse
from grounding.memory.global_context_lines import shown as shown_line
from grounding.memory.versions import ContextDocument
from grounding.run_context import ContextLine, SummaryInput, TailEntry
from grounding.sessions.growing import History, again, grown
from grounding.sessions.prefix import tokens_between
from grounding.sessions.shown import Shown
from grounding.tokens import Tokens
from grounding.window import front_bytes, front_room

TURNS_TO_COME = 8
"""For so many turns, it is reckoned, what is told behind the boundary is told again: till the tail is compacted or the
session ends. A guess: at 40 tokens a message the tail's ceiling allows about as many."""


@dataclass(frozen=True, slots=True)
class Now:
    """What there is now. ``shown`` is the document that the last prompt showed, None where it is not kept any more;
    ``lines`` and ``entries`` are None where they could not be had."""

    lines: tuple[ContextLine, ...] | None
    latest: ContextDocument | None
    shown: ContextDocument | None
    entries: tuple[TailEntry, ...] | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What is shown. ``deltas`` say what of it is different now; ``partly`` is that of
    `grounding.sessions.growing.History`."""

    global_context: tuple[ContextLine, ...] | None
    document: ContextDocument | None = None
    tail: tuple[TailEntry, ...] = ()
    deltas: tuple[str, ...] = ()
    partly: frozenset[str] = frozenset()

    @property
    def summary(self) -> SummaryInput | None:
        return None if self.document is None else summary_of(self.document)

    def afresh(self, there: Now) -> Settled:
        """The same without deltas: what is there *now* is shown as it is."""
        return Settled(there.lines, there.latest, self.tail, partly=self.partly)


@dataclass(frozen=True, slots=True)
class _Option:
    """A way to show it all, and the tokens that an engine has to read for it which it otherwise would not."""

    cost: int
    settled: Settled


@dataclass(frozen=True, slots=True)
class Freezing:
    """Decides what stays. *layout* is where blocks stand: behind the message nothing is ever read from before."""

    tokens: Tokens
    layout: Layout

    def settle(self, before: Shown | None, there: Now, audience: str | None, budgets: Budgets, today: str) -> Settled:
        """What a turn is shown that comes after the one *before*, which is None where it is the first of its session,
        of what is there now. *audience* is whose lines are among those of the global context."""
        begins, told = before.begins if before else "", there.latest.newest_turn_id if there.latest else ""
        limits = self._limits(before, budgets)
        said = grown(there.entries or (), begins, told, limits, self.tokens)
        lines = self._line_deltas(before, there.lines, audience)
        document = self._document_deltas(before, there, said)
        if document is None and not said.compacted:
            said = again(said, there.entries or (), told, limits, self.tokens)
        blocks = before.blocks if before else ()
        broken = ("summary", "tail") if document is None or (said.compacted and said.entries) else ()
        anew = Settled(there.lines, there.latest, said.entries, partly=said.partly)
        options = [_Option(tokens_between(blocks, "global_context", broken), anew)]
        if lines is not None and before is not None:
            kept = Settled(before.global_context, there.latest, said.entries, lines, said.partly)
            read = 0 if broken else tokens_between(blocks, "summary")
            options.append(_Option(self._told(lines) + read, kept))
            if document is not None:
                both = (*lines, *document)
                kept = Settled(before.global_context, there.shown, said.entries, both, said.partly)
                options.append(_Option(self._told(both), kept))
        fitting = [one for one in options if self._fits(one.settled.deltas, budgets, today)]
        return min(fitting, key=lambda option: (option.cost, len(option.settled.deltas))).settled

    def _limits(self, before: Shown | None, budgets: Budgets) -> Limits:
        """What the tail may grow to: in a small window less than its budget. How much the system message takes is known
        by the turn *before*: a tail that is cut for room slides with every turn."""
        if before is None or self.layout == "user_first":
            return Limits.of(budgets)
        _, tail_tokens = front_room(budgets, sum(block.load for block in before.blocks))
        _, tail_bytes = front_bytes(budgets)
        return Limits(max(1, tail_tokens), budgets.tail_lines, max(1, tail_bytes), budgets.history_turns)

    def settle_small_talk(self, before: Shown | None, there: Now, audience: str | None) -> Settled:
        """The same for small talk, which has the global context only, and no place to tell what changed."""
        unchanged = self._line_deltas(before, there.lines, audience) == ()
        return Settled(before.global_context if unchanged and before else there.lines)

    def _line_deltas(
        self, before: Shown | None, lines: Sequence[ContextLine] | None, audience: str | None
    ) -> tuple[str, ...] | None:
        """What changed in the global context; None where it has to be shown as it is now: what was deleted, or has
        another text, is not to be read beside what it became."""
        if before is None or before.global_context is None or lines is None or before.audience != (audience or ""):
            return None
        was = {line.number: line for line in before.global_context}
        is_now = {line.number: line for line in lines if line.content}
        if any(line.content and _text_of(is_now.get(number)) != line.content for number, line in was.items()):
            return None
        return tuple(
            f"In the global context: {shown_line(number, line.content, is_marked=line.marked)}"
            for number, line in is_now.items()
            if was.get(number) != line
        )

    def _document_deltas(self, before: Shown | None, there: Now, said: History) -> tuple[str, ...] | None:
        """What has to be known of a newer context document, beside what was *said* and is shown; None where the newest
        has to be shown."""
        shown, latest = there.shown, there.latest
        if before is None or latest is None or (shown.id if shown else "") != before.document:
            return None
        if shown is not None and shown.id == latest.id:
            return ()
        if said.compacted or self.layout == "user_first":
            return None
        place = places(there.entries or ())
        reaches, last = place(shown.newest_turn_id if shown else ""), place(latest.newest_turn_id)
        not_whole = (place(said.before), *(place(turn) for turn in said.partly if place(turn) <= last))
        untold = reaches < last and reaches < max(not_whole)
        edited = latest.made_by == "person" or _of_people(latest) != _of_people(shown)
        text = shown.text if shown else ""
        return _added(text, latest.text) if untold or edited else _corrected(text, latest.text)

    def _told(self, deltas: Sequence[str]) -> int:
        return TURNS_TO_COME * sum(self.tokens.count(delta) for delta in deltas)

    def _fits(self, deltas: Sequence[str], budgets: Budgets, today: str) -> bool:
        return not deltas or self.tokens.fits(now.section(today, deltas).whole, budgets.now_tokens)


def summary_of(document: ContextDocument) -> SummaryInput:
    """*document* as the input of a prompt."""
    return SummaryInput(
        text=document.text,
        turns=document.turns,
        version=document.version,
        newest_turn_id=document.newest_turn_id,
        id=document.id,
    )


def _text_of(line: ContextLine | None) -> str:
    return line.content if line else ""


def _of_people(document: ContextDocument | None) -> tuple[object, ...]:
    return (document.kept, document.put) if document else ((), None)


def _added(was: str, is_now: str) -> tuple[str, ...] | None:
    """The lines that a document has more; None where it has lost any, which is not to be shown any more."""
    before, after = _lines(was), _lines(is_now)
    if not set(before) <= set(after):
        return None
    return tuple(
        f"In the summary{', ' + title if title else ''}: {line.removeprefix('- ')}"
        for title, line in dict.fromkeys(after)
        if (title, line) not in before
    )


def _corrected(was: str, is_now: str) -> tuple[str, ...]:
    """The facts that have another value now: the tail covers where they came from, and the summary contradicts it."""
    return tuple(f"Corrected in the summary, {line.section}: {line.text}" for line in corrected(is_now, was))


def _lines(text: str) -> list[tuple[str, str]]:
    return [(part.title, line.strip()) for part in parse(text) for line in part.body.splitlines() if line.strip()]
