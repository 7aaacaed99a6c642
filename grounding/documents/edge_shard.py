"""The embedded engine's shard: how it is opened, its indexes, and its passages' deeper vectors. All of it blocks."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import qdrant_edge as edge

from grounding.documents.centre import SAMPLE, Centre, centre_of
from grounding.documents.embedding import Vector
from grounding.documents.stored import DEEP, INTEGER_FIELDS, KEYWORD_FIELDS

CONFIGURATION = "edge_config.json"
"""The file that every shard has."""
SHARD_FILES = (CONFIGURATION, "segments", "wal")
"""All that a shard has in its folder, that file first; what else is there is not the shard's."""
SEARCH_THREADS = 1
"""Without `optimize` all passages are in one segment, which one thread looks through; others that are there wake up for
every search and find nothing to do."""

MOST_MAPPED = 200_000
"""Passages; the vectors of so many are 0.5 GB."""
LEAST_FREE_BYTES = 16_000_000
"""What is stored needs so much room on the disk, and so does opening, which stores again what was not flushed. The
engine writes into files that have holes: where there is no room for a page of them the system ends the process. It did
so with 2 MB left, and with 8 it did not."""
LEAST_FREE_TO_DELETE_BYTES = 1_000_000
"""The same for what is deleted."""
LOOKED_AT = 32
"""Passages that are read as a shard is opened: of some files it reads nothing before it is asked."""
_SHORT_CODES = edge.TurboQuantQuantizationConfig(memory=edge.Memory.Pinned)


def opened(path: Path, dimensions: int, deep_dimensions: int | None) -> Any:
    """The shard at *path*, made where there is none. It gets deeper vectors, of *deep_dimensions*, where those are
    given: one that has none yet is given room for them, and nothing in it is stored again.

    Raises what the engine does, and `OSError`.
    """
    if is_there(path):
        has = deep_dimensions_at(path)
        shard = edge.EdgeShard.load(str(path), _configuration(dimensions, has))
        if has is None and deep_dimensions is not None:
            make_room(shard, deep_dimensions)
        _map(shard, {"dense": dimensions} | ({DEEP: has} if has is not None else {}))
        return shard
    # A folder without configuration is what a crash during creation leaves: nothing is in it yet.
    for name in SHARD_FILES[1:]:
        shutil.rmtree(path / name, ignore_errors=True)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return edge.EdgeShard.create(str(path), _configuration(dimensions, deep_dimensions))


def _map(shard: Any, vectors: Mapping[str, int]) -> None:
    """Look once at all of *vectors*, with their sizes, in their order, so that their pages are there when a search
    reads a few here and there: of 100,000 passages that takes 0.05 s, and the first hundred deeper vectors 0.7 ms
    instead of up to 3.8."""
    if shard.info().points_count > MOST_MAPPED:
        return
    as_stored = edge.SearchParams(exact=True, quantization=edge.QuantizationSearchParams(ignore=True))
    for name, size in vectors.items():
        anything = edge.Query.Nearest([1.0] * size, using=name)
        shard.query(edge.QueryRequest(limit=1, query=anything, params=as_stored, with_payload=False, with_vector=False))


def look_at(shard: Any) -> list[Any]:
    """A few passages of *shard*. Raises what the engine does where they cannot be read, and `ValueError` where they
    are not whole."""
    request = edge.ScrollRequest(limit=LOOKED_AT, with_payload=True, with_vector=["dense"])
    records = list(shard.scroll(request)[0])
    if not all(record.payload and "dense" in (record.vector or ()) for record in records):
        raise ValueError("passages in it have no text or no vector")
    return records


def ensure_fields(shard: Any) -> None:
    """Index the fields of payloads by which is searched, where they are not yet."""
    present = shard.info().payload_schema
    fields: dict[str, Any] = {"tenant": edge.KeywordIndexParams(is_tenant=True)}
    fields |= {name: edge.KeywordIndexParams() for name in KEYWORD_FIELDS}
    fields |= {name: edge.IntegerIndexParams(lookup=True, range=False) for name in INTEGER_FIELDS}
    for name, schema in fields.items():
        if name not in present:
            shard.update(edge.UpdateOperation.create_field_index(name, schema))


def ensure_room(path: Path, least: int) -> None:
    """Raises `OSError` where the disk of the folder that is to have *path* has less than *least* bytes left."""
    while not path.exists():
        path = path.parent
    if shutil.disk_usage(path).free < least:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def is_there(path: Path) -> bool:
    """Whether there is a shard at *path*."""
    return (path / CONFIGURATION).exists()


def deep_dimensions_at(path: Path) -> int | None:
    """The size of the deeper vectors that the shard at *path* has room for; None where it has none."""
    vectors = json.loads((path / CONFIGURATION).read_text(encoding="utf-8"))["vectors"]
    return int(vectors[DEEP]["size"]) if DEEP in vectors else None


def make_room(shard: Any, deep_dimensions: int) -> None:
    """Let the passages of *shard* have deeper vectors: 0.1 s of processor time for 20,000 passages."""
    shard.update(edge.UpdateOperation.create_dense_vector(DEEP, deep_dimensions, edge.Distance.Cosine))


def _configuration(dimensions: int, deep_dimensions: int | None) -> Any:
    vectors = {
        "dense": edge.EdgeVectorParams(
            size=dimensions,
            distance=edge.Distance.Cosine,
            memory=edge.Memory.Cold,  # the few that are wanted are read from their file
            quantization_config=_SHORT_CODES,
        )
    }
    if deep_dimensions is not None:  # only a few are compared in a search: no codes
        vectors[DEEP] = edge.EdgeVectorParams(
            size=deep_dimensions, distance=edge.Distance.Cosine, memory=edge.Memory.Cold
        )
    return edge.EdgeConfig(
        vectors=vectors,
        sparse_vectors={"sparse": edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
        max_search_threads=SEARCH_THREADS,
    )


def deepen(shard: Any, vectors: Mapping[str, Vector]) -> int:
    """Give the points of *vectors*, as far as they exist, deeper ones; how many there were."""
    there = shard.retrieve([UUID(point) for point in vectors], with_payload=False, with_vector=False)
    points = [edge.PointVectors(one.id, {DEEP: vectors[str(one.id)]}) for one in there]
    if points:
        shard.update(edge.UpdateOperation.update_vectors(points))
    return len(points)


def deep_centre(shard: Any, corpus: Any) -> Centre:
    """The centre of the deeper vectors of what meets *corpus*, as far as its sample has any."""
    records, _ = shard.scroll(edge.ScrollRequest(limit=SAMPLE, filter=corpus, with_payload=False, with_vector=[DEEP]))
    return centre_of(_deep_of(records))


def deep_vectors(shard: Any, points: list[int]) -> list[Vector]:
    """The deeper vectors of those of *points*, UUIDs as numbers, that have one."""
    return _deep_of(shard.retrieve([UUID(int=one) for one in points], with_payload=False, with_vector=[DEEP]))


def _deep_of(records: Any) -> list[Vector]:
    found = [(record.vector or {}).get(DEEP) for record in records]
    return [vector for vector in found if vector and any(vector)]


def deep_cosines(shard: Any, to: Vector, points: list[int]) -> dict[int, float]:
    """The cosines of the deeper vectors of those of *points*, UUIDs as numbers, that have one, best first. One of
    zeros, whose cosine is 0 to the last bit, is none."""
    # By their ids alone: with the conditions that they met when they were found it takes twice as long.
    among = edge.Filter(must=[edge.HasIdCondition({UUID(int=one) for one in points})])
    request = edge.QueryRequest(
        limit=len(points),
        query=edge.Query.Nearest(to, using=DEEP),
        filter=among,
        with_payload=False,
        with_vector=False,
    )
    return {one.id.int: one.score for one in shard.query(request) if one.score}


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """What the block makes or removes in *folder* stays so if the machine stops. Where too many files are open
    already, it is not done at all."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield
        os.fsync(handle)
    finally:
        os.close(handle)
