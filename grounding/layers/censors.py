"""The censors in force, as the model is told of them: what must not be said or done."""

from __future__ import annotations

from collections.abc import Sequence

from grounding.run_context import Censor
from grounding.sections import Section, one_line

HEAD = """\
<censors>
Constraints that were learned here. What goes against a BLOCK is stopped before anybody sees it; heed each WARN."""
FOOT = "</censors>"
LONGEST_RULE_CHARACTERS, LONGEST_REASON_CHARACTERS = 400, 200
"""What of one is told: who writes a page about one constraint must not leave all others without room."""


def section(censors: Sequence[Censor]) -> Section:
    """A line for each, the blocks first, else in the order given."""
    ordered = sorted(censors, key=lambda one: one.severity != "block")
    return Section(HEAD, tuple(_line(one) for one in ordered), FOOT, cut="always")


def _line(censor: Censor) -> str:
    rule, reason = _short(censor.text, LONGEST_RULE_CHARACTERS), _short(censor.reason, LONGEST_REASON_CHARACTERS)
    return f"- {censor.severity.upper()}: {rule}{f' — {reason}' if reason else ''}"


def _short(text: str, most: int) -> str:
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 2].rstrip()} …"
