"""Decide which parts of the last prompt a turn shows again, and how it reports what has changed since. Pure.

The global context and the context document stay byte for byte the same, so that an engine need not read them, and the
text behind them, again. Changes are reported behind the volatile boundary in the block ``now``, or the block is shown
anew, whichever makes the engine read fewer tokens. Every change is reported, and deleted text is never shown.
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
"""For how many turns a reported change is expected to be repeated, until the tail is compacted or the session ends.

An estimate: at 40 tokens a message the tail's ceiling allows about as many.
"""


@dataclass(frozen=True, slots=True)
class Now:
    """The present data.

    ``shown`` is the document of the last prompt, None if it is deleted. ``lines`` and ``entries`` are None if they are
    unavailable.
    """

    lines: tuple[ContextLine, ...] | None
    latest: ContextDocument | None
    shown: ContextDocument | None
    entries: tuple[TailEntry, ...] | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What the prompt shows. ``deltas`` report changes of it; ``partly`` is that of
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
        """Return the same with the present data instead of deltas."""
        return Settled(there.lines, there.latest, self.tail, partly=self.partly)


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to show everything, and the tokens that an engine must read again for it."""

    cost: int
    settled: Settled


@dataclass(frozen=True, slots=True)
class Freezing:
    """Decides what stays the same. With the *layout* ``user_first`` nothing behind the message can be reused."""

    tokens: Tokens
    layout: Layout

    def settle(self, before: Shown | None, there: Now, audience: str | None, budgets: Budgets, today: str) -> Settled:
        """Return what a turn shows, given the last prompt (*before*, None for the first turn) and the present data
        *there*.

        *audience* is the audience whose lines are among the global context.
        """
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
            options.append(_Option(self._cost_of(lines) + read, kept))
            if document is not None:
                both = (*lines, *document)
                kept = Settled(before.global_context, there.shown, said.entries, both, said.partly)
                options.append(_Option(self._cost_of(both), kept))
        fitting = [one for one in options if self._fits(one.settled.deltas, budgets, today)]
        return min(fitting, key=lambda option: (option.cost, len(option.settled.deltas))).settled

    def _limits(self, before: Shown | None, budgets: Budgets) -> Limits:
        """Return the limits of the tail, which are below its budget in a small window.

        The size of the system message is taken from the turn *before*: a tail cut to fit would move with every turn.
        """
        if before is None or self.layout == "user_first":
            return Limits.of(budgets)
        _, tail_tokens = front_room(budgets, sum(block.load for block in before.blocks))
        _, tail_bytes = front_bytes(budgets)
        return Limits(max(1, tail_tokens), budgets.tail_lines, max(1, tail_bytes), budgets.history_turns)

    def settle_small_talk(self, before: Shown | None, there: Now, audience: str | None) -> Settled:
        """Do the same for small talk, whose prompt has only the global context and no block for changes."""
        unchanged = self._line_deltas(before, there.lines, audience) == ()
        return Settled(before.global_context if unchanged and before else there.lines)

    def _line_deltas(
        self, before: Shown | None, lines: Sequence[ContextLine] | None, audience: str | None
    ) -> tuple[str, ...] | None:
        """Return the changes of the global context, or None if it must be shown anew.

        It must be if a line was deleted or changed, because the old text must not stand beside the new one.
        """
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
        """Return the changes of a newer context document that *said*, the shown turns, do not cover.

        Returns None if the newest document must be shown.
        """
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

    def _cost_of(self, deltas: Sequence[str]) -> int:
        return TURNS_TO_COME * sum(self.tokens.count(delta) for delta in deltas)

    def _fits(self, deltas: Sequence[str], budgets: Budgets, today: str) -> bool:
        return not deltas or self.tokens.fits(now.section(today, deltas).whole, budgets.now_tokens)


def summary_of(document: ContextDocument) -> SummaryInput:
    """Return *document* as the input of a prompt."""
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
    """Return the lines that the newer document adds; None if it lost lines, which must not be shown any more."""
    before, after = _lines(was), _lines(is_now)
    if not set(before) <= set(after):
        return None
    return tuple(
        f"In the summary{', ' + title if title else ''}: {line.removeprefix('- ')}"
        for title, line in dict.fromkeys(after)
        if (title, line) not in before
    )


def _corrected(was: str, is_now: str) -> tuple[str, ...]:
    """Return the facts with a new value. The tail shows their origin, but the old summary contradicts it."""
    return tuple(f"Corrected in the summary, {line.section}: {line.text}" for line in corrected(is_now, was))


def _lines(text: str) -> list[tuple[str, str]]:
    return [(part.title, line.strip()) for part in parse(text) for line in part.body.splitlines() if line.strip()]
