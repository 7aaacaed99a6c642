"""Large tenants of the embedded engine, each in a shard of its own.

In the shard that all share a search walks every passage of its tenant twice, for what may be found and for how rare its
words are. In a shard that holds nothing else neither has to be asked for. A tenant is moved when it has become large, a
few passages at a time, and answered from the shared shard until all are there; what is stored or deleted meanwhile is
so in both. Beside a shard that is not whole, or is going, stands a mark: whoever opens the index removes such a one,
and takes away what the shared shard still has of a tenant that was moved. Only one thread at a time may use all this,
as the engine itself. Figures: docs/decisions/0030.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Any
from uuid import UUID

import qdrant_edge as edge

from grounding.documents.edge_alone import Alone
from grounding.documents.edge_damage import is_aside, is_passing, set_own_aside
from grounding.documents.edge_queries import count_of, filter_of, points_of, scroll
from grounding.documents.edge_shard import LEAST_FREE_TO_DELETE_BYTES, deepen, ensure_room, is_there, kept, look_at
from grounding.documents.embedding import Vector
from grounding.documents.index import Kind
from grounding.documents.stored import Match, Where

OWN_PASSAGES = 4096
"""A tenant with so many gets a shard of its own: 19 MB of files for 5,000."""
MOST_OWN = 16
"""Each has its open files, some seventy mappings and a log."""
LEAST_FREE_TO_MOVE_BYTES = 256_000_000
"""No tenant is moved, and what was moved of one is removed again, where the disk has less left."""
MOVED_AT_ONCE = 16
"""The engine and the making of points hold the interpreter's lock for 0.13 ms a passage."""
DELETED_AT_ONCE = 64
"""Which is 12 us a passage."""
LISTED_AT_ONCE = 2000
"""Ids; to find the first of them the engine walks the tenant."""
WORN = 20
"""The engine goes on counting what was replaced or deleted since the shard was opened: from one such passage in so many
on, rarity is measured among those that are there."""
RETRY_SECONDS = (600.0, 24 * 3600.0)
"""What failed is tried again after so long, in the end: to move a tenant anew takes seconds."""
_MARK = ".moving"
_ALONE = (Kind.DOCUMENT, Kind.TURN)
"""Kinds that are never searched together with another tenant's."""


@dataclass(slots=True)
class _Move:
    tenant: str
    target: Alone | None = None
    stored: set[UUID] = field(default_factory=set)
    """What was stored in both meanwhile, and is not copied again: the engine would count it twice."""
    ids: list[Any] = field(default_factory=list)
    """Those that come next."""
    offset: Any = None
    is_listed: bool = False
    """Whether these are the last."""


class Own:
    """The shards of large tenants, in a folder. Every method raises what the engine does, and `OSError`."""

    def __init__(self, folder: Path, make: Callable[[Path], Any], now: Callable[[], float] = time.monotonic) -> None:
        """*make* opens the shard at a path, or makes one there; *now* is in seconds."""
        self._now = now
        self._folder = folder
        self._make = make
        self._shards: dict[str, Alone] = {}
        self._move: _Move | None = None
        self._leaving: list[str] = []
        """Tenants that were moved, of which the shared shard still has something."""
        self._stale: list[int] = []
        """Points of the first of them."""
        self._is_open = False
        self._refused: dict[str, tuple[float, float]] = {}
        """Tenants that could not be moved: when to try again, and how long that was put off."""
        self._stuck_until: float | None = None
        """When to go on taking away, where that failed."""

    def open(self, common: Any) -> None:
        """Open all that are whole, beside the *common* shard; one that is damaged is set aside, so that the others are
        found. Its tenant has nothing then."""
        self._is_open = True
        if not self._folder.is_dir():
            return
        for mark in sorted(self._folder.glob(f"*{_MARK}")):
            self._remove(self._folder / mark.name.removesuffix(_MARK))
        for folder in sorted(one for one in self._folder.iterdir() if one.is_dir()):
            if _mark_of(folder).exists():  # it could not be removed
                continue
            if is_aside(folder):
                continue
            try:
                shard, tenant = self._opened(folder)
            except BaseException as error:  # the engine panics over some, which is no Exception
                if is_passing(error):
                    raise
                self._set_aside(common, folder, error)
                continue
            self._shards[tenant] = Alone(shard)
            if points_of(common, _all_of(tenant), 1):
                self._leaving.append(tenant)

    def _opened(self, folder: Path) -> tuple[Any, str]:
        """The shard in *folder*, and whose it is. Raises what the engine does, and `ValueError` where nothing or
        something else is in it: then it was not left like this."""
        if not is_there(folder):
            raise ValueError("there is no shard")
        shard = self._make(folder)
        some = look_at(shard)
        tenant = some[0].payload["tenant"] if some else ""
        if self._folder_of(tenant) != folder:
            shard.close()
            raise ValueError("it is empty, or another tenant's")
        return shard, tenant

    def _set_aside(self, common: Any, folder: Path, why: BaseException) -> None:
        """Keep the shard in *folder*, damaged as *why* says, from being opened. Nor is found what the *common* shard
        still has of its tenant, which is older: it would be taken for what is stored now."""
        set_own_aside(self._folder.parent, folder, why)
        tenants = {record.payload["tenant"] for record in scroll(common, None, with_payload=["tenant"])}
        for tenant in tenants:
            if self._folder_of(tenant) == folder:
                common.update(edge.UpdateOperation.delete_points_by_filter(_all_of(tenant)))

    def of(self, tenant: str | None) -> Any | None:
        """The shard of *tenant*, if it has one of its own."""
        alone = None if tenant is None else self._shards.get(tenant)
        return None if alone is None else alone.shard

    def size_of(self, tenant: str | None) -> int | None:
        """About how many passages *tenant* has in a shard of its own; None where it has none."""
        alone = None if tenant is None else self._shards.get(tenant)
        return None if alone is None else alone.size

    def has_grown(self, common: Any, tenant: str) -> bool:
        """Whether *tenant* has become so large in the *common* shard that it is to be moved now."""
        return self.may_move(tenant, OWN_PASSAGES) and count_of(common, _all_of(tenant)) >= OWN_PASSAGES

    def is_worn(self, tenant: str) -> bool:
        """Whether the own shard of *tenant* no longer knows well how rare its words are."""
        alone = self._shards.get(tenant)
        return alone is not None and alone.changed > 0 and alone.changed * WORN > alone.size

    def shards(self) -> Iterator[Any]:
        """All that answer for their tenant."""
        return (alone.shard for alone in self._shards.values())

    def upsert(self, common: Any, points: Sequence[tuple[str, Any]]) -> None:
        """Store *points*, each with its tenant."""
        shared = [point for tenant, point in points if tenant not in self._shards]
        if shared:
            common.update(edge.UpdateOperation.upsert_points(shared))
        by_tenant: dict[str, list[Any]] = {}
        for tenant, point in points:
            by_tenant.setdefault(tenant, []).append(point)
        for tenant, some in by_tenant.items():
            if (alone := self._shards.get(tenant)) is not None:
                alone.upsert(some)
            if self._move is not None and self._move.tenant == tenant:
                self._move.stored.update(point.id for point in some)
            self._mirror(tenant, methodcaller("upsert", some))

    def delete(self, common: Any, tenant: str, points: Sequence[UUID]) -> None:
        """Delete *points* of *tenant*."""
        alone = self._shards.get(tenant)
        if alone is not None:
            alone.delete(points)
        if alone is None or tenant in self._leaving:
            common.update(edge.UpdateOperation.delete_points([*points]))
        if alone is not None and not count_of(alone.shard, None):
            self._give_up(common, tenant)
        self._mirror(tenant, methodcaller("delete", points))

    def delete_where(self, common: Any, condition: Where) -> None:
        """Delete what meets *condition*, whose first part is a tenant or a workspace."""
        first, wanted = condition.must[0], filter_of(condition)
        tenants = [str(one) for one in first.values] if first.key == "tenant" else [*self._shards]
        is_whole = len(condition.must) == 1 and first.key == "tenant"
        for tenant in tenants:
            alone = self._shards.get(tenant)
            if alone is None:
                continue
            if not is_whole:
                alone.delete_where(wanted)
            if is_whole or not count_of(alone.shard, None):
                self._give_up(common, tenant)
        if self._move is not None:
            self._mirror(self._move.tenant, methodcaller("delete_where", wanted))
        common.update(edge.UpdateOperation.delete_points_by_filter(wanted))

    def deepen(self, common: Any, tenant: str, vectors: Mapping[str, Vector]) -> int:
        """See `grounding.documents.edge_shard.deepen`."""
        given = deepen(self.of(tenant) or common, vectors)
        self._mirror(tenant, lambda target: deepen(target.shard, vectors))
        return given

    def may_move(self, tenant: str | None, count: int) -> bool:
        """Whether *tenant*, of about *count* passages, is to be moved now."""
        if tenant is None or count < OWN_PASSAGES or self.is_busy or not self._is_open:
            return False
        again, _ = self._refused.get(tenant, (0.0, 0.0))
        is_known = tenant in self._shards or self._now() < again
        return not is_known and len(self._shards) < MOST_OWN and tenant.split("\0")[1] in _ALONE

    @property
    def is_busy(self) -> bool:
        """Whether there is something left for `step`."""
        return self._move is not None or bool(self._leaving)

    def is_due(self) -> bool:
        """Whether `step` failed, and is to be tried again now; said once."""
        is_due = self._stuck_until is not None and self._now() >= self._stuck_until
        if is_due:
            self._stuck_until = None
        return is_due

    def begin(self, tenant: str) -> None:
        """Begin to move *tenant*, if that is still possible."""
        if not self.may_move(tenant, OWN_PASSAGES):
            return
        folder = self._folder_of(tenant)
        self._move = _Move(tenant)
        try:
            ensure_room(self._folder, LEAST_FREE_TO_MOVE_BYTES)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._make_way(folder)
            self._mark(folder)
            self._move.target = Alone(self._make(folder))
        except BaseException:
            self._abandon()
            raise

    def step(self, common: Any) -> None:
        """Move a few passages more, or take away a few that were moved."""
        move = self._move
        if move is None:
            self._stuck_until = self._now() + RETRY_SECONDS[0]  # unless it can be done
            ensure_room(self._folder, LEAST_FREE_TO_DELETE_BYTES)
            if self._leaving and not self._took_away(common, self._leaving[0]):
                self._leaving.pop(0)
            self._stuck_until = None
            return
        try:
            ensure_room(self._folder, LEAST_FREE_TO_MOVE_BYTES)
            if move.target is not None and not self._copied(common, move, move.target):
                self._finish(move, move.target)
        except BaseException:
            self._abandon()
            raise

    def _copied(self, common: Any, move: _Move, target: Alone) -> bool:
        """Whether there was something left to copy."""
        if not move.ids and not move.is_listed:
            request = edge.ScrollRequest(
                limit=LISTED_AT_ONCE,
                offset=move.offset,
                filter=_all_of(move.tenant),
                with_payload=False,
                with_vector=False,
            )
            records, move.offset = common.scroll(request)
            move.ids, move.is_listed = [record.id for record in records], move.offset is None
        some, move.ids = move.ids[:MOVED_AT_ONCE], move.ids[MOVED_AT_ONCE:]
        if not some:
            return False
        fresh = [one for one in some if one not in move.stored]
        records = common.retrieve(fresh, with_payload=True, with_vector=True)
        points = [edge.Point(record.id, record.vector, record.payload) for record in records]
        if points:
            target.upsert(points)
        return True

    def _finish(self, move: _Move, target: Alone) -> None:
        if not count_of(target.shard, None):  # all was deleted meanwhile
            self._abandon()
            return
        target.shard.flush()
        self._unmark(self._folder_of(move.tenant))
        self._shards[move.tenant], self._move = target, None
        self._refused.pop(move.tenant, None)
        self._leaving.append(move.tenant)

    def _took_away(self, common: Any, tenant: str) -> bool:
        """Whether the *common* shard still had something of *tenant*."""
        if not self._stale:
            self._stale = points_of(common, _all_of(tenant), LISTED_AT_ONCE)
        some, self._stale = self._stale[:DELETED_AT_ONCE], self._stale[DELETED_AT_ONCE:]
        if some:
            common.update(edge.UpdateOperation.delete_points([UUID(int=point) for point in some]))
        return bool(some)

    def _mirror(self, tenant: str, change: Callable[[Alone], object]) -> None:
        """Make a *change* of *tenant* where it is moved to, too. Where that fails it is not moved: the change
        can be made again without."""
        if self._move is None or self._move.tenant != tenant or self._move.target is None:
            return
        try:
            change(self._move.target)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Let go of the move, and try again later."""
        move, self._move = self._move, None
        if move is None:
            return
        _, before = self._refused.get(move.tenant, (0.0, 0.0))
        wait = min(2 * before, RETRY_SECONDS[1]) if before else RETRY_SECONDS[0]
        self._refused[move.tenant] = self._now() + wait, wait
        if move.target is not None:
            move.target.shard.close()
        self._remove(self._folder_of(move.tenant))

    def _give_up(self, common: Any, tenant: str) -> None:
        """Remove the shard of *tenant* with all that is in it, and what the *common* one still has. Where it cannot be
        marked as one that goes it stays."""
        if tenant in self._leaving:
            common.update(edge.UpdateOperation.delete_points_by_filter(_all_of(tenant)))
            self._leaving.remove(tenant)
            self._stale.clear()
        folder = self._folder_of(tenant)
        self._mark(folder)
        self._shards.pop(tenant).shard.close()
        self._remove(folder)

    def _folder_of(self, tenant: str) -> Path:
        return self._folder / hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _mark(self, folder: Path) -> None:
        with kept(self._folder):
            _mark_of(folder).touch(0o600)

    def _unmark(self, folder: Path) -> None:
        with kept(self._folder):
            _mark_of(folder).unlink(missing_ok=True)

    def _make_way(self, folder: Path) -> None:
        """There is no *folder*: what one has that could not be removed before is not to be found again."""
        self._remove(folder)
        if folder.exists():
            raise FileExistsError(errno.EEXIST, "could not be removed", str(folder))

    def _remove(self, folder: Path) -> None:
        """Remove *folder*, or what can be removed of it: the rest stays marked."""
        if folder.exists():
            self._mark(folder)
            shutil.rmtree(folder, ignore_errors=True)
        if _mark_of(folder).exists() and not folder.exists():
            self._unmark(folder)

    def close(self) -> None:
        """Flush and close all; a move that is not finished begins anew after the next start."""
        move, self._move, self._is_open = self._move, None, False
        self._leaving.clear()
        self._stale.clear()
        self._stuck_until = None
        with ExitStack() as closing:  # all of them, though one fails
            if move is not None and move.target is not None:
                closing.callback(move.target.shard.close)
            for shard in self.shards():
                closing.callback(shard.close)
                closing.callback(shard.flush)
            self._shards.clear()


def _all_of(tenant: str) -> Any:
    return filter_of(Where((Match("tenant", (tenant,)),)))


def _mark_of(folder: Path) -> Path:
    return folder.with_suffix(_MARK)
