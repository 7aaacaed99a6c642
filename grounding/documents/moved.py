"""Documents that were moved: their passages get other ids, because a path is part of them, and keep their vectors,
which are of the text alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from connectors.message import Scope
from grounding.documents.chunking import CountTokens, Sizes, chunk_document
from grounding.documents.embedding import Vector
from grounding.documents.index import Kind, PassageIndex
from grounding.documents.ledger import Ledger
from grounding.documents.library import Found
from grounding.documents.runs import PORTION_BYTES, Prepared, Run
from grounding.documents.shelf import READ_DOCUMENTS


async def moved_last(
    ledger: Ledger, run: Run, wanted: set[str], registered: set[str], there: Collection[Found]
) -> list[str]:
    """*wanted* in order, those that take long after others, and last what is no more *there* and has the size of
    something new: until it is forgotten its vectors can be had. What that may be is noted in *run*. Raises
    `StoreUnavailable`."""
    here = {item.path: item.size_bytes for item in there}
    sizes = {size for path in wanted - registered if (size := here.get(path)) is not None}
    gone = [path for path in wanted & registered if path not in here]
    if sizes and gone and not run.fresh:
        few = len(gone) <= READ_DOCUMENTS
        entries = await (ledger.entries(run.scope, gone) if few else ledger.all(run.scope))
        known = {path: entry for path in gone if (entry := entries.get(path)) is not None}
        run.moved = {entry.sha256: path for path, entry in known.items() if entry.size_bytes in sizes}
    last = set(run.moved.values())
    return sorted(wanted, key=lambda path: (path in last, here.get(path, 0) > PORTION_BYTES, path))


def formerly(
    prepared: Sequence[Prepared], moved: Mapping[str, str], count: CountTokens, sizes: Sizes
) -> dict[str, str]:
    """The ids of the chunks of *prepared* with those that they had where they lay before (*moved*: paths by the SHA-256
    of their texts), where the same is embedded of both: a document without a heading is titled by its name. Pure;
    takes as long as cutting them."""
    found: dict[str, str] = {}
    for item in prepared:
        if (path := moved.get(item.sha256)) is not None:
            before = chunk_document(path, item.document.text, count, sizes)
            pairs = zip(item.chunks, before, strict=False)
            found |= {one.id: former.id for one, former in pairs if one.indexed_text == former.indexed_text}
    return found


async def take_along(
    index: PassageIndex,
    scope: Scope,
    former: Mapping[str, str],
    vectors: dict[str, Vector],
    deep: dict[str, Vector],
) -> None:
    """Add to *vectors* and *deep* those that chunks had under their *former* ids. Raises `IndexUnavailable`."""
    for known, is_deep in ((vectors, False), (deep, True)):
        found = await index.vectors(scope, Kind.DOCUMENT, [*former.values()], deep=is_deep)
        known |= {chunk: found[before] for chunk, before in former.items() if before in found and chunk not in known}
