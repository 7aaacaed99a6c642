"""One look-up of what a prompt may be told of documents: found, judged, chosen, and read with what stands around it.

What is read follows from what was found, so all of it is done where the index is: whoever asks an index of another
process has one way there and back, and is given what may be told instead of all that was found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from connectors.message import Scope
from grounding.documents.embedding import Vector
from grounding.documents.index import AskDeep, Hit, Kind, Passage, PassageIndex
from grounding.documents.judging import Judging
from grounding.documents.packing import Run, choose, neighbours_wanted
from grounding.documents.relevance import Floor, fitting
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import searched

CANDIDATES_PER_PASSAGE = 3
"""Hits looked at for each passage wanted: some are duplicates, some join into one."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """What is looked up: *query* with its vectors. At most *top_k* runs are chosen, of what reaches *floor*; where
    nothing does, of what reaches it for the query *spelled_out* with what was asked before."""

    query: str
    dense: Vector | None
    sparse: SparseVector
    floor: Floor
    top_k: int
    spelled_out: str = ""

    @property
    def candidates(self) -> int:
        """How many hits are looked at."""
        return self.top_k * CANDIDATES_PER_PASSAGE


class Chosen(NamedTuple):
    """The *runs* that may be told, best first, and the passages that they may grow by."""

    runs: list[Run]
    around: list[Passage]


NOTHING = Chosen([], [])


@runtime_checkable
class LooksUp(Protocol):
    """A `PassageIndex` that another process has, where the look-up is made."""

    async def look_up(
        self, scope: Scope, kind: Kind, look: LookUp, judging: Judging, deep: AskDeep | None = None
    ) -> Chosen:
        """See `looked_up`."""


async def looked_up(
    index: PassageIndex, scope: Scope, kind: Kind, look: LookUp, judging: Judging, deep: AskDeep | None = None
) -> Chosen:
    """What *look* finds in *index* in *scope*; *deep* as in `PassageIndex.search`, and *judging* as it is done here.

    Raises `IndexUnavailable`, and `ValueError` for a scope that may not hold the kind.
    """
    size = await size_of(index, scope, kind)  # mostly known
    hits = await index.search(scope, kind, look.dense, look.sparse, look.candidates, scores=True, deep=deep)
    return await chosen_of(index, scope, kind, look, hits, size, judging)


async def size_of(index: PassageIndex, scope: Scope, kind: Kind) -> int:
    """About how many passages a search in *scope* is made among."""
    return sum([await index.estimate(one, kind) for one in searched(scope, kind)])


async def chosen_of(
    index: PassageIndex, scope: Scope, kind: Kind, look: LookUp, hits: Sequence[Hit], size: int, judging: Judging
) -> Chosen:
    """What may be told of *hits*, found among *size* passages, and what stands around it."""
    if not hits:
        return NOTHING
    floor = fitting(look.floor, hits)

    def chosen() -> list[Run]:
        kept = floor.keep(look.query, hits, size)
        if not kept and look.spelled_out:
            kept = floor.keep(look.spelled_out, hits, size)
        return choose(kept, look.top_k)

    runs = await judging.of(hits, chosen)
    wanted: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        wanted[run.source].update(neighbours_wanted(run))
    if not wanted:
        return NOTHING
    # No two owners have a source of one name.
    found = [await index.read(one, kind, wanted) for one in searched(scope, kind)]
    return Chosen(runs, [passage for by_source in found for some in by_source.values() for passage in some])
