"""The last messages of the conversation, newest back, within lines and bytes."""

from __future__ import annotations

from collections.abc import Iterable

from grounding.run_context import TailEntry
from grounding.sections import Section, as_data, keep_newest, one_line
from grounding.tokens import utf8_length

MAX_LINE_BYTES = 320
HEAD = "<recent_conversation>"
FOOT = "</recent_conversation>"


def lines(entries: Iterable[TailEntry]) -> list[str]:
    """The entries as lines, oldest first. A message's further lines are indented, so that no text can
    pose as another speaker's line."""
    result: list[str] = []
    for entry in entries:
        spoken = [line.strip() for line in as_data(entry.text).splitlines() if line.strip()]
        by = one_line(entry.speaker) or "someone"
        for number, line in enumerate(spoken):
            result.append(_shorten(f"{by}: {line}" if number == 0 else f"  {line}"))
    return result


def section(entries: Iterable[TailEntry], max_lines: int, max_bytes: int) -> Section:
    """The newest lines that fit both limits, shown oldest first."""
    kept: list[str] = []
    size = 0
    for line in reversed(lines(entries)):
        size += utf8_length(line) + 1
        if len(kept) == max_lines or size > max_bytes:
            break
        kept.append(line)
    kept.reverse()
    return Section(HEAD, tuple(kept), FOOT, keep=keep_newest(kept), cut="never")


def _shorten(line: str) -> str:
    if utf8_length(line) <= MAX_LINE_BYTES:
        return line
    cut = line.encode("utf-8", "surrogatepass")[: MAX_LINE_BYTES - 4].decode("utf-8", "ignore")
    return cut.rstrip() + " …"
