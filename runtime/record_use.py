"""Which records a prompt showed, which of them its reply used, and which censors acted. Pure.

Whether a reply used a record is judged by words: of the terms that the record has and the question has not, at least
`USED_SHARE`, and no fewer than `USED_TERMS` where there are as many, stand in the reply; or its id does. Terms are
stemmed words without function words. That counts what was repeated in other words too low, and a word that came from
elsewhere too high; no model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grounding.documents.sparse import term_set
from grounding.layers.records import EXPAND, line
from grounding.run_context import SelectedRecord
from runtime.question import Built

USED_SHARE = 0.34
USED_TERMS = 2


def shown(built: Built) -> tuple[SelectedRecord, ...]:
    """The records that stand in the prompt: those that were chosen but for what had to yield."""
    block = built.prompt.block("records")
    if block is None or not block.text:
        return ()
    with_ids = EXPAND in built.context.tools
    lines = set(block.text.split("\n"))
    return tuple(one for one in built.context.records if line(one, with_id=with_ids) in lines)


def shown_records(built: Built) -> list[Mapping[str, Any]]:
    """The same as the HTTP interface tells of them."""
    return [{"id": one.id, "type": one.type, "level": one.level, "tokens": one.tokens} for one in shown(built)]


def used(built: Built, reply: str) -> tuple[SelectedRecord, ...]:
    """Those of `shown` that *reply* used."""
    records = shown(built)
    if not records:
        return ()
    asked, told = term_set(built.context.query.text), term_set(reply)
    return tuple(one for one in records if one.id in reply or _is_used(term_set(one.text) - asked, told))


def _is_used(news: frozenset[str], told: frozenset[str]) -> bool:
    repeated = len(news & told)
    return bool(news) and repeated >= USED_SHARE * len(news) and repeated >= min(USED_TERMS, len(news))
