"""What each part of a prompt may take: ceilings, never raised silently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from config.settings import Settings
from connectors.message import AgentRuntimeError
from grounding.prompt_input.blocks import SEPARATOR, Block


class Strict(BaseModel):
    """A part of a turn's input: nothing is coerced, added or changed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Budgets(Strict):
    """Ceilings in tokens, bytes and lines; see the settings of the same names."""

    top_k: int = Field(gt=0)
    excerpt_bytes: int = Field(gt=0)
    prompt_bytes: int = Field(gt=0)
    prompt_tokens: int = Field(gt=0)
    query_tokens: int = Field(gt=0)
    summary_tokens: int = Field(gt=0)
    tail_tokens: int = Field(gt=0)
    retrieved_tokens: int = Field(gt=0)
    tail_lines: int = Field(gt=0)
    tail_bytes: int = Field(gt=0)
    records_tokens: int = Field(default=1000, gt=0)
    """Of the block ``records``, what recalled turns may take; records have what their types share out."""
    frame_tokens: int = Field(default=500, gt=0)
    censors_tokens: int = Field(default=300, gt=0)
    global_context_tokens: int = Field(default=800, gt=0)
    hint_tokens: int = Field(default=40, gt=0)
    codex_tokens: int = Field(default=0, ge=0)
    """What material given whole may take of the window; its own, outside all others."""
    environment_tokens: int = Field(default=120, gt=0)
    karma_floor_tokens: int = Field(default=300, gt=0)
    karma_tokens: int = Field(default=300, gt=0)
    now_tokens: int = Field(default=120, gt=0)
    prompt_characters: int = Field(default=96_000, gt=0)
    """Of system and user message together; without material that is given whole, unless they bound that, too."""
    bounds_material: bool = True
    """Whether `prompt_characters` are also of material: where somebody has set them."""
    history_turns: int = Field(default=20, gt=0)
    policy_tokens: int = Field(gt=0)
    context_tokens: int = Field(gt=0)
    window_tokens: int = Field(gt=0)
    output_tokens: int = Field(gt=0)
    tools_tokens: int = Field(default=0, ge=0)
    """What the descriptions of the tools take that are offered."""

    @classmethod
    def from_settings(cls, settings: Settings, window_tokens: int, tools_tokens: int = 0) -> Budgets:
        """The budgets of *settings* for a model with a window of *window_tokens*, of which tools take some."""
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
            frame_tokens=settings.frame_max_tokens,
            censors_tokens=settings.censors_max_tokens,
            global_context_tokens=settings.global_context_max_tokens,
            codex_tokens=int(settings.codex_window_ratio * window_tokens),
            environment_tokens=settings.environment_max_tokens,
            karma_floor_tokens=settings.karma_floor_max_tokens,
            karma_tokens=settings.karma_max_tokens,
            now_tokens=settings.now_max_tokens,
            prompt_characters=settings.prompt_max_characters,
            bounds_material="prompt_max_characters" in settings.model_fields_set,
            history_turns=settings.history_max_turns,
            policy_tokens=settings.policy_max_tokens,
            context_tokens=settings.context_max_tokens,
            window_tokens=window_tokens,
            output_tokens=settings.llm_max_output_tokens,
            tools_tokens=tools_tokens,
        )


# ---- window ----
#
# How much a prompt may have, and what is said where that is not enough.


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
SmolLM2 1.35 for German: there so much material may be refused by the provider.
"""

MIN_USER_TOKENS = 64
"""Below this no useful question fits, and the turn is refused instead."""

JOINT_TOKENS = 8
"""Of the separators, and what tokens at joints may split into."""

FIXED = ("identity", "codex")
"""The blocks of the system message that are whole or not at all; the others yield to a small window."""

Measure = Literal["tokens", "characters"]


class ContextTooLarge(AgentRuntimeError):
    """What always has to be said and the message do not fit together. Nothing was sent.

    *block* is the largest of it: *size* of *limit*, both counted in *measure*. *needed* is what all of it takes, *room*
    what it may.
    """

    def __init__(
        self, block: str, size: int, limit: int, measure: Measure = "tokens", *, needed: int = 0, room: int = 0
    ) -> None:
        of = "a window of" if measure == "tokens" else "PROMPT_MAX_CHARACTERS,"
        super().__init__(
            f"block {block!r} takes {size} {measure} of {of} {limit}"
            + (f" ({needed} are needed at least, and there is room for {room})" if needed else "")
            + ": shorten it, or use a model with more room"
        )
        self.block, self.tokens, self.window, self.measure = block, size, limit, measure
        told = f"{block}: {size} of {limit} {measure}"
        self.user_text = {
            "query": f"Your message is too long for the model ({told}). Please send a shorter one.",
            "records": (
                f"What is kept word for word here is too long for the model ({told}). Some of it has to go: "
                "`/memory` lists it, `/memory retire ID` ends one; what is the workspace's an admin has to end."
            ),
        }.get(block, f"My instructions are too long for the model ({told}). An admin has to shorten them.")


def window_room(budgets: Budgets) -> int:
    """Tokens, as we count them, that the window has for messages."""
    return int((budgets.window_tokens - budgets.output_tokens) / WINDOW_SAFETY) - budgets.tools_tokens


def taken(blocks: Iterable[Block]) -> int:
    """What *blocks* take of `window_room`."""
    return sum(block.load for block in blocks)


def uncounted(budgets: Budgets, blocks: Iterable[Block]) -> int:
    """Characters of *blocks* that count for nothing: those of material, unless somebody set a limit for all of it."""
    return 0 if budgets.bounds_material else sum(len(block.text) for block in blocks if block.name == "codex")


def message_reserve(budgets: Budgets, fixed: Sequence[Block], kept: int = 0) -> int:
    """Tokens that further blocks of the system message leave to what is *kept* word for word, and to the message: all
    that it may have, in a small window half of what there is beside those that are *fixed*. No message moves it: what
    stands before one must not."""
    left = window_room(budgets) - taken(fixed) - kept
    return kept + max(MIN_USER_TOKENS, min(budgets.query_tokens, left // 2))


def front_room(budgets: Budgets, of_system: int) -> tuple[int, int]:
    """Tokens that may stand in front of a message beside a system message that takes *of_system* of the window, and how
    many of them the tail may grow to: all that it may have, in a small window two thirds, so that what is said does not
    push the summary out.

    The measure is a message that fills its own budget, and never more than half of what there is: no message moves what
    is in front of it, and nothing that grows there what stands before that.
    """
    there = max(0, min(budgets.context_tokens, budgets.prompt_tokens, window_room(budgets) - of_system))
    both = there - min(budgets.query_tokens + JOINT_TOKENS, there // 2)
    return both, min(budgets.tail_tokens, max(0, both - both // 3 - JOINT_TOKENS))


def front_bytes(budgets: Budgets) -> tuple[int, int]:
    """The same in bytes, of which half are a message's."""
    both = budgets.prompt_bytes // 2
    return both, min(budgets.tail_bytes, max(0, both - both // 3 - JOINT_TOKENS))


def require_room(budgets: Budgets, system: Sequence[Block], floor: Sequence[Block], of_message: int) -> None:
    """Raises `ContextTooLarge` where what always has to be said is more than a prompt may have: the blocks of the
    *system* message and the *floor* of the user message, which takes *of_message* tokens. It names the largest block of
    those that yield to nothing.
    """
    of_system = taken(system)
    room = window_room(budgets) - of_system
    both = (*(block for block in system if block.name in FIXED), *floor)
    if room < max(MIN_USER_TOKENS, of_message):
        largest = max(both, key=lambda block: block.tokens)
        needed, most = of_system + max(MIN_USER_TOKENS, of_message), max(window_room(budgets), 0)
        raise ContextTooLarge(largest.name, largest.tokens, budgets.window_tokens, needed=needed, room=most)
    if of_message > budgets.context_tokens:
        largest = max(floor, key=lambda block: block.tokens)
        raise ContextTooLarge(
            largest.name, largest.tokens, budgets.window_tokens, needed=of_message, room=budgets.context_tokens
        )
    needed = sum(len(SEPARATOR.join(block.text for block in part if block.used)) for part in (system, floor))
    needed -= uncounted(budgets, system)
    if needed > budgets.prompt_characters:
        counted = [block for block in both if budgets.bounds_material or block.name != "codex"]
        largest = max(counted, key=lambda block: len(block.text))
        most = budgets.prompt_characters
        raise ContextTooLarge(largest.name, len(largest.text), most, "characters", needed=needed, room=most)
