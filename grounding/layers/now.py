"""The block about this moment: the day, and what changed since the session began."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from grounding.blocks import Prompt
from grounding.run_context import RunContext
from grounding.sections import Section, one_line

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HEAD, FOOT = "<now>", "</now>"


def section(today: str, deltas: Sequence[str]) -> Section:
    """Return the day and a line for each change; empty without either."""
    said = (f"Today is {_day(today)}.",) if today else ()
    return Section(HEAD, (*said, *(one_line(delta) for delta in deltas)), FOOT, cut="never")


def tells_all(context: RunContext, prompt: Prompt) -> bool:
    """Say whether *prompt*, made from *context*, reports all changes."""
    block = prompt.block("now")
    return not context.deltas or (block is not None and block.text == section(context.today, context.deltas).whole)


def _day(today: str) -> str:
    """Return *today* with its day of the week, which models often get wrong."""
    try:
        return f"{WEEKDAYS[date.fromisoformat(today).weekday()]}, {today}"
    except ValueError:
        return one_line(today)
