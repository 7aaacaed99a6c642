"""What a mark says of records: those that the reply used, and the censors that acted in it.

A good reply confirms the facts that it used, and counts as a success of the procedures that it followed; a bad one
counts as a failure of these, and says of censors that acted that they should not have. A decision that waits for its
outcome, and that the reply used, is reviewed by what most people say of the reply; one that waits for none is not, nor
one that somebody reviewed by hand. Of other records a mark says nothing: that a reply was liked does not tell that a
task is done, and that it was not tells not which of its facts is wrong. What a person takes back, or says otherwise, is
taken off again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from connectors.message import AgentRuntimeError, Scope
from grounding.memory.karma.marks import Sign
from grounding.memory.records.port import KeepsRecords
from grounding.memory.records.record import NoSuchRecord, Outcome, Provenance, RecordRefused, State, Type
from grounding.memory.records.store import Change
from runtime.turns import RecordsOfTurn

Fields = Mapping[str, Any]
_SAYS: Mapping[tuple[Type, Sign], tuple[Fields, Fields]] = {
    (Type.FACT, "good"): ({"confirm": True}, {"take_back": "confirm"}),
    (Type.PROCEDURE, "good"): ({"outcome": "success"}, {"take_back": "success"}),
    (Type.PROCEDURE, "bad"): ({"outcome": "failure"}, {"take_back": "failure"}),
    (Type.CENSOR, "bad"): ({"false_positive": True}, {"take_back": "false_positive"}),
}
"""What a mark changes in a record of that type, and what undoes it."""
_OUTCOMES: Mapping[Sign, Outcome] = {"good": "success", "bad": "failure"}
_log = structlog.get_logger()


class RemembersChanges(KeepsRecords, Protocol):
    """Records, and what became of each."""

    async def history(self, scope: Scope, record_id: str) -> Sequence[Change]:
        """The newest changes of a record, the newest first. Raises `NoSuchRecord`."""


class MarkEffects:
    """Lets records have it. *records* is what keeps them."""

    def __init__(self, records: RemembersChanges) -> None:
        self._records = records

    async def become(
        self, scope: Scope, of: RecordsOfTurn, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        """Somebody's mark of a turn became *now*; *scope* is that of those whose records the turn was shown, *key*
        names the change. Where the store is away that is lost, and told; never raises."""
        if was == now:
            return
        for record_id in (*of.used, *of.acted):
            await _attempted(record_id, partial(self._one, scope, record_id, by, was, now, f"{key}:{record_id}"))

    async def review(
        self, scope: Scope, of: RecordsOfTurn, by: Provenance, was: Sign | None, now: Sign | None, key: str
    ) -> None:
        """What most people say of a turn became *now*. As `become`."""
        if was == now:
            return
        for record_id in of.used:
            await _attempted(record_id, partial(self._reviewed, scope, record_id, by, now, f"{key}:{record_id}"))

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

    async def _reviewed(self, scope: Scope, record_id: str, by: Provenance, now: Sign | None, key: str) -> None:
        record = await self._records.get(scope, record_id)
        if record.type is not Type.DECISION:
            return
        if record.state is State.REVIEWED:
            changes = await self._records.history(scope, record_id)
            review = next((one for one in changes if one.to_state == State.REVIEWED), None)
            if review is None or review.turn_id != by.turn_id:
                return  # somebody said by hand, or of another reply, what came of it
            await self._records.change(scope, record_id, {"take_back": record.outcome}, by, f"{key}:undo")
        elif record.state is not State.PENDING:
            return
        if now is not None:
            await self._records.change(scope, record_id, {"outcome": _OUTCOMES[now]}, by, f"{key}:do")


async def _attempted(record_id: str, step: Callable[[], Awaitable[None]]) -> None:
    """*step*, which is lost, and told, where it fails."""
    try:
        await step()
    except NoSuchRecord:
        return
    except RecordRefused as error:  # it is superseded by now, or retired: nothing can come of it
        _log.info("records.unmarked", record_id=record_id, why=str(error))
    except (AgentRuntimeError, TimeoutError) as error:
        _log.warning("records.uncounted", why=str(error) or "timeout", records=1)
