"""What a mark says of records: those that the reply used, and the censors that acted in it.

A good reply confirms the facts that it used, and counts as a success of the procedures that it followed; a bad one
counts as a failure of these, and says of censors that acted that they should not have. Of other records it says
nothing: that a reply was liked tells neither how a decision turned out nor that a task is done, and that it was not
tells not which of its facts is wrong. What a person takes back, or says otherwise, is taken off again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from connectors.message import AgentRuntimeError, Scope
from grounding.memory.karma.marks import Sign
from grounding.memory.records.port import KeepsRecords
from grounding.memory.records.record import NoSuchRecord, Provenance, RecordRefused, Type
from runtime.manifests import RecordsOfTurn

Change = Mapping[str, Any]
_SAYS: Mapping[tuple[Type, Sign], tuple[Change, Change]] = {
    (Type.FACT, "good"): ({"confirm": True}, {"take_back": "confirm"}),
    (Type.PROCEDURE, "good"): ({"outcome": "success"}, {"take_back": "success"}),
    (Type.PROCEDURE, "bad"): ({"outcome": "failure"}, {"take_back": "failure"}),
    (Type.CENSOR, "bad"): ({"false_positive": True}, {"take_back": "false_positive"}),
}
"""What a mark changes in a record of that type, and what undoes it."""
_log = structlog.get_logger()


class MarkEffects:
    """Lets records have it. *records* is what keeps them."""

    def __init__(self, records: KeepsRecords) -> None:
        self._records = records

    async def become(
        self, scope: Scope, of: RecordsOfTurn, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        """Somebody's mark of a turn became *now*; *scope* is that of those whose records the turn was shown, *key*
        names the change. Where the store is away that is lost, and told; never raises."""
        for record_id in (*of.used, *of.acted):
            try:
                await self._one(scope, record_id, by, was, now, f"{key}:{record_id}")
            except NoSuchRecord:
                continue
            except RecordRefused as error:  # it is superseded by now, or retired: nothing can come of it
                _log.info("records.unmarked", record_id=record_id, why=str(error))
            except (AgentRuntimeError, TimeoutError) as error:
                _log.warning("records.uncounted", why=str(error) or "timeout", records=1)

    async def _one(
        self, scope: Scope, record_id: str, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        record = await self._records.get(scope, record_id)
        undone = _SAYS.get((record.type, was)) if was else None
        done = _SAYS.get((record.type, now)) if now else None
        if undone is not None:
            await self._records.change(scope, record_id, undone[1], by, f"{key}:undo")
        if done is not None:
            await self._records.change(scope, record_id, done[0], by, f"{key}:do")
