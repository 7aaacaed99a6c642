"""Takes traces out of a prompt whose attention cache would not fit the memory there is, before a model is asked. Pure.

What is taken out is taken out of the `RunContext` itself: a stored one rebuilds the prompt that was sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from grounding import assemble
from grounding.blocks import PLACES, Prompt
from grounding.history import pairs
from grounding.memory.document import bodies
from grounding.run_context import CONDENSED, DegradedBlock, ModelMemory, RunContext
from grounding.tokens import Tokens
from grounding.window import WINDOW_SAFETY

MIB = 2**20
GIST_CHARACTERS = 160
GIST_LINES = 2
"""What is left of a text, and of a section, when it is told in short."""
_SENTENCE_END = re.compile(r"[.!?。！？](?=\s)|\n")


@dataclass(frozen=True, slots=True)
class Condensed:
    """A prompt and what it is made of. ``taken`` names the blocks that are less than they were; ``needed_mib`` is what
    the cache was reckoned to take before, and ``is_over``: that it still does not fit."""

    context: RunContext
    prompt: Prompt
    whole: RunContext
    """What it was before anything was taken."""
    taken: tuple[str, ...] = ()
    needed_mib: int = 0
    is_over: bool = False


def condensed(context: RunContext, tokens: Tokens) -> Condensed:
    """The prompt of *context*, with as much told in short or taken out of it, block by block, that the cache fits; all
    that may be taken where even then it does not: the model is asked all the same, as this is reckoned, not measured.

    Never taken are the blocks of the system message, the message itself, what is kept word for word, and the last pair
    of request and reply. Raises `grounding.window.ContextTooLarge`.
    """
    whole, prompt = context, assemble.prompt(context, tokens)
    needed = cache_mib(context, prompt)
    taken: list[str] = []
    for block, take in _STEPS:
        if fits(context, prompt):
            break
        found = prompt.block(block)
        less = take(context)
        if less is None or (found is not None and not found.used):
            continue
        taken.append(block)
        context = _noted(_without_templates(less, block), block)
        prompt = assemble.prompt(context, tokens)
    return Condensed(context, prompt, whole, tuple(dict.fromkeys(taken)), needed, not fits(context, prompt))


def fits(context: RunContext, prompt: Prompt) -> bool:
    """Whether the cache fits beside the buffer; True where nothing is known of it."""
    memory = context.memory
    return memory is None or cache_mib(context, prompt) <= max(memory.free_mib - memory.buffer_mib, 0)


def cache_mib(context: RunContext, prompt: Prompt) -> int:
    """What the cache is reckoned to take for prompt, tools and reply, rounded up; 0 where nothing is known of it.

    Tokens are the model's own, so ours are multiplied by `WINDOW_SAFETY`.
    For those that the server has memory for already none has to be free. See `grounding.cache_size` for the rest of the
    formula.
    """
    memory = context.memory
    if memory is None:
        return 0
    system = sum(block.load for block in prompt.blocks if block.place.message == "system")
    read = (system + prompt.tokens_total + context.budgets.tools_tokens) * WINDOW_SAFETY
    held = max(0, math.ceil(read) + context.budgets.output_tokens - memory.reserved_tokens)
    return math.ceil(held * memory.bytes_per_token / MIB)


def room_tokens(memory: ModelMemory, step: int) -> int:
    """For how many tokens of the model there is memory, in whole *steps*: free memory that goes up and down a little
    is to decide the same."""
    free = max(memory.free_mib - memory.buffer_mib, 0) * MIB // memory.bytes_per_token + memory.reserved_tokens
    return free // step * step


def _injected(context: RunContext) -> RunContext | None:
    kept = tuple(one for one in context.injected if one.message == "system" or one.name in PLACES)
    return context.model_copy(update={"injected": kept}) if len(kept) < len(context.injected) else None


def _karma(context: RunContext) -> RunContext | None:
    return context.model_copy(update={"karma": ()}) if context.karma else None


def _records(context: RunContext) -> RunContext | None:
    kept = tuple(one for one in context.records if one.verbatim)
    return context.model_copy(update={"records": kept}) if len(kept) < len(context.records) else None


def _recalled(context: RunContext) -> RunContext | None:
    return context.model_copy(update={"recalled": ()}) if context.recalled else None


def _tail(context: RunContext) -> RunContext | None:
    last = tuple(pairs(context.tail)[-1]) if context.tail else ()
    return context.model_copy(update={"tail": last}) if len(last) < len(context.tail) else None


def _summary(context: RunContext) -> RunContext | None:
    return context.model_copy(update={"summary": None}) if context.summary is not None else None


def _shorter(text: str) -> str:
    """What *text* begins with: its first sentences, or words, in `GIST_CHARACTERS`."""
    if len(text) <= GIST_CHARACTERS:
        return text
    begin = text[:GIST_CHARACTERS]
    ends = [match.end() for match in _SENTENCE_END.finditer(begin)]
    kept = begin[: ends[-1]] if ends and ends[-1] >= GIST_CHARACTERS // 3 else begin.rpartition(" ")[0] or begin
    return kept.rstrip() + " …"


def _records_in_short(context: RunContext) -> RunContext | None:
    records = tuple(
        one if one.verbatim else one.model_copy(update={"text": _shorter(one.text)}) for one in context.records
    )
    recalled = tuple(one.model_copy(update={"text": _shorter(one.text)}) for one in context.recalled)
    return _changed(context, records=records, recalled=recalled)


def _tail_in_short(context: RunContext) -> RunContext | None:
    last = len(pairs(context.tail)[-1]) if context.tail else 0
    earlier = context.tail[: len(context.tail) - last]
    short = tuple(one.model_copy(update={"text": _shorter(one.text)}) for one in earlier)
    return _changed(context, tail=(*short, *context.tail[len(earlier) :]))


def _summary_in_short(context: RunContext) -> RunContext | None:
    """The document's sections with the first lines of each."""
    if context.summary is None:
        return None
    short = {title: "\n".join(body.splitlines()[:GIST_LINES]) for title, body in bodies(context.summary.text).items()}
    text = "\n\n".join(f"## {title}\n{body}" for title, body in short.items()) + "\n"
    is_less = bool(short) and len(text) < len(context.summary.text)
    return _changed(context, summary=context.summary.model_copy(update={"text": text})) if is_less else None


def _changed(context: RunContext, **fields: Any) -> RunContext | None:
    made = context.model_copy(update=fields)
    return made if made != context else None


def _passages(most: int) -> Callable[[RunContext], RunContext | None]:
    def take(context: RunContext) -> RunContext | None:
        fewer = context.passages[:most]
        return context.model_copy(update={"passages": fewer}) if len(fewer) < len(context.passages) else None

    return take


_STEPS: tuple[tuple[str, Callable[[RunContext], RunContext | None]], ...] = (
    ("injected", _injected),
    ("karma", _karma),
    ("records", _records_in_short),
    ("tail", _tail_in_short),
    ("summary", _summary_in_short),
    ("records", _records),
    ("records", _recalled),
    ("tail", _tail),
    ("summary", _summary),
    ("retrieved", _passages(1)),
    ("retrieved", _passages(0)),
)
"""What is taken, the least missed first: what formatters added to the message, examples, the details of what may be
known besides and of what was said longer ago, then the gist of these, and at last what the question is most likely
about."""


def _without_templates(context: RunContext, block: str) -> RunContext:
    """*context* without what a formatter made of *block*: it was made of more."""
    kept = tuple(one for one in context.injected if one.name != block)
    return context.model_copy(update={"injected": kept})


def _noted(context: RunContext, block: str) -> RunContext:
    return context.model_copy(update={"degraded": tuple(_with(context, block))})


def _with(context: RunContext, block: str) -> Iterator[DegradedBlock]:
    note = DegradedBlock(block=block, why=CONDENSED)
    yield from (one for one in context.degraded if one != note)
    yield note
