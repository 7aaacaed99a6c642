"""On which thread the embedded engine answers."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.message import Scope
from grounding.documents import edge_engine
from grounding.documents.edge_search import SHORT_CENTRE, EdgeSearch
from grounding.documents.edge_shard import opened
from grounding.documents.index import Entry, IndexUnavailable, Kind, Passage
from grounding.documents.qdrant_embedded import EmbeddedIndex
from grounding.documents.sparse import encode_document, encode_query

ACME = Scope("acme")


def entry(number: int) -> Entry:
    text = f"kiln number {number}"
    return Entry(Passage(str(number), Kind.DOCUMENT, "kiln.md", text), [1.0, number / 100, 0.5], encode_document(text))


@pytest.mark.parametrize(("count", "first"), [(SHORT_CENTRE, True), (SHORT_CENTRE + 1, False)])
async def test_a_search_is_made_where_it_is_asked_for_but_off_the_loop_where_many_vectors_have_to_be_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, first: bool
) -> None:
    threads: list[int] = []
    answered = EdgeSearch.answered

    def noted(self: EdgeSearch, *given: Any) -> Any:
        threads.append(threading.get_ident())
        return answered(self, *given)

    monkeypatch.setattr(EdgeSearch, "answered", noted)
    index = EmbeddedIndex(tmp_path, "test", 3, timeout_seconds=20)
    await index.ensure()
    await index.upsert(ACME, [entry(number) for number in range(count)])

    found = [
        await index.search(ACME, Kind.DOCUMENT, [1.0, 0.2, 0.1], encode_query("kiln 7"), 3, explain=True)
        for _ in range(2)
    ]

    await index.close()
    assert found[0] == found[1]
    assert [one == threading.get_ident() for one in threads] == [first, True]


async def test_a_second_look_is_made_where_it_is_asked_for_once_the_centres_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, list[int]] = {"first_look": [], "second_look": []}

    def note(name: str) -> None:
        look = getattr(EdgeSearch, name)

        def noted(self: EdgeSearch, *given: Any) -> Any:
            threads[name].append(threading.get_ident())
            return look(self, *given)

        monkeypatch.setattr(EdgeSearch, name, noted)

    for name in threads:
        note(name)
    index = EmbeddedIndex(tmp_path, "test", 3, timeout_seconds=20, deep_dimensions=3)
    await index.ensure()
    await index.upsert(ACME, [entry(number) for number in range(SHORT_CENTRE + 1)])
    await index.deepen(ACME, Kind.DOCUMENT, {str(number): [0.5, number / 90, 0.1] for number in range(SHORT_CENTRE)})

    async def deep() -> list[float]:
        return [0.1, 1.0, 0.1]

    found = [
        await index.search(ACME, Kind.DOCUMENT, [1.0, 0.2, 0.1], encode_query("kiln 7"), 3, deep=deep) for _ in range(2)
    ]

    await index.close()
    assert found[0] == found[1]
    here = threading.get_ident()
    assert [one == here for one in threads["first_look"]] == [False, True]
    assert [one == here for one in threads["second_look"]] == [True, True]


async def test_opening_may_take_longer_than_a_search_and_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[Path] = []
    limit = 0.5

    def slowly(path: Path, *sizes: Any) -> Any:
        began.append(path)
        time.sleep(2 * limit)
        return opened(path, *sizes)

    monkeypatch.setattr(edge_engine, "opened", slowly)
    index = EmbeddedIndex(tmp_path, "test", 3, timeout_seconds=limit)
    await index.ensure()
    assert len(began) == 1
    with pytest.raises(IndexUnavailable, match="longer than"):
        await index._run(lambda shard: time.sleep(2 * limit))
    await index.close()
