"""Whether what a search finds may be out of date: cheap enough to be asked in every turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from connectors.message import Scope, StoreUnavailable
from grounding.documents.backlog import Backlog
from grounding.run_context import DegradedBlock
from runtime.leadership import KEY as LEADER

if TYPE_CHECKING:
    from redis.asyncio import Redis

STALE = "index_stale"
"""Documents changed, and the index does not have them yet."""
REBUILDING = "index_rebuilding"
"""The index of this embedding model is being filled, and has less than half of the documents; or a former model's
answers until then, and could not be told of a change, or be asked by more than words."""
LOOK_SECONDS = 1.0
"""How long what was seen of a workspace is not asked for again."""
LEADERLESS_SECONDS = 20.0
"""How long nobody may follow the files before that counts: a lease passes on within 15."""
APART = (
    "another process with the same Redis follows the documents, for an index of its own, and nobody for the one that "
    "is embedded here"
)
_REMEMBERED = 1000
log = structlog.get_logger()


class Doubts:
    """Of the workspaces in which something is searched."""

    def __init__(
        self,
        redis: Redis,
        backlog: Backlog,
        stale_seconds: float,
        *,
        is_shared: bool,
        own: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        """*own* is the name of this process where its index is no other one's: whoever follows the files fills its own
        alone."""
        self._redis = redis
        self._backlog = backlog
        self._stale_seconds = stale_seconds
        self._is_shared = is_shared
        self._own = own
        self._now = now
        self._since: dict[str, float] = {}
        """Since when the oldest change of a workspace waits, in seconds since the epoch; 0 if none does."""
        self._looked: dict[str, float] = {}
        self._leaderless_since: float | None = None
        self._apart_since: float | None = None
        self._is_told = False

    async def look(self, scope: Scope) -> None:
        """See how the workspace is, if that was not seen just now. Never raises: without Redis there is no turn."""
        now, workspace_id = self._now(), scope.workspace_id
        if now - self._looked.get(workspace_id, 0.0) < LOOK_SECONDS:
            return
        if len(self._looked) >= _REMEMBERED:
            self._looked.clear()
            self._since.clear()
        self._looked[workspace_id] = now
        try:
            (waiting,) = await self._backlog.waiting([scope])
            has_leader = not self._is_shared or await self.look_for_leader()
        except StoreUnavailable:
            return
        self._since[workspace_id] = waiting.since
        if has_leader:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = now

    async def look_for_leader(self) -> bool:
        """Whether a process follows the files; `is_apart` is known from then on. Raises `StoreUnavailable`."""
        leader = await self._redis.get(LEADER)
        if not (self._own and leader) or leader == self._own:
            self._apart_since = None
        elif self._apart_since is None:
            self._apart_since = self._now()
        if self.is_apart and not self._is_told:
            log.warning("store.degraded", store="qdrant", why=APART)
        self._is_told = self.is_apart
        return bool(leader)

    @property
    def is_apart(self) -> bool:
        """Whether another process follows the files, and fills another index than this one's: for so long that it is
        not one that ended and whose lease runs out."""
        return self._apart_since is not None and self._now() - self._apart_since > LEADERLESS_SECONDS

    async def why_apart(self) -> str:
        """What is wrong where it `is_apart`; empty where it is not. Never raises."""
        if self._own:
            with suppress(StoreUnavailable):  # which is told of Redis
                await self.look_for_leader()
        return APART if self.is_apart else ""

    def doubt(self, scope: Scope) -> str:
        """`STALE`, or empty where nothing is known against what was found."""
        now, since = self._now(), self._since.get(scope.workspace_id, 0.0)
        return STALE if self.is_unfollowed or (since and now - since > self._stale_seconds) else ""

    @property
    def is_unfollowed(self) -> bool:
        """Whether nobody followed the files for too long, or for another index alone."""
        if self._leaderless_since is not None and self._now() - self._leaderless_since > LEADERLESS_SECONDS:
            return True
        return self.is_apart


def with_doubt(noted: Sequence[DegradedBlock], doubt: str) -> list[DegradedBlock]:
    """*noted* and *doubt*, if that says more."""
    said = any(one.block == "retrieved" for one in noted)
    return [*noted, *([DegradedBlock(block="retrieved", why=doubt)] if doubt and not said else [])]
