"""Keep a prompt within the memory of a model that runs on this machine. Pure.

`condensed` builds the prompt and shortens or removes layers until the model's attention cache fits the free memory. It
changes the `RunContext` itself, so that a stored one rebuilds the prompt that was sent. `CacheShape` computes the size
of the cache. `frozen` keeps the environment block the same until the machine changes in a way that matters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grounding.memory.context_document import bodies
from grounding.prompt.assemble import build_prompt
from grounding.prompt.layers import lost_connections
from grounding.prompt.session_prefix import split_turns
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
    TailEntry,
    Tokens,
)

MIB = 2**20
GIST_CHARACTERS = 160
"""The length of a shortened text."""
GIST_LINES = 2
"""The lines of a shortened section of the context document."""
_SENTENCE_END = re.compile(r"[.!?。！？](?=\s)|\n")


# Condensing


@dataclass(frozen=True, slots=True)
class CondensedPrompt:
    """A prompt and its input.

    ``taken`` names the blocks that were shortened or removed; ``needed_mib`` is the estimated size of the cache before.
    ``is_over``: the cache still does not fit.
    """

    context: RunContext
    prompt: Prompt
    whole: RunContext
    """The input before anything was removed."""
    taken: tuple[str, ...] = ()
    needed_mib: int = 0
    is_over: bool = False


def condense_to_memory(context: RunContext, tokens: Tokens) -> CondensedPrompt:
    """Return the prompt of *context*, condensed in the order of `_STEPS` until the cache fits.

    If it does not fit even then, the model is asked all the same, because the size is an estimate. Never touched are
    the system message, the user's message, verbatim records, and the last pair of request and reply. Raises
    `grounding.prompt_input.budgets.ContextTooLarge`.
    """
    whole, prompt = context, build_prompt(context, tokens)
    needed = cache_mib(context, prompt)
    taken: list[str] = []
    for name, condense in _STEPS:
        if fits(context, prompt):
            break
        block = prompt.block(name)
        less = condense(context)
        if less == context or (block is not None and not block.text):
            continue
        taken.append(name)
        note = DegradedBlock(block=name, why=CONDENSED)
        context = less.model_copy(
            update={
                "injected": tuple(one for one in less.injected if one.name != name),  # it rendered the longer text
                "degraded": (*(one for one in less.degraded if one != note), note),
            }
        )
        prompt = build_prompt(context, tokens)
    return CondensedPrompt(context, prompt, whole, tuple(dict.fromkeys(taken)), needed, not fits(context, prompt))


def fits(context: RunContext, prompt: Prompt) -> bool:
    """Say whether the cache fits beside the buffer; True if nothing is known of the memory."""
    memory = context.memory
    return memory is None or cache_mib(context, prompt) <= max(memory.free_mib - memory.buffer_mib, 0)


def cache_mib(context: RunContext, prompt: Prompt) -> int:
    """Return the estimated size of the cache for prompt, tools and reply, rounded up; 0 if nothing is known of the
    memory.

    The cache holds tokens of the model's own vocabulary, so ours are multiplied by `WINDOW_SAFETY`. Tokens for which
    the server has already reserved memory need no free memory. See `CacheShape` for the bytes per token.
    """
    memory = context.memory
    if memory is None:
        return 0
    system = sum(block.load for block in prompt.blocks if block.place.message == "system")
    read = (system + prompt.tokens_total + context.budgets.tools_tokens) * WINDOW_SAFETY
    tokens = max(0, math.ceil(read) + context.budgets.output_tokens - memory.reserved_tokens)
    return math.ceil(tokens * memory.bytes_per_token / MIB)


def room_tokens(memory: ModelMemory, step: int) -> int:
    """Return the number of the model's tokens for which there is memory, in whole *steps*, so that small changes of
    free memory decide the same."""
    free = max(memory.free_mib - memory.buffer_mib, 0) * MIB // memory.bytes_per_token + memory.reserved_tokens
    return free // step * step


def _shorten_records(context: RunContext) -> RunContext:
    records = tuple(
        one if one.verbatim else one.model_copy(update={"text": _gist(one.text)}) for one in context.records
    )
    recalled = tuple(one.model_copy(update={"text": _gist(one.text)}) for one in context.recalled)
    return context.model_copy(update={"records": records, "recalled": recalled})


def _shorten_tail(context: RunContext) -> RunContext:
    last = _last_pair(context)
    earlier = context.tail[: len(context.tail) - len(last)]
    short = tuple(one.model_copy(update={"text": _gist(one.text)}) for one in earlier)
    return context.model_copy(update={"tail": (*short, *last)})


def _shorten_summary(context: RunContext) -> RunContext:
    """Return *context* with the first lines of each section of the document."""
    if context.summary is None:
        return context
    sections = bodies(context.summary.text)
    short = "\n\n".join(f"## {title}\n" + "\n".join(body.splitlines()[:GIST_LINES]) for title, body in sections.items())
    text = short + "\n"
    if not sections or len(text) >= len(context.summary.text):
        return context
    return context.model_copy(update={"summary": context.summary.model_copy(update={"text": text})})


def _gist(text: str) -> str:
    """Return the first sentences of *text*, or words, in `GIST_CHARACTERS`."""
    if len(text) <= GIST_CHARACTERS:
        return text
    begin = text[:GIST_CHARACTERS]
    ends = [match.end() for match in _SENTENCE_END.finditer(begin)]
    gist = begin[: ends[-1]] if ends and ends[-1] >= GIST_CHARACTERS // 3 else begin.rpartition(" ")[0] or begin
    return gist.rstrip() + " …"


def _remove_additions(context: RunContext) -> RunContext:
    """Return *context* without the blocks that formatters added to the user message."""
    rest = tuple(one for one in context.injected if one.message == "system" or one.name in PLACES)
    return context.model_copy(update={"injected": rest})


def _remove_records(context: RunContext) -> RunContext:
    return context.model_copy(update={"records": tuple(one for one in context.records if one.verbatim)})


def _last_pair(context: RunContext) -> tuple[TailEntry, ...]:
    return split_turns(context.tail)[-1] if context.tail else ()


_STEPS: tuple[tuple[str, Callable[[RunContext], RunContext]], ...] = (
    ("injected", _remove_additions),
    ("karma", lambda context: context.model_copy(update={"karma": ()})),
    ("records", _shorten_records),
    ("tail", _shorten_tail),
    ("summary", _shorten_summary),
    ("records", _remove_records),
    ("records", lambda context: context.model_copy(update={"recalled": ()})),
    ("tail", lambda context: context.model_copy(update={"tail": _last_pair(context)})),
    ("summary", lambda context: context.model_copy(update={"summary": None})),
    ("retrieved", lambda context: context.model_copy(update={"passages": context.passages[:1]})),
    ("retrieved", lambda context: context.model_copy(update={"passages": ()})),
)
"""The steps of condensing, the least important part first: additions of formatters and examples; details of records and
of the older conversation; then these themselves; at last the passages, which most likely hold the answer."""


# The size of a model's attention cache


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
"""The bytes of one number in the cache. Quantised numbers are stored in blocks of 32 with a scale (and an offset) of
two bytes each: ggml's ``block_q8_0`` has 34 bytes, ``block_q4_0`` 18 (ggml/src/ggml-common.h in ggml-org/llama.cpp)."""

LARGEST_FIGURE = 2**20
"""A larger number in a model's description is not a number of layers, heads or the like."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The properties of a model that decide the size of its cache. ``kv_heads`` is the sum over the layers;
    ``key_size`` and ``value_size`` are the sizes of one head."""

    layers: int
    kv_heads: int
    key_size: int
    value_size: int

    def bytes_per_token(self, of: CacheType) -> int:
        """Return the bytes of the cache for one token.

        ``2 × layers × KV heads × head size × bytes per element``: for each layer a key and a value for each KV head.
        The 2 stands for key and value, whose sizes differ in some models; with grouped-query attention (Ainslie et al.
        2023, arXiv:2305.13245) there are fewer KV heads than heads, and in some models their number differs between
        layers, hence the sum. The formula is that of Pope et al. 2022 (arXiv:2211.05102), and that of llama.cpp
        (``llama_kv_cache``: ``n_embd_k_gqa`` and ``n_embd_v_gqa`` for each layer and cell).

        The result is too high for layers with a sliding window, which need no more than the window, and for models
        that are partly recurrent or keep a compressed cache (MLA): an estimate that is too high does less harm.
        """
        return math.ceil(self.kv_heads * (self.key_size + self.value_size) * BYTES_PER_ELEMENT[of])


def shape_of(about: Mapping[str, Any]) -> CacheShape | None:
    """Return the shape in a model's own description; None if it does not say enough.

    *about* has GGUF's keys (docs/gguf.md in ggml-org/ggml), as in a file's header and in ``model_info`` of Ollama's
    ``/api/show``. Without ``head_count_kv`` every head has its own keys and values; without ``key_length`` and
    ``value_length`` the size of a head is its share of the embedding.
    """
    name = about.get("general.architecture")

    def number(key: str) -> int | None:
        found = about.get(f"{name}.{key}")
        return found if type(found) is int and 0 < found <= LARGEST_FIGURE else None

    layers, width = number("block_count"), number("embedding_length")
    if layers is None:
        return None
    heads = _total_heads(about.get(f"{name}.attention.head_count"), layers)
    kv_heads = _total_heads(about.get(f"{name}.attention.head_count_kv"), layers) or heads
    share = width * layers // heads if width and heads else None
    key_size = number("attention.key_length") or share
    value_size = number("attention.value_length") or share
    if not (kv_heads and key_size and value_size):
        return None
    return CacheShape(layers, kv_heads, key_size, value_size)


def _total_heads(found: object, layers: int) -> int | None:
    """Return the heads of all layers, from their number per layer or a list of these; None if *found* is neither."""
    each = found if isinstance(found, list | tuple) else [found] * layers
    if len(each) != layers or not all(type(one) is int and 0 <= one <= LARGEST_FIGURE for one in each):
        return None
    return sum(each) or None


# The environment block, which stays the same until something important changes

BACK_ABOVE = 1.25
"""Short memory counts as free again only above this multiple of the buffer, so that the state does not flip."""


def stable_environment(
    told: EnvironmentInput | None, now: EnvironmentInput | None, buffer_mib: int
) -> EnvironmentInput | None:
    """Return the environment for the prompt: as *told* before in the session, unless it has changed much by *now*."""
    if told is None or now is None:
        return told or now
    return now if environment_changed(told, now, buffer_mib) else told


def environment_changed(told: EnvironmentInput, now: EnvironmentInput, buffer_mib: int) -> bool:
    """Say whether a card came, went, slowed down or recovered, its free memory crossed *buffer_mib*, a connection was
    lost or is back, or the power mode changed."""
    before = {device.name: device for device in told.devices}
    if before.keys() != {device.name for device in now.devices} or told.note != now.note:
        return True
    if any(_has_device_changed(before[device.name], device, buffer_mib) for device in now.devices):
        return True
    return lost_connections(told) != lost_connections(now) or _saves_power(told) != _saves_power(now)


def _has_device_changed(before: Device, now: Device, buffer_mib: int) -> bool:
    if before.throttled != now.throttled:
        return True
    if before.free_mib < buffer_mib:
        return now.free_mib >= buffer_mib * BACK_ABOVE
    return now.free_mib < buffer_mib


def _saves_power(environment: EnvironmentInput) -> tuple[bool, bool]:
    return environment.low_power, environment.power == "battery"
