"""What the model is told: the controls of grounding, the strategy, records that are shown, the whole prompt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from config.settings.types import Natural, Positive, PositiveSeconds, Weight


class GroundingSettings(BaseModel):
    """What the model is told."""

    # The thirteen controls of grounding: ceilings, never raised silently.
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
    """Size of the tail."""
    llm_grounding_memory_summary_refresh_turns: Positive = 6
    """Turns between refreshes of the summary."""
    llm_grounding_memory_summary_max_items: Positive = 7
    """Items under one heading of the summary."""
    llm_grounding_memory_summary_source_max_lines: Positive = 120
    """Newest log entries that a refresh reads."""

    # The strategy.
    strategy_vocabulary: bool = True
    """A message without cues is looked up in the workspace's documents and in what was said in its conversation; what
    they surely speak of is retrieved. Off: cues alone decide."""
    strategy_vocabulary_timeout_seconds: PositiveSeconds = 0.5
    """What that look may take at most; then the cues' decision stands."""

    # Records that are shown.
    record_weight_similarity: Weight = 0.50
    """What a record's likeness to the message counts in its score; only those above the relevance floor have one."""
    record_weight_type: Weight = 0.15
    """What its type's priority in the frame counts."""
    record_weight_recency: Weight = 0.15
    """What it counts to be new; half of it after 30 days."""
    record_weight_outcome: Weight = 0.10
    """What its outcome counts (success, partial, failure, pending)."""
    record_weight_usage: Weight = 0.05
    """What it counts to have been followed often."""
    record_weight_confidence: Weight = 0.05
    """What its confidence counts."""
    record_relevance_floor: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Log-odds that a record must reach to be shown; unset: as calibrated for the embedding model."""
    records_decisions_max_tokens: Natural = 2000
    """Tokens of decisions in the block of records; frame and message scale it, and what is left over flows."""
    records_facts_max_tokens: Natural = 1500
    """The same for facts."""
    records_procedures_max_tokens: Natural = 1500
    """The same for procedures."""
    records_episodes_max_tokens: Natural = 1000
    """The same for episodes."""
    records_items_max_tokens: Natural = 500
    """The same for items."""

    # The whole prompt.
    llm_grounding_layout: Literal["user_first", "prefix_stable"] = "prefix_stable"
    """user_first (message, summary, tail, passages, hint) or prefix_stable (what changes least first, the message
    last)."""
    context_max_tokens: Positive = 8000
    """Tokens of all blocks of the user message, whatever their own budgets."""
    policy_max_tokens: Positive = 3000
    """Tokens of the identity; more is an error when publishing."""
    frame_max_tokens: Positive = 500
    """Tokens of the current approach and its questions."""
    censors_max_tokens: Positive = 300
    """Tokens of the censors in force, as they are told to the model; those beyond act all the same."""
    global_context_max_tokens: Positive = 800
    """Tokens of the global context as it stands in a prompt; a line beyond is refused when it is written."""
    environment_max_tokens: Positive = 120
    """Tokens of what the model is told about the machine and its permissions."""
    karma_floor_max_tokens: Positive = 300
    """Tokens of the standing examples of what people marked as good."""
    karma_max_tokens: Positive = 300
    """Tokens of the examples that are chosen for a message."""
    now_max_tokens: Positive = 120
    """Tokens of today's date and of what changed since the session began."""
    global_context_approval: Literal["untrusted", "always", "never"] = "untrusted"
    """Which lines that the model writes wait until a person approves them: those written in a turn that was shown
    retrieved text, files or, in a group, what others said (untrusted), always, or never."""
    environment_sample_seconds: PositiveSeconds = 10.0
    """How often the machine is looked at: graphics memory, power, what is reached. A driver that takes longer counts as
    one that does not answer."""
    low_power: Literal["auto", "on", "off"] = "auto"
    """Whether the model is told that power is saved. auto: where the machine's profile says so, or a battery runs out.
    """
    codex_window_ratio: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Part of the model's window up to which material (`codex`) is given whole; above it is searched."""
    prompt_max_characters: Positive = 96_000
    """Characters of system and user message together. Where it is set, material (`codex`) is included; unset, the
    default holds for everything beside material, which CODEX_WINDOW_RATIO bounds. What has to be said and does not fit
    is refused, and named."""
    history_max_turns: Positive = 20
    """Turns of the conversation that a prompt may show, each a whole pair of request and reply."""
    session_idle_seconds: Positive = 1800
    """A pause after which a conversation's next message begins a new session: the global context is renumbered, and
    what prompts showed of it, and of the context document, is taken anew."""
