"""When a search is made with the question's deeper vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from connectors.message import Scope
from grounding.retrieval import Hit, PassageIndex, PassageQuery, Search, Vector
from tests.emulators.embedder import HashedWords

SCOPE = Scope("acme")


class Asked:
    """An index that remembers the deeper vectors with which it was searched, and finds nothing."""

    deepens = True

    def __init__(self) -> None:
        self.deep: list[Vector | None] = []

    async def search(self, query: PassageQuery) -> list[Hit]:
        self.deep.append(query.deep)
        return []


class Reads(HashedWords):
    """A deeper model that can read texts about refunds."""

    def prepare(self, texts: Sequence[str]) -> None:
        """Nothing can be begun."""

    def _embed(self, text: str) -> Vector:
        return super()._embed(text) if "refund" in text else [0.0] * self.dimensions


@pytest.mark.parametrize(
    ("question", "earlier", "is_looked_at_again"),
    [
        ("what of the refund", (), True),
        ("what of the refund", ("und das Fenster",), True),
        ("und das Fenster", (), False),
        ("und das Fenster", ("what of the refund",), False),
    ],
)
async def test_a_question_that_the_deeper_model_cannot_read_is_searched_for_without(
    question: str, earlier: tuple[str, ...], is_looked_at_again: bool
) -> None:
    index = Asked()
    search = Search(cast("PassageIndex", index), HashedWords(), deep=Reads(32, "deeper"))
    await search.search(SCOPE, question, 5, earlier=earlier)
    (deep,) = index.deep
    assert (deep is not None) == is_looked_at_again
