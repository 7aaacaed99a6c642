"""The document that a session shows is read beside the newest one, and is always what the store has."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from connectors.message import ConversationKey, StoreUnavailable
from grounding.memory.context_document import ContextDocument
from grounding.prompt import Continuing, Documents, Freezing, Shown

KEY = ConversationKey("sample", "http", "one")


def document(name: str) -> ContextDocument:
    return ContextDocument(
        text=name, version=1, turns=1, entries=2, made_by="model", at="2026-11-22T20:00:00Z", id=name
    )


class Contexts:
    """Documents by id, the newest last; ``asked`` says which versions were read before the session was known."""

    def __init__(self) -> None:
        self.kept = {name: document(name) for name in ("1-0", "2-0", "3-0")}
        self.asked: list[tuple[str, bool]] = []
        self.known = False
        self.is_away = False

    async def latest(self, _: ConversationKey) -> ContextDocument | None:
        return [*self.kept.values()][-1]

    async def version(self, _: ConversationKey, name: str) -> ContextDocument | None:
        self.asked.append((name, self.known))
        if self.is_away:
            raise StoreUnavailable("away")
        return self.kept.get(name)


async def read(continuing: Continuing, contexts: Contexts, shown: str) -> Documents:
    contexts.asked, contexts.known = [], False

    async def session() -> Shown:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        contexts.known = True
        return Shown(id="t", began_on="2026-11-22", turns=1, turn_id="t", document=shown)

    return await continuing.documents(KEY, asyncio.create_task(session()))


def names(documents: Documents) -> list[str]:
    return [one.text if one else "" for one in documents]


async def test_a_session_that_goes_on_with_an_older_document_has_it_read_beside_the_newest() -> None:
    contexts = Contexts()
    continuing = Continuing(cast("Any", contexts), Freezing(cast("Any", None), "prefix_stable"))
    assert names(await read(continuing, contexts, "1-0")) == ["3-0", "1-0"]
    assert contexts.asked == [("1-0", True)]
    assert names(await read(continuing, contexts, "1-0")) == ["3-0", "1-0"]
    assert contexts.asked == [("1-0", False)]
    assert names(await read(continuing, contexts, "2-0")) == ["3-0", "2-0"]
    assert contexts.asked == [("1-0", False), ("2-0", True)]
    assert names(await read(continuing, contexts, "3-0")) == ["3-0", "3-0"]
    assert names(await read(continuing, contexts, "3-0")) == ["3-0", "3-0"]
    assert contexts.asked == []


async def test_a_document_that_was_forgotten_meanwhile_is_shown_no_more() -> None:
    contexts = Contexts()
    continuing = Continuing(cast("Any", contexts), Freezing(cast("Any", None), "prefix_stable"))
    await read(continuing, contexts, "1-0")
    del contexts.kept["1-0"]
    assert names(await read(continuing, contexts, "1-0")) == ["3-0", ""]


async def test_a_store_that_cannot_give_the_likely_document_fails_a_turn_only_where_that_is_wanted() -> None:
    contexts = Contexts()
    continuing = Continuing(cast("Any", contexts), Freezing(cast("Any", None), "prefix_stable"))
    await read(continuing, contexts, "1-0")
    contexts.is_away = True
    assert names(await read(continuing, contexts, "3-0")) == ["3-0", "3-0"]
    with pytest.raises(StoreUnavailable):
        await read(continuing, contexts, "1-0")
