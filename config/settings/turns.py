"""Settings about how messages become turns and how failed turns are retried."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from config.settings.types import Natural, Positive, PositiveSeconds


class TurnSettings(BaseModel):
    """Settings about turns, their retries and their delivery."""

    queue_mode: Literal["collect", "interrupt", "followup"] = "collect"
    """What happens to messages that arrive while an answer is made: collect (answered together afterwards), interrupt
    (the answer begins again and includes them) or followup (one turn each). /queue changes it in one place."""
    show_sources: bool = True
    """Whether replies on chat platforms end with the sources they used. /sources changes it in one place."""
    turn_collect_milliseconds: Natural = 0
    """How long to wait for the rest of a message that looks unfinished. 0: 1500. Other messages never wait."""
    turn_max_attempts: Positive = 3
    """How often one turn may fail before it is given up: an apology, and a dead letter. A crash of the process is no
    failure of the turn."""
    turn_max_crashes: Positive = 10
    """How many crashes of its process one turn may go through before it is given up, too: it may be what causes them.
    From the third on, it waits before it is tried again, longer each time."""
    turn_lease_seconds: Positive = 15
    """If a worker gives no sign for this long, another one continues its conversation."""
    delivery_ambiguous: Literal["skip", "resend"] = "resend"
    """A part of a reply of which nobody can find out whether it arrived: skip or resend."""
    shutdown_grace_seconds: PositiveSeconds = 20.0
    """How long running turns may take when the process stops."""
