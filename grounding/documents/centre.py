"""The centre of a scope's vectors, and questions seen from there. Pure, but for the state it keeps.

Texts of one workspace resemble each other: their vectors share a large part, and passages that have most of it are
near to every question (Radovanović, Nanopoulos and Ivanović, "Hubs in Space", JMLR 2010; centring as the remedy:
Suzuki et al., "Centering Similarity Measures to Reduce Hubs", EMNLP 2013). Taking a share of the mean away from the
question alone does the same to the ranking and leaves the stored vectors as they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from grounding.documents.embedding import Vector

SAMPLE = 256
"""Vectors that the mean is taken of: the first by their ids, which are digests, so that it is a fair sample and the
same for every adapter."""
TRUSTED = 32
"""With so many vectors half of the share is taken away, with fewer less: their mean says little."""
MAX_AGE_SECONDS = 600.0
"""A mean is taken again after this long, because other processes change the index too."""
SIZE_MAX_AGE_SECONDS = 10.0
"""The same for how many passages there are, which is cheaper to ask and counts for more."""
CENTRES = 1000
"""How many are remembered, a few kB each."""


@dataclass(frozen=True, slots=True)
class Centre:
    """The mean of *count* unit vectors; empty where there are none."""

    mean: tuple[float, ...]
    count: int


def deeper(tenant: str) -> str:
    """Under which name the centre of a tenant's deeper vectors is known."""
    return f"{tenant}\0deep"


def centre_of(vectors: Sequence[Sequence[float]]) -> Centre:
    """The centre of *vectors*, all of one size."""
    count = len(vectors)
    return Centre(tuple(sum(column) / count for column in zip(*vectors, strict=True)), count)


def off_centre(vector: Vector, centre: Centre, share: float) -> Vector:
    """*vector* without *share* (0 to 1) of the centre's mean, as long as the vector is; nothing is taken from zeros."""
    share *= centre.count / (centre.count + TRUSTED)
    length = math.hypot(*vector)
    if not share or not length:
        return vector
    share *= length  # only the direction counts in a cosine
    moved = [value - share * mean for value, mean in zip(vector, centre.mean, strict=True)]
    # A question that is the mean itself has no direction left.
    return moved if math.hypot(*moved) > 1e-6 * length else vector


class Centres:
    """Remembers the centres of tenants until about a tenth of what they stand for has changed, or they are old; and how
    many passages they have, until this process changes any."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, tuple[Centre, float, int]] = {}
        self._changes: dict[str, int] = {}
        self._sizes: dict[str, tuple[int, float]] = {}
        self._changed = 0

    async def size_of(self, tenant: str, ask: Callable[[], Awaitable[int]]) -> int:
        """How many passages *tenant* has, as *ask* said. Raises what that raises."""
        size, since = self._sizes.get(tenant, (0, -math.inf))
        if self._now() - since <= SIZE_MAX_AGE_SECONDS:
            return size
        before = self._changed
        size = await ask()
        if before == self._changed:  # else it may be what there was before that
            if len(self._sizes) >= CENTRES:
                self._sizes.clear()
            self._sizes[tenant] = size, self._now()
        return size

    def of(self, tenant: str) -> Centre | None:
        """The centre of *tenant*, if it is known and still good."""
        centre, since, size = self._known.get(tenant, (None, 0.0, 0))
        if centre is None or self._now() - since > MAX_AGE_SECONDS:
            return None
        return centre if self._changes.get(tenant, 0) * 10 <= size else None

    def put(self, tenant: str, centre: Centre, size: int = 0) -> None:
        """Remember the *centre* of *tenant*. It stands for *size* passages, of which its sample is seldom touched by a
        change; without that, for those of the sample alone."""
        if len(self._known) >= CENTRES:
            self.clear()
        self._known[tenant] = centre, self._now(), max(size, centre.count)
        self._changes.pop(tenant, None)

    def changed(self, tenant: str, count: int) -> None:
        """*count* passages of *tenant* were stored or deleted."""
        self._resized(tenant)
        self._moved(tenant, count)
        self._moved(deeper(tenant), count)

    def deepened(self, tenant: str, count: int) -> None:
        """*count* passages of *tenant* were given a deeper vector."""
        self._moved(deeper(tenant), count)

    def forget(self, tenant: str) -> None:
        """Passages of *tenant* were deleted, nobody knows how many."""
        self._resized(tenant)
        for name in (tenant, deeper(tenant)):
            self._known.pop(name, None)
            self._changes.pop(name, None)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._changes.clear()
        self._sizes.clear()
        self._changed += 1

    def _moved(self, name: str, count: int) -> None:
        if name in self._known:
            self._changes[name] = self._changes.get(name, 0) + count

    def _resized(self, tenant: str) -> None:
        self._sizes.pop(tenant, None)
        self._changed += 1
