"""Records of what was said: how they are found, and what becomes of them."""

from __future__ import annotations

from pydantic import BaseModel

from config.settings.types import Positive, PositiveDays


class MemorySettings(BaseModel):
    """Records of what was said."""

    records_extraction: bool = True
    """What people state in conversations is looked through for facts and decisions worth keeping. Off: records are made
    by tools and by people alone."""
    records_extraction_turns: Positive = 6
    """Turns between two looks of the model at a conversation for records. Without a model of its own the runtime looks
    for plain statements after every turn."""
    censor_block_activations: Positive = 3
    """A censor blocks once it has acted so often, and rightly."""
    censor_retired_false_positives: Positive = 3
    """A censor is retired once so many people said that it acted wrongly."""
    fact_core_confirmations: Positive = 3
    """A fact becomes core once it was said again so often."""
    procedure_judged_activations: Positive = 5
    """A procedure is called effective (over .6 of its outcomes a success) or ineffective (below .4) once it was
    followed so often."""
    episode_summarized_days: PositiveDays = 30
    """After so long an episode counts as summarized."""
    episode_archived_days: PositiveDays = 90
    """After so long only the summary of an episode is kept, unless it is verbatim."""
