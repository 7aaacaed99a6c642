"""Settings about prompts: grounding limits, the choice of strategy, shown records, and the size of the whole prompt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from config.settings.types import Natural, Positive, PositiveSeconds, Weight


class GroundingSettings(BaseModel):
    """Settings about what goes into a prompt."""

    # The thirteen grounding limits. The runtime never raises them silently.
    llm_grounding_top_k: Positive = 3
    """Passages in a prompt."""
    llm_grounding_max_doc_excerpt_bytes: Positive = 1200
    """Size of one passage."""
    llm_grounding_max_prompt_bytes: Positive = 8000
    """Size of message, summary, tail and passages together."""
    llm_grounding_max_prompt_tokens: Positive = 2000
    """Tokens of message, summary, tail and passages together."""
    llm_grounding_user_max_tokens: Positive = 650
    """Tokens of the message itself."""
    llm_grounding_memory_summary_max_tokens: Positive = 380
    """Tokens of the summary."""
    llm_grounding_chat_tail_max_tokens: Positive = 300
    """Tokens of the tail."""
    llm_grounding_qmd_max_tokens: Positive = 900
    """Tokens of all passages."""
    llm_grounding_chat_tail_lines: Positive = 24
    """Lines of the tail."""
    llm_grounding_chat_tail_bytes: Positive = 1800
    """Size of the tail in bytes (UTF-8); the oldest lines are dropped."""
    llm_grounding_memory_summary_refresh_turns: Positive = 6
    """Turns between refreshes of the summary."""
    llm_grounding_memory_summary_max_items: Positive = 7
    """Items under one heading of the summary."""
    llm_grounding_memory_summary_source_max_lines: Positive = 120
    """Newest log entries that a refresh reads."""

    # The strategy.
    strategy_vocabulary: bool = True
    """Search the documents and the earlier conversation for every message that is not small talk, and use what is
    relevant. Off: only cues decide."""
    strategy_vocabulary_timeout_seconds: PositiveSeconds = 3.0
    """Time limit of that search. If it takes longer, only cues decide."""

    # Records in prompts.
    record_weight_similarity: Weight = 0.50
    """Weight of a record's likeness to the message in its score."""
    record_weight_type: Weight = 0.15
    """Weight of the type's priority in the frame."""
    record_weight_recency: Weight = 0.15
    """Weight of recency (half-life 30 days)."""
    record_weight_outcome: Weight = 0.10
    """Weight of the outcome (success, partial, failure, pending)."""
    record_weight_usage: Weight = 0.05
    """Weight of how often a record was followed."""
    record_weight_confidence: Weight = 0.05
    """Weight of the confidence."""
    record_relevance_floor: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Log-odds that a record must reach to be shown. Unset: the calibrated value of the embedding model."""
    records_decisions_max_tokens: Natural = 2000
    """Tokens of decisions in the block of records. Frame and message scale it; what is left over goes to other
    types."""
    records_facts_max_tokens: Natural = 1500
    """Likewise for facts."""
    records_procedures_max_tokens: Natural = 1500
    """Likewise for procedures."""
    records_episodes_max_tokens: Natural = 1000
    """Likewise for episodes."""
    records_items_max_tokens: Natural = 500
    """Likewise for items."""

    # The whole prompt.
    llm_grounding_layout: Literal["user_first", "prefix_stable"] = "prefix_stable"
    """Order of the user message: prefix_stable (what changes least first, the message last) or user_first (message,
    summary, tail, passages, hint)."""
    context_max_tokens: Positive = 8000
    """Tokens of all blocks of the user message together."""
    policy_max_tokens: Positive = 3000
    """Tokens of the identity (all directives together). Publishing more is refused."""
    frame_max_tokens: Positive = 500
    """Tokens of the frame and its questions."""
    censors_max_tokens: Positive = 300
    """Tokens of the censors that the model is told; those that do not fit act all the same."""
    global_context_max_tokens: Positive = 800
    """Tokens of the global context. A line that does not fit is refused when it is written."""
    environment_max_tokens: Positive = 120
    """Tokens of what the model is told about the machine and its permissions."""
    karma_floor_max_tokens: Positive = 300
    """Tokens of the examples that stand in every prompt."""
    karma_max_tokens: Positive = 300
    """Tokens of the examples that are chosen for a message."""
    now_max_tokens: Positive = 120
    """Tokens of today's date and of what changed since the session began."""
    global_context_approval: Literal["untrusted", "always", "never"] = "untrusted"
    """Which lines that the model writes wait for a person's approval: untrusted (those written in a turn that was
    shown retrieved text, files or, in a group, other people's words), always, or never."""
    environment_sample_seconds: PositiveSeconds = 10.0
    """How often the machine is looked at: graphics memory, power, connections. A driver that takes longer counts as
    not answering."""
    low_power: Literal["auto", "on", "off"] = "auto"
    """Whether the model is told that power is saved. auto: as the machine's profile says, or if the battery is low."""
    codex_window_ratio: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Share of the model's window up to which material (codex) is given whole. Above it, material is searched."""
    prompt_max_characters: Positive = 96_000
    """Characters of system and user message together. If you set it, material (codex) counts too; unset, it does not.
    A prompt that cannot be cut to this is refused."""
    history_max_turns: Positive = 20
    """Turns of the conversation that a prompt may show, each a whole pair of request and reply."""
    session_idle_seconds: Positive = 1800
    """A pause after which the next message begins a new session: the global context is numbered anew, and the summary
    is read anew."""
