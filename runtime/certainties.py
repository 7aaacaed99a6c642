"""What one process knows for certain of parts that stand as being sent, because the store was away when it was to be
told: whether a platform has got them is known here alone."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from runtime.parts import PartState, Stage

_UNDER_WAY = (Stage.SENDING, Stage.DRAFTING)


class Certainties:
    """What process *name* is certain of, by turn and part."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._surely: dict[tuple[str, int], PartState] = {}
        """What has become of a part: certainly not sent, where the store may have taken the mark all the same, or
        sent."""
        self._begun: dict[str, set[str]] = {}
        """By turn: attempts to begin with its first part of which nobody has said whether the store took them."""
        self._attempts = itertools.count()

    def begins(self, turn_id: str) -> str:
        """The name of an attempt to begin with the first part of a turn, of which nothing is sent before it is known
        whether the store took it."""
        attempt = f"{self._name}:{next(self._attempts)}"
        self._begun.setdefault(turn_id, set()).add(attempt)
        return attempt

    def begun(self, turn_id: str) -> Collection[str]:
        """The attempts of `begins` until now, once the store has said what it holds: they are asked for no more."""
        return self._begun.pop(turn_id, set())

    @contextmanager
    def telling(self, turn_id: str, parts: Mapping[int, PartState]) -> Iterator[None]:
        """While the store is told of *parts*, and after that did not succeed, what is certain of them is known here."""
        for index, state in parts.items():
            if state.stage in (*_UNDER_WAY, Stage.UNSENT):
                self._surely[turn_id, index] = PartState(Stage.UNSENT)
            elif state.stage in (Stage.SENT, Stage.SHOWN):
                self._surely[turn_id, index] = state
        yield
        for index in parts:
            self._surely.pop((turn_id, index), None)

    def of(self, turn_id: str, states: Mapping[int, PartState], *, begun: bool) -> dict[int, PartState]:
        """What is certain of those of *states* that stand as being sent. *begun* says that the first of them was marked
        by an attempt of this process of which it had not heard."""
        surely = {index: self._surely[turn_id, index] for index in states if (turn_id, index) in self._surely}
        if begun:
            surely.setdefault(0, PartState(Stage.UNSENT))
        return {index: state for index, state in surely.items() if states[index].stage in _UNDER_WAY}

    def shown(self, turn_id: str) -> list[tuple[int, PartState]]:
        """The parts of a turn that people see, where nobody has said yet whether the store took that."""
        return [(one[1], self._surely[one]) for one in self._of(turn_id) if self._surely[one].stage is Stage.SHOWN]

    def held_elsewhere(self, turn_id: str) -> None:
        """Another process has held the turn: that this one sent nothing of it says no more what people see."""
        for one in self._of(turn_id):
            if self._surely[one].stage is Stage.UNSENT:
                del self._surely[one]

    def over(self, turn_id: str) -> None:
        """Nothing of the turn is left to do."""
        for one in self._of(turn_id):
            del self._surely[one]

    def _of(self, turn_id: str) -> list[tuple[str, int]]:
        return [one for one in self._surely if one[0] == turn_id]
