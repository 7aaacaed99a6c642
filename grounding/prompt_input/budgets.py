"""What each part of a prompt may take: ceilings in tokens, bytes, characters and lines, never raised silently.

`PromptLimits` has one field per limit, from the setting of the same name. They are applied in three places:

- `grounding.prompt.assemble` cuts each block to its own tokens, then blocks in turn until the prompt keeps the common
  ceilings (`prompt_bytes`, `prompt_tokens`, `context_tokens`, `prompt_characters`, and the model's window);
- `grounding.prompt.layers.tail_section` cuts the tail to `tail_lines` and `tail_bytes`, dropping its oldest lines; if
  the tail is in front of the message, `assemble` also keeps its block within `front_limits`;
- `grounding.prompt.session_prefix` chooses whole turns for the tail within the same limits (`TailLimits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from connectors.message import AgentRuntimeError
from grounding.prompt_input.blocks import PLACES, SEPARATOR, Block, Strict

if TYPE_CHECKING:
    from config.settings import Settings

WINDOW_SAFETY = 1.8
"""Tokens of a model's own vocabulary per token that we count, for the guard of the model's window.

The 99th percentile over passages of 2,000 characters, of the largest of four vocabularies (SmolLM2, Llama 2, Claude 2,
o200k_base): German 1.41, English 1.50, Python 1.57, JavaScript 1.58, C 1.74. Of SmolLM2 alone, Japanese takes 1.64 and
Russian 1.75. Tables of numbers take 2 to 3 and Korean 2.7: such a prompt may be more than a small window holds, and
the provider then refuses it.
"""

MATERIAL_SAFETY = 1.25
"""The same for material that is given whole. It is long, so its parts even out.

The 99th percentile over passages of 40,000 characters: English 1.25 in the largest of the four vocabularies; German
1.11 and Python 1.23 in those of models with large windows (Claude 2, o200k_base). Llama 2 takes 1.42 for Python and
SmolLM2 1.35 for German: there the provider may refuse so much material.
"""

MIN_USER_TOKENS = 64
"""Below this no useful question fits, and the turn is refused instead."""

JOINT_TOKENS = 8
"""The most tokens of the separators, and of words that split differently at a joint."""

FIXED = (PLACES["identity"], PLACES["codex"])
"""The blocks of the system message that are shown whole or not at all; the others yield to a small window."""

Measure = Literal["tokens", "characters"]


class PromptLimits(Strict):
    """The limits of one prompt. Those that no setting sets have their defaults here."""

    top_k: int = Field(gt=0)
    """Passages of documents."""
    excerpt_bytes: int = Field(gt=0)
    """Bytes of each passage."""
    prompt_bytes: int = Field(gt=0)
    """Bytes of message, summary, tail, passages and hint together."""
    prompt_tokens: int = Field(gt=0)
    """Tokens of the same."""
    query_tokens: int = Field(gt=0)
    summary_tokens: int = Field(gt=0)
    tail_tokens: int = Field(gt=0)
    retrieved_tokens: int = Field(gt=0)
    tail_lines: int = Field(gt=0)
    tail_bytes: int = Field(gt=0)
    """The byte cap of the tail (LLM_GROUNDING_CHAT_TAIL_BYTES): UTF-8 bytes of the block with its head and foot.
    `grounding.prompt.layers.tail_section` enforces it: the oldest lines are dropped. In the layout
    ``prefix_stable`` the cap is lower if `prompt_bytes` is small (`front_limits`)."""
    records_tokens: int = Field(default=1000, gt=0)
    """What recalled turns may take of the block ``records``. Records have the budgets of their types beside it."""
    frame_tokens: int = Field(default=500, gt=0)
    censors_tokens: int = Field(default=300, gt=0)
    global_context_tokens: int = Field(default=800, gt=0)
    hint_tokens: int = Field(default=40, gt=0)
    codex_tokens: int = Field(default=0, ge=0)
    """What material given whole may take of the window, outside all other limits."""
    environment_tokens: int = Field(default=120, gt=0)
    karma_floor_tokens: int = Field(default=300, gt=0)
    karma_tokens: int = Field(default=300, gt=0)
    now_tokens: int = Field(default=120, gt=0)
    prompt_characters: int = Field(default=96_000, gt=0)
    """Characters of system and user message together; material given whole counts only if `bounds_material`."""
    bounds_material: bool = True
    """Whether `prompt_characters` limits material, too: True if somebody has set PROMPT_MAX_CHARACTERS."""
    history_turns: int = Field(default=20, gt=0)
    """Turns in the tail."""
    policy_tokens: int = Field(gt=0)
    context_tokens: int = Field(gt=0)
    """Tokens of the user message."""
    window_tokens: int = Field(gt=0)
    output_tokens: int = Field(gt=0)
    tools_tokens: int = Field(default=0, ge=0)
    """Tokens of the descriptions of the tools that are offered."""

    @classmethod
    def from_settings(cls, settings: Settings, window_tokens: int, tools_tokens: int = 0) -> PromptLimits:
        """Return the budgets of *settings* for a model with a window of *window_tokens*."""
        return cls(
            top_k=settings.llm_grounding_top_k,
            excerpt_bytes=settings.llm_grounding_max_doc_excerpt_bytes,
            prompt_bytes=settings.llm_grounding_max_prompt_bytes,
            prompt_tokens=settings.llm_grounding_max_prompt_tokens,
            query_tokens=settings.llm_grounding_user_max_tokens,
            summary_tokens=settings.llm_grounding_memory_summary_max_tokens,
            tail_tokens=settings.llm_grounding_chat_tail_max_tokens,
            retrieved_tokens=settings.llm_grounding_qmd_max_tokens,
            tail_lines=settings.llm_grounding_chat_tail_lines,
            tail_bytes=settings.llm_grounding_chat_tail_bytes,
            global_context_tokens=settings.global_context_max_tokens,
            codex_tokens=int(settings.codex_window_ratio * window_tokens),
            prompt_characters=settings.prompt_max_characters,
            bounds_material="prompt_max_characters" in settings.model_fields_set,
            history_turns=settings.history_max_turns,
            policy_tokens=settings.policy_max_tokens,
            context_tokens=settings.context_max_tokens,
            window_tokens=window_tokens,
            output_tokens=settings.llm_max_output_tokens,
            tools_tokens=tools_tokens,
        )


def window_room(budgets: PromptLimits) -> int:
    """Return the tokens, as we count them, that the window has for messages."""
    return int((budgets.window_tokens - budgets.output_tokens) / WINDOW_SAFETY) - budgets.tools_tokens


def window_load(blocks: Iterable[Block]) -> int:
    """Return what *blocks* take of `window_room`."""
    return sum([block.load for block in blocks])


def unlimited_characters(budgets: PromptLimits, blocks: Iterable[Block]) -> int:
    """Return the characters of *blocks* that `prompt_characters` does not limit: those of material, unless somebody has
    set the limit."""
    return 0 if budgets.bounds_material else sum([len(block.text) for block in blocks if block.name == "codex"])


def message_reserve(budgets: PromptLimits, fixed: Sequence[Block], verbatim_tokens: int = 0) -> int:
    """Return the tokens that the further blocks of the system message must leave free, for verbatim records and for the
    message.

    The message gets its whole budget, in a small window half of the room beside the *fixed* blocks. The size does not
    depend on the message, so that the text before it stays the same from turn to turn.
    """
    left = window_room(budgets) - window_load(fixed) - verbatim_tokens
    return verbatim_tokens + max(MIN_USER_TOKENS, min(budgets.query_tokens, left // 2))


class FrontLimits(NamedTuple):
    """Limits of the text in front of the message, summary and tail together, and the part that the tail may use."""

    tokens: int
    bytes: int
    tail_tokens: int
    tail_bytes: int


def front_limits(budgets: PromptLimits, system_tokens: int) -> FrontLimits:
    """Return the limits in front of a message, beside a system message that takes *system_tokens* of the window.

    The message gets its whole budget of tokens, but never more than half of the room, and half of the bytes. The tail
    gets its own budget, in a small window two thirds of the front, so that it does not push the summary out. The
    limits depend neither on the message nor on the present length of the tail: the text in front stays the same.
    """
    room = max(0, min(budgets.context_tokens, budgets.prompt_tokens, window_room(budgets) - system_tokens))
    tokens = room - min(budgets.query_tokens + JOINT_TOKENS, room // 2)
    size = budgets.prompt_bytes // 2
    return FrontLimits(
        tokens,
        size,
        min(budgets.tail_tokens, max(0, tokens - tokens // 3 - JOINT_TOKENS)),
        min(budgets.tail_bytes, max(0, size - size // 3 - JOINT_TOKENS)),
    )


class ContextTooLarge(AgentRuntimeError):
    """What always has to be said and the message do not fit together. Nothing was sent.

    *block* is the largest of the parts: *size* of *limit*, both counted in *measure*. *needed* is the size of all parts
    together, *room* the room for them.
    """

    def __init__(
        self, block: str, size: int, limit: int, measure: Measure = "tokens", *, needed: int = 0, room: int = 0
    ) -> None:
        whose = "a window of" if measure == "tokens" else "PROMPT_MAX_CHARACTERS,"
        super().__init__(
            f"block {block!r} takes {size} {measure} of {whose} {limit}"
            + (f" ({needed} are needed at least, and there is room for {room})" if needed else "")
            + ": shorten it, or use a model with more room"
        )
        self.block, self.tokens, self.window, self.measure = block, size, limit, measure
        figures = f"{block}: {size} of {limit} {measure}"
        self.user_text = {
            "query": f"Your message is too long for the model ({figures}). Please send a shorter one.",
            "records": (
                f"What is kept word for word here is too long for the model ({figures}). Some of it has to go: "
                "`/memory` lists it, `/memory retire ID` ends one; what is the workspace's an admin has to end."
            ),
        }.get(block, f"My instructions are too long for the model ({figures}). An admin has to shorten them.")


def require_room(budgets: PromptLimits, system: Sequence[Block], floor: Sequence[Block], floor_tokens: int) -> None:
    """Raise `ContextTooLarge` if the prompt has no room for what it must show.

    That is the *system* message and the *floor* of the user message, which takes *floor_tokens*. The error names the
    largest block of those that yield to nothing.
    """
    system_tokens = window_load(system)
    room = window_room(budgets) - system_tokens
    unyielding = (*[block for block in system if block.place in FIXED], *floor)
    if room < max(MIN_USER_TOKENS, floor_tokens):
        largest = max(unyielding, key=lambda block: block.tokens)
        needed = system_tokens + max(MIN_USER_TOKENS, floor_tokens)
        most = max(window_room(budgets), 0)
        raise ContextTooLarge(largest.name, largest.tokens, budgets.window_tokens, needed=needed, room=most)
    if floor_tokens > budgets.context_tokens:
        largest = max(floor, key=lambda block: block.tokens)
        most = budgets.context_tokens
        raise ContextTooLarge(largest.name, largest.tokens, budgets.window_tokens, needed=floor_tokens, room=most)
    needed = sum([len(SEPARATOR.join([block.text for block in part if block.text])) for part in (system, floor)])
    needed -= unlimited_characters(budgets, system)
    if needed > budgets.prompt_characters:
        counted = [block for block in unyielding if budgets.bounds_material or block.name != "codex"]
        largest = max(counted, key=lambda block: len(block.text))
        most = budgets.prompt_characters
        raise ContextTooLarge(largest.name, len(largest.text), most, "characters", needed=needed, room=most)
