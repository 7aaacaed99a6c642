"""The censors in force, as the model is told of them: what must not be said or done."""

from __future__ import annotations

from collections.abc import Sequence

from grounding.run_context import Censor
from grounding.sections import Section, one_line

HEAD = """\
<censors>
Constraints that were learned here. What goes against a BLOCK is stopped before anybody sees it; heed each WARN."""
FOOT = "</censors>"


def section(censors: Sequence[Censor]) -> Section:
    """A line for each, the blocks first, else in the order given."""
    ordered = sorted(censors, key=lambda one: one.severity != "block")
    return Section(HEAD, tuple(_line(one) for one in ordered), FOOT, cut="never")


def _line(censor: Censor) -> str:
    reason = one_line(censor.reason)
    return f"- {censor.severity.upper()}: {one_line(censor.text)}{f' — {reason}' if reason else ''}"
