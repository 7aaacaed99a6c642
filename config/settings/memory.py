"""Settings about records: how the runtime extracts them from conversations, and when it retires them."""

from __future__ import annotations

from pydantic import BaseModel

from config.settings.types import Positive, PositiveDays


class MemorySettings(BaseModel):
    """Settings about records extracted from conversations."""

    records_extraction: bool = True
    """Look in conversations for facts and decisions worth keeping. Off: only tools and people make records."""
    records_extraction_turns: Positive = 6
    """Turns between two looks of the model for records. Without a language model, plain statements are looked for
    after every turn."""
    censor_block_activations: Positive = 3
    """A censor blocks after it has acted rightly this often."""
    censor_retired_false_positives: Positive = 3
    """A censor is retired after this many people said that it acted wrongly."""
    fact_core_confirmations: Positive = 3
    """A fact becomes core after it was confirmed this often."""
    procedure_judged_activations: Positive = 5
    """A procedure is called effective (more than .6 of its outcomes a success) or ineffective (less than .4) after it
    was followed this often."""
    episode_summarized_days: PositiveDays = 30
    """Days after which an episode counts as summarized."""
    episode_archived_days: PositiveDays = 90
    """Days after which only the summary of an episode is kept, unless it is verbatim."""
