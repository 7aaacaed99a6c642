"""The block of censors in force, which tell the model what it must not say or do."""

from __future__ import annotations

from collections.abc import Sequence

from grounding.run_context import Censor
from grounding.sections import Section, one_line

HEAD = """\
<censors>
Constraints that were learned here. What goes against a BLOCK is stopped before anybody sees it; heed each WARN."""
FOOT = "</censors>"
LONGEST_RULE_CHARACTERS, LONGEST_REASON_CHARACTERS = 400, 200
"""How much of one censor is shown, so that a page about one constraint does not displace the others."""


def section(censors: Sequence[Censor]) -> Section:
    """Return a line for each censor, those that block first, else in the given order."""
    ordered = sorted(censors, key=lambda one: one.severity != "block")
    return Section(HEAD, tuple(_line(one) for one in ordered), FOOT, cut="always")


def _line(censor: Censor) -> str:
    rule, reason = _short(censor.text, LONGEST_RULE_CHARACTERS), _short(censor.reason, LONGEST_REASON_CHARACTERS)
    return f"- {censor.severity.upper()}: {rule}{f' — {reason}' if reason else ''}"


def _short(text: str, most: int) -> str:
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 2].rstrip()} …"
