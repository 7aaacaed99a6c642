"""How messages become turns, and what becomes of turns that fail."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from config.settings.types import Natural, Positive, PositiveSeconds


class TurnSettings(BaseModel):
    """How messages become turns."""

    queue_mode: Literal["collect", "interrupt", "followup"] = "collect"
    """What arrives while an answer is made: collect (answered together afterwards), interrupt (the answer begins
    again, with it) or followup (a turn for each message). /queue changes it in a place."""
    turn_collect_milliseconds: Natural = 0
    """How long to wait for the rest of a message that looks unfinished; 0: 1500. Nothing else waits."""
    turn_max_attempts: Positive = 3
    """How often one turn is tried before it is given up: an apology, and a dead letter."""
    turn_lease_seconds: Positive = 15
    """How long a worker that tells nothing keeps its conversation; then another goes on with it."""
    delivery_ambiguous: Literal["skip", "resend"] = "skip"
    """A part of a reply that was sent whole, and of which nobody can find out whether it arrived: skip or resend."""
    delivery_placeholder: Literal["always", "growing"] = "always"
    """Where nobody could find out whether a message arrived (Telegram): whether every reply begins with a few words,
    which an edit makes whole, so that only those are ever in doubt (always), or only one that is shown as it grows
    (growing: one call less for a reply that is there at once)."""
    shutdown_grace_seconds: PositiveSeconds = 20.0
    """How long turns in hand may take when the process stops."""
