"""Small tenants of an index that another process has, held whole in this one.

A turn asks several times about the same few hundred passages: to look through them takes less than to ask the other
process. They are read a few with each question, as `grounding.documents.edge_held.Held` does. Unlike there, others go
on while something is stored or read: what was changed meanwhile is not held.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from grounding.documents.edge_held import READ_AT_ONCE, Held, Tenant
from grounding.documents.index import Entry

FAILED_SECONDS = 10.0
"""A tenant is not listed for so long after a change of it failed: what of it was begun may still be done."""
LARGE_SECONDS = 60.0
"""The same of one that was too large, or found no room."""
_REMEMBERED = 1000


class HeldHere(Held):
    """Whoever changes the index does so within `changing`."""

    def __init__(self, dimensions: int) -> None:
        super().__init__(dimensions)
        self._stamps = itertools.count()
        self._changed: dict[str, int] = {}
        """The last change of each tenant that is being changed."""
        self._changing: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        """When a tenant may be listed again."""
        self._empty: set[str] = set()
        """Tenants that had nothing when they were listed."""
        self._listing: dict[str, int] = {}
        self._everything = 0
        """How many changes of many tenants are made now."""

    def may_grow(self, tenants: Iterable[str]) -> bool:
        """Whether any of *tenants* is held: else nobody need say what is stored."""
        return not self._tenants.keys().isdisjoint(tenants)

    def begins(self, tenant: str) -> int | None:
        """The points of *tenant* are to be listed now: under what `lists` is told them. None where they need not be,
        or would not say what there is."""
        until = self._not_before.get(tenant)
        if until is not None and until > self._now():
            return None
        if (
            tenant in self._empty
            or self._everything
            or tenant in self._changed
            or tenant in self._listing
            or tenant in self._tenants
        ):
            return None
        self._listing[tenant] = stamp = next(self._stamps)
        return stamp

    def lists(self, tenant: str, stamp: int, points: Sequence[int]) -> None:
        """The *points* of *tenant*, as they were listed: if they are more than `MOST_OF_ONE`, some of them."""
        if self._listing.get(tenant) != stamp:
            return
        del self._listing[tenant]
        if len(self._empty) + len(self._not_before) > _REMEMBERED:
            self._empty.clear()
            self._not_before.clear()
        if not points:
            self._empty.add(tenant)
        elif len(points) > self._most_of_one or not self._makes_room(len(points)):
            self._not_before[tenant] = self._now() + LARGE_SECONDS
        else:
            self._hold(tenant, Tenant(self._dimensions, points))

    def unlisted(self, tenant: str) -> None:
        """They could not be listed."""
        self._listing.pop(tenant, None)

    def wanted(self, tenant: str) -> tuple[Tenant, list[int]] | None:
        """What of *tenant* is to be read next; None where nothing is."""
        held = self._tenants.get(tenant)
        return (held, held.missing[:READ_AT_ONCE]) if held is not None and held.missing else None

    def read(self, tenant: str, held: Tenant, points: Collection[int], entries: Sequence[tuple[int, Entry]]) -> None:
        """What there is at *points* of *held*: *entries*. Those that were read meanwhile are left."""
        if self._tenants.get(tenant) is not held or not set(points) <= set(held.missing):
            return
        self._let_go(tenant)
        left = set(points)
        held.missing = [point for point in held.missing if point not in left]
        for point, entry in entries:
            held.add(point, entry.passage, entry.dense, entry.sparse)
        if not held.missing:
            held.sort()
        self._hold(tenant, held)

    @contextmanager
    def changing(self, tenants: Collection[str], entries: Sequence[tuple[str, int, Entry]] = ()) -> Iterator[set[str]]:
        """*tenants* are changed in this block: those of *entries* by nothing but these, and the others as it happens.
        It is given a set, for those of which something was deleted after all."""
        stamp, worn = next(self._stamps), set[str]()
        for tenant in tenants:
            self._changed[tenant] = stamp
            self._changing[tenant] += 1
            self._listing.pop(tenant, None)
            self._empty.discard(tenant)
        try:
            self.forget(set(tenants) - {tenant for tenant, _, _ in entries})
            with self.storing(entries):
                yield worn
        except BaseException:
            self._not_before.update(dict.fromkeys(tenants, self._now() + FAILED_SECONDS))
            raise
        finally:
            for tenant in tenants:
                if tenant in worn or self._changed.get(tenant) != stamp:
                    self.forget([tenant])
                self._changing[tenant] -= 1
                if not self._changing[tenant]:
                    del self._changing[tenant], self._changed[tenant]

    @contextmanager
    def changing_everything(self) -> Iterator[None]:
        """Nobody knows which tenants are changed in this block."""
        self._everything += 1
        self.clear()
        try:
            yield
        finally:
            self._everything -= 1
            self.clear()

    def clear(self) -> None:
        """Forget everything, what is being changed or listed now included."""
        super().clear()
        self._listing.clear()
        self._empty.clear()
        self._changed.update(dict.fromkeys(self._changed, next(self._stamps)))
