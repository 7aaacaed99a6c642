"""Takes traces out of a prompt whose attention cache would not fit the memory there is, before a model is asked. Pure.

What is taken out is taken out of the `RunContext` itself: a stored one rebuilds the prompt that was sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grounding.memory.context_document import bodies
from grounding.prompt import assemble
from grounding.prompt.layers import lost_connections
from grounding.prompt.session_prefix import pairs
from grounding.prompt_input import (
    CONDENSED,
    PLACES,
    WINDOW_SAFETY,
    DegradedBlock,
    Device,
    EnvironmentInput,
    ModelMemory,
    Prompt,
    RunContext,
    Tokens,
)

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
    of request and reply. Raises `grounding.prompt_input.budgets.ContextTooLarge`.
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
    For those that the server has memory for already none has to be free. See `grounding.prompt.memory_budget` for
    the rest of the
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


# ---- cache size ----
#
# How much memory a model's attention cache takes. Pure.


CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]

BYTES_PER_ELEMENT: Mapping[CacheType, float] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}
"""What one number of the cache takes. Quantised ones are kept in blocks of 32 with a scale (and an offset) of two bytes
each: ggml's ``block_q8_0`` has 34 bytes, ``block_q4_0`` 18 (ggml/src/ggml-common.h in ggml-org/llama.cpp)."""
assert set(BYTES_PER_ELEMENT) == set(get_args(CacheType))

MOST = 2**20
"""Beyond this a number of a model's description is no number of layers, heads or the like."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What of a model decides how large its cache is. ``kv_heads`` is summed over the layers; ``key_size`` and
    ``value_size`` are the sizes of one head."""

    layers: int
    kv_heads: int
    key_size: int
    value_size: int

    def bytes_per_token(self, of: CacheType) -> int:
        """Bytes that the cache takes for one token.

        ``2 × layers × KV heads × head size × bytes per element``: for each layer a key and a value for each KV head.
        The 2 is the sum of both, which some models have of different sizes; with grouped-query attention (Ainslie et
        al. 2023, arXiv:2305.13245) there are fewer KV heads than heads, and some models have another number of them in
        each layer, hence their sum. The formula is that of Pope et al. 2022 (arXiv:2211.05102), and what
        llama.cpp sets aside (``llama_kv_cache``: ``n_embd_k_gqa`` and ``n_embd_v_gqa`` for each layer and cell).

        It is too high for layers with a sliding window, which need no more than the window, and for models whose
        layers are partly recurrent or that keep a compressed cache (MLA): what it is used for should rather expect too
        much than too little.
        """
        return math.ceil(self.kv_heads * (self.key_size + self.value_size) * BYTES_PER_ELEMENT[of])


def shape_of(about: Mapping[str, Any]) -> CacheShape | None:
    """The shape that a model's own description gives; None where it does not say enough.

    *about* has GGUF's keys (docs/gguf.md in ggml-org/ggml), as a file's header and the ``model_info`` of Ollama's
    ``/api/show`` do. Without ``head_count_kv`` every head has keys and values of its own; without ``key_length`` and
    ``value_length`` a head is its share of the embedding.
    """
    name = about.get("general.architecture")

    def number(key: str) -> int | None:
        found = about.get(f"{name}.{key}")
        return found if type(found) is int and 0 < found <= MOST else None

    layers, width = number("block_count"), number("embedding_length")
    if layers is None:
        return None
    heads = _summed(about.get(f"{name}.attention.head_count"), layers)
    kv_heads = _summed(about.get(f"{name}.attention.head_count_kv"), layers) or heads
    share = width * layers // heads if width and heads else None
    key_size = number("attention.key_length") or share
    value_size = number("attention.value_length") or share
    if not (kv_heads and key_size and value_size):
        return None
    return CacheShape(layers, kv_heads, key_size, value_size)


def _summed(found: object, layers: int) -> int | None:
    """Heads of all layers, from their number in each layer or a list of these; None where it is neither."""
    each = found if isinstance(found, list | tuple) else [found] * layers
    if len(each) != layers or not all(type(one) is int and 0 <= one <= MOST for one in each):
        return None
    return sum(each) or None


# ---- environment ----
#
# When the machine has changed so much that the model is told anew. Pure.
#
# What is told of the machine stands at the beginning of a prompt, so it stays as it was when the session began: free
# memory that goes up and down is no news. It is told anew where something crosses a line that may change what is done.


BACK_ABOVE = 1.25
"""Memory that was short is so no more above so many times the buffer: at the line itself it would change to and fro."""


def frozen(told: EnvironmentInput | None, now: EnvironmentInput | None, buffer_mib: int) -> EnvironmentInput | None:
    """What the model is told: as it was *told* before in the session, unless it has changed so much *now*."""
    if told is None or now is None:
        return told or now
    return now if has_crossed(told, now, buffer_mib) else told


def has_crossed(told: EnvironmentInput, now: EnvironmentInput, buffer_mib: int) -> bool:
    """Whether a card came or went, is slowed down or is not any more, whether its free memory fell below *buffer_mib*
    or is back, whether something is reached no more or again, or whether power is saved."""
    before = {device.name: device for device in told.devices}
    if before.keys() != {device.name for device in now.devices} or told.note != now.note:
        return True
    if any(_state(before[one.name], one, buffer_mib) for one in now.devices):
        return True
    return lost_connections(told) != lost_connections(now) or _saving(told) != _saving(now)


def _state(before: Device, now: Device, buffer_mib: int) -> bool:
    if before.throttled != now.throttled:
        return True
    if before.free_mib < buffer_mib:
        return now.free_mib >= buffer_mib * BACK_ABOVE
    return now.free_mib < buffer_mib


def _saving(environment: EnvironmentInput) -> tuple[bool, bool]:
    return environment.low_power, environment.power == "battery"
