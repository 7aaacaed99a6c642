"""What each part of a prompt may take: ceilings, never raised silently."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from config.settings import Settings


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
