"""A shard of the embedded engine that holds one tenant and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import qdrant_edge as edge

from grounding.documents.edge_queries import count_of


@dataclass(slots=True)
class Alone:
    """The shard, and what is known of it. Every method raises what the engine does."""

    shard: Any
    changed: int = 0
    """Passages that were replaced or deleted since it was opened."""
    _size: int | None = None

    @property
    def size(self) -> int:
        """About how many passages it has. Mostly that is known: to ask the engine takes a part of every look."""
        if self._size is None:
            self._size = count_of(self.shard, None)
        return self._size

    def upsert(self, points: Sequence[Any]) -> None:
        """Store *points*."""
        there = self.shard.retrieve([point.id for point in points], with_payload=False, with_vector=False)
        self.changed += len(there)
        size, self._size = self._size, None  # an update that fails may have done half
        self.shard.update(edge.UpdateOperation.upsert_points([*points]))
        if size is not None:
            self._size = size + len(points) - len(there)

    def delete(self, points: Sequence[UUID]) -> None:
        """Delete *points*."""
        self.changed, self._size = self.changed + len(points), None
        self.shard.update(edge.UpdateOperation.delete_points([*points]))

    def delete_where(self, wanted: Any) -> None:
        """Delete what meets the engine's filter *wanted*."""
        self._size = None
        self.changed += int(self.shard.count(edge.CountRequest(exact=True, filter=wanted)))
        self.shard.update(edge.UpdateOperation.delete_points_by_filter(wanted))
