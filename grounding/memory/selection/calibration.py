"""Measure how well people predicted the outcomes of their decisions. Pure.

Accuracy is the mean outcome (success 1, partial ½, failure 0) of the reviewed decisions. The Brier score is the mean
squared distance between confidence and outcome (Brier, "Verification of forecasts expressed in terms of probability",
1950): 0 is perfect, a constant ½ gets .25.
"""

from __future__ import annotations

from collections.abc import Iterable

from grounding.memory.records import Record, State
from grounding.prompt_input import Calibration

LEAST_REVIEWED = 10
"""With fewer reviews, chance outweighs skill."""
MOST_REVIEWED = 200
"""Only the newest count, because people learn."""
VALUES = {"success": 1.0, "partial": 0.5, "failure": 0.0}


def calibrated(decisions: Iterable[Record]) -> Calibration | None:
    """Return the calibration of the reviewed *decisions*; None if they are fewer than `LEAST_REVIEWED`."""
    pairs = [
        (one.confidence, VALUES[one.outcome])
        for one in decisions
        if one.state is State.REVIEWED and one.outcome in VALUES
    ]
    if len(pairs) < LEAST_REVIEWED:
        return None
    return Calibration(
        reviewed=len(pairs),
        accuracy=round(sum(value for _, value in pairs) / len(pairs), 4),
        brier=round(sum((sure - value) ** 2 for sure, value in pairs) / len(pairs), 4),
        confidence=round(sum(sure for sure, _ in pairs) / len(pairs), 4),
    )
