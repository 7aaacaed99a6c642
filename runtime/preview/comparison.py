"""How two prompts differ: which blocks have the same bytes, and word by word what was added and removed. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grounding.prompt_input import Block, Prompt
from runtime.turns import block_rows

MOST_PAIRS = 25_000_000
"""Longer texts are compared line by line, because the time for words grows with the product of their numbers."""
_WORD = re.compile(r"\s*\S+|\s+")
Kind = Literal["equal", "insert", "delete"]
Change = Literal["same", "changed", "added", "removed"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text that two texts have in common, or that only the second or only the first has."""

    kind: Kind
    text: str


def compare_words(before: str, after: str) -> tuple[Segment, ...]:
    """Return the segments that lead from *before* to *after*: those not inserted, joined, are *before*, and those not
    deleted are *after*."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    if len(old) * len(new) > MOST_PAIRS:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    if len(old) * len(new) > MOST_PAIRS:
        old, new = [before], [after]
    segments: list[Segment] = []

    def add(kind: Kind, parts: Sequence[str]) -> None:
        if parts:
            segments.append(Segment(kind, "".join(parts)))

    for tag, first, last, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            add("equal", old[first:last])
        else:
            add("delete", old[first:last])
            add("insert", new[start:end])
    return tuple(segments)


@dataclass(frozen=True, slots=True)
class BlockComparison:
    """A block in two prompts. ``tokens`` and ``sha256`` are of both; ``segments`` are empty if its bytes are the
    same."""

    name: str
    change: Change
    tokens: tuple[int, int]
    sha256: tuple[str, str]
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """Two prompts side by side. ``blocks`` has those with text in either, in the order of the text."""

    before: Prompt
    after: Prompt
    blocks: tuple[BlockComparison, ...]

    @property
    def is_same(self) -> bool:
        """Whether the model would be sent the same bytes."""
        return self.before.sha256 == self.after.sha256

    def row(self) -> dict[str, Any]:
        """Return the comparison as JSON values, for people's interfaces."""
        return {
            "identical": self.is_same,
            "before": _prompt_row(self.before),
            "after": _prompt_row(self.after),
            "blocks": [
                {
                    "name": block.name,
                    "change": block.change,
                    "tokens": list(block.tokens),
                    "sha256": list(block.sha256),
                    "segments": [{"kind": segment.kind, "text": segment.text} for segment in block.segments],
                }
                for block in self.blocks
            ],
        }


def compare_prompts(before: Prompt, after: Prompt) -> PromptComparison:
    """Compare two prompts. Long texts take some hundred milliseconds: call it in a thread."""
    old, new = ({block.name: block for block in prompt.blocks if block.text} for prompt in (before, after))
    names = dict.fromkeys(block.name for prompt in (before, after) for block in prompt.blocks if block.text)
    places = {block.name: place for prompt in (before, after) for place, block in enumerate(prompt.blocks)}
    blocks = [_compare_block(name, old.get(name), new.get(name)) for name in sorted(names, key=places.__getitem__)]
    return PromptComparison(before, after, tuple(blocks))


def _compare_block(name: str, old: Block | None, new: Block | None) -> BlockComparison:
    tokens = (old.tokens if old else 0, new.tokens if new else 0)
    sha256 = (old.sha256 if old else "", new.sha256 if new else "")
    if sha256[0] == sha256[1]:
        return BlockComparison(name, "same", tokens, sha256)
    segments = compare_words(old.text if old else "", new.text if new else "")
    change: Change = "added" if old is None else "removed" if new is None else "changed"
    return BlockComparison(name, change, tokens, sha256, segments)


def _prompt_row(prompt: Prompt) -> dict[str, Any]:
    return {
        "messages": prompt.messages,
        "blocks": block_rows(prompt),
        "tokens": sum(block.tokens for block in prompt.blocks),
        "sha256": prompt.sha256,
    }
