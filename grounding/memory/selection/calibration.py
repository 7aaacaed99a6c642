"""How well people knew what would come of their decisions.

Accuracy is the mean outcome (success 1, partial ½, failure 0) of the decisions that were reviewed, the Brier score the
mean squared distance between confidence and outcome (Brier, "Verification of forecasts expressed in terms of
probability", 1950): 0 is perfect, .25 is what a constant ½ gets. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from grounding.memory.records.record import Record, State
from grounding.run_context import Calibration

LEAST_REVIEWED = 10
"""Below this chance says more than skill."""
MOST_REVIEWED = 200
"""The newest that count: people learn."""
VALUES = {"success": 1.0, "partial": 0.5, "failure": 0.0}


def calibrated(decisions: Iterable[Record]) -> Calibration | None:
    """What the reviewed ones of *decisions* say; None where they are fewer than `LEAST_REVIEWED`."""
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
