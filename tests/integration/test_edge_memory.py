"""What an index takes of the process's memory once it is open."""

import sys
from pathlib import Path

import pytest

from connectors.message import Scope
from grounding.documents.index import Entry, Kind, Passage
from grounding.documents.qdrant_embedded import EmbeddedIndex
from grounding.documents.sparse import encode_document

ACME = Scope("acme")
PASSAGES = 40
DIMENSIONS = 256


def entry(number: int) -> Entry:
    text = f"kiln number {number}"
    vector = [1.0, number / 100, *[0.5] * (DIMENSIONS - 2)]
    return Entry(Passage(str(number), Kind.DOCUMENT, "kiln.md", text), vector, encode_document(text))


def resident(folder: Path) -> int:
    """Bytes of files below *folder* in this process's memory."""
    found, is_it = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_it = str(folder) in line
        elif is_it and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is told by Linux only")
async def test_an_index_that_is_opened_again_takes_what_is_in_its_files_and_not_what_they_are_made_for(
    tmp_path: Path,
) -> None:
    index = EmbeddedIndex(tmp_path, "test", DIMENSIONS, timeout_seconds=20)
    await index.ensure()
    await index.upsert(ACME, [entry(number) for number in range(PASSAGES)])
    await index.close()

    index = EmbeddedIndex(tmp_path, "test", DIMENSIONS, timeout_seconds=20)
    count = await index.count(ACME, Kind.DOCUMENT)
    taken = resident(tmp_path)
    hits = await index.search(ACME, Kind.DOCUMENT, entry(3).dense, entry(3).sparse, 1)
    await index.upsert(ACME, [entry(PASSAGES)])
    after = await index.count(ACME, Kind.DOCUMENT)
    await index.close()

    assert 0 < taken < 8_000_000  # they are 450 MB long, and 57 of them are touched
    assert (count, after, [hit.passage.id for hit in hits]) == (PASSAGES, PASSAGES + 1, ["3"])
