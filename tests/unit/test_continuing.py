"""A turn reads the newest document and the one that the last prompt showed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connectors.message import ConversationKey, StoreUnavailable
from grounding.memory.context_document import ContextDocument
from grounding.prompt import Documents, PrefixPolicy, SessionContinuity, Shown

KEY = ConversationKey("sample", "http", "one")


def document(name: str) -> ContextDocument:
    return ContextDocument(
        text=name, version=1, turns=1, entries=2, made_by="model", at="2026-11-22T20:00:00Z", id=name
    )


class Contexts:
    """Documents by id, the newest last."""

    def __init__(self) -> None:
        self.kept = {name: document(name) for name in ("1-0", "2-0", "3-0")}
        self.is_away = False

    async def version(self, _: ConversationKey, name: str) -> ContextDocument | None:
        if self.is_away:
            raise StoreUnavailable("away")
        return self.kept.get(name)


async def read(continuing: SessionContinuity, shown: str) -> Documents:
    session = Shown(id="t", began_on="2026-11-22", turns=1, turn_id="t", document=shown)
    return await continuing.documents(KEY, document("3-0"), session)


def continuing_with(contexts: Contexts) -> SessionContinuity:
    return SessionContinuity(cast("Any", contexts), PrefixPolicy(cast("Any", None), "prefix_stable"))


def names(documents: Documents) -> list[str]:
    return [one.text if one else "" for one in documents]


async def test_a_session_reads_the_newest_document_and_the_one_that_it_shows() -> None:
    continuing = continuing_with(Contexts())
    assert names(await read(continuing, "1-0")) == ["3-0", "1-0"]
    assert names(await read(continuing, "3-0")) == ["3-0", "3-0"]


async def test_a_deleted_document_is_not_shown_any_more() -> None:
    contexts = Contexts()
    del contexts.kept["1-0"]
    assert names(await read(continuing_with(contexts), "1-0")) == ["3-0", ""]


async def test_an_older_document_that_cannot_be_read_fails_only_a_turn_that_shows_it() -> None:
    contexts = Contexts()
    contexts.is_away = True
    continuing = continuing_with(contexts)
    assert names(await read(continuing, "3-0")) == ["3-0", "3-0"]
    with pytest.raises(StoreUnavailable):
        await read(continuing, "1-0")
