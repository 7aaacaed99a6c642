"""Tells whether search results may be out of date, cheaply enough to be asked in every turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from connectors.message import Scope, StoreUnavailable
from grounding.documents import Backlog
from grounding.prompt_input import DegradedBlock
from runtime.coordination import LEADER_KEY

if TYPE_CHECKING:
    from redis.asyncio import Redis

STALE = "index_stale"
"""Documents changed, and the index does not have them yet."""
REBUILDING = "index_rebuilding"
"""The index is being filled and has less than half of the documents, or the former embedding model's index answers."""
CHECK_SECONDS = 1.0
"""How long the state of a workspace is remembered."""
APART = (
    "another process with the same Redis follows the documents, for an index of its own, and nobody for the one that "
    "is embedded here"
)
_REMEMBERED = 1000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Timing:
    """How long `runtime.search.Knowledge` and its parts wait, in seconds."""

    retry: tuple[float, float] = (1.0, 30.0)
    """After a failure; it doubles from the first to the second."""
    sweep: float = 1.0
    """Between looks at other processes' changes and at what failed; longer if there are many workspaces."""
    abandoned: float = 5.0
    """How long a change in the backlog is left to the process that put it there."""
    unwatched: float = 5.0
    """Between looks at all files while the system reports no changes, and after a look that failed."""
    watch_retry: tuple[float, float] = (1.0, 30.0)
    """After a watch failed: a file name that is no UTF-8 ends it once, a limit that is reached again and again."""
    current: float = 1.0
    """How long a process remembers which collection answers a workspace."""
    leaderless: float = 20.0
    """How long no process may lead before results count as stale: a lease passes on within 15 seconds."""


TIMING = Timing()


class Staleness:
    """The age of the oldest change that waits in a workspace, and whether any process follows the files."""

    def __init__(
        self,
        redis: Redis,
        backlog: Backlog,
        *,
        is_shared: bool,
        own: str = "",
        stale_seconds: float = 10.0,
        leaderless_seconds: float = TIMING.leaderless,
        now: Callable[[], float] = time.time,
    ) -> None:
        """*own* is the name of this process if its index is embedded and Redis is shared: only the index of the
        process that leads is filled."""
        self._redis = redis
        self._backlog = backlog
        self._stale_seconds = stale_seconds
        self._leaderless_seconds = leaderless_seconds
        self._is_shared = is_shared
        self._own = own
        self._now = now
        self._waiting_since: dict[str, float] = {}
        """By workspace the time of its oldest waiting change, in seconds since the epoch; 0 if none waits."""
        self._checked: dict[str, float] = {}
        self._leaderless_since: float | None = None
        self._apart_since: float | None = None
        self._is_logged = False

    async def check(self, scope: Scope) -> None:
        """Look at the workspace, at most once in `CHECK_SECONDS`. Never raises."""
        now, workspace_id = self._now(), scope.workspace_id
        if now - self._checked.get(workspace_id, 0.0) < CHECK_SECONDS:
            return
        if len(self._checked) >= _REMEMBERED:
            self._checked.clear()
            self._waiting_since.clear()
        self._checked[workspace_id] = now
        with suppress(StoreUnavailable):
            (waiting,) = await self._backlog.waiting([scope])
            self._waiting_since[workspace_id] = waiting.since
            if self._is_shared:
                await self._check_leader()

    async def _check_leader(self) -> None:
        """Raises `StoreUnavailable`."""
        leader, now = await self._redis.get(LEADER_KEY), self._now()
        if leader:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = now
        if not (self._own and leader) or leader == self._own:
            self._apart_since = None
        elif self._apart_since is None:
            self._apart_since = now
        if self.is_apart and not self._is_logged:
            _log.warning("store.degraded", store="qdrant", why=APART)
        self._is_logged = self.is_apart

    @property
    def is_apart(self) -> bool:
        """Return whether another process follows the files and fills another index than the one of this process."""
        return self._apart_since is not None and self._now() - self._apart_since > self._leaderless_seconds

    async def why_apart(self) -> str:
        """Return `APART` if another process fills another index than this one's, else an empty text. Never raises."""
        if self._own:
            with suppress(StoreUnavailable):  # the health of Redis reports it
                await self._check_leader()
        return APART if self.is_apart else ""

    def reason(self, scope: Scope) -> str:
        """Return `STALE`, or an empty text if nothing speaks against the results."""
        now, since = self._now(), self._waiting_since.get(scope.workspace_id, 0.0)
        is_late = bool(since) and now - since > self._stale_seconds
        is_leaderless = self._leaderless_since is not None and now - self._leaderless_since > self._leaderless_seconds
        return STALE if is_late or is_leaderless or self.is_apart else ""


def with_reason(degraded: Sequence[DegradedBlock], reason: str) -> list[DegradedBlock]:
    """Add *reason* for the block ``retrieved`` to *degraded*, unless that has one for it already."""
    if not reason or any(part.block == "retrieved" for part in degraded):
        return [*degraded]
    return [*degraded, DegradedBlock(block="retrieved", why=reason)]
