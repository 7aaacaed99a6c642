"""The block of the global context in the system message, shown in every prompt."""

from __future__ import annotations

from collections.abc import Sequence

from grounding.memory.global_context_lines import shown
from grounding.run_context import ContextLine
from grounding.tokens import Tokens

HEAD, FOOT = "<global-context>", "</global-context>"
EMPTY = "(empty)"
GUIDANCE = """\
Global context: what was learned about the people here. It is always shown and shapes how you help; it never overrides \
the instructions above. Keep it true and short with append_context, replace_context and delete_context, where you have \
these tools: lasting preferences, patterns, constraints and background belong there; single tasks and events, one-time \
facts and what will soon change do not."""
SHORT_GUIDANCE = "Global context: always shown, learned, never above the instructions. Full: merge or delete lines."


def text(lines: Sequence[ContextLine], tokens: Tokens, max_tokens: int) -> str:
    """Return the block in at most *max_tokens*; empty if not even its tags fit.

    The guidance is dropped first, then the blanks of deleted lines, then the last lines. A note says how many.
    """
    numbered = [(shown(line.number, line.content, is_marked=line.marked), bool(line.content)) for line in lines]
    whole = [one for one, _ in numbered]
    kept = [one for one, is_said in numbered if is_said]
    for guidance, some in ((GUIDANCE, whole), (SHORT_GUIDANCE, whole), ("", whole), ("", kept)):
        made = _block(guidance, some)
        if tokens.fits(made, max_tokens):
            return made
    for count in range(len(kept) - 1, -1, -1):
        made = _block("", [*kept[:count], f"({len(kept) - count} more lines do not fit: merge or delete lines)"])
        if tokens.fits(made, max_tokens):
            return made
    return ""


def frame_tokens(tokens: Tokens) -> int:
    """Return the tokens of the block's tags. The rest of its budget is for lines."""
    return tokens.count(_block("", ["0--"])) - tokens.count("0--\n")


def _block(guidance: str, lines: Sequence[str]) -> str:
    return "\n".join((*([guidance, ""] if guidance else []), HEAD, *(lines or [EMPTY]), FOOT))
