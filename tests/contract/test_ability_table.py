"""The table of abilities in docs/connectors.md says of every connector what its code says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.connector import (
    Connector,
    EditsMessages,
    LocatesAttachments,
    Reacts,
    ShowsButtons,
    ShowsTyping,
    StreamsText,
)
from tests.contract.test_connectors import UNCONNECTED

PAGE = Path(__file__).parents[2] / "docs" / "connectors.md"
COLUMNS = {"telegram": "Telegram", "slack": "Slack", "discord": "Discord", "web": "web", "http": "HTTP"}
COLUMNS["console"] = "terminal"


def grows(connector: Connector) -> bool:
    return isinstance(connector, StreamsText) or (
        isinstance(connector, EditsMessages) and connector.capabilities.edits_per_second > 0
    )


ROWS: dict[str, Callable[[Connector], bool]] = {
    "files, pictures": lambda connector: isinstance(connector, LocatesAttachments),
    "a reply that grows": grows,
    "a sign while thinking": lambda connector: isinstance(connector, ShowsTyping),
    "buttons": lambda connector: isinstance(connector, ShowsButtons),
    "acknowledgement reaction": lambda connector: isinstance(connector, Reacts),
}


def tables() -> Iterator[list[list[str]]]:
    """Each table of the section, as rows of cells, its head first."""
    section = PAGE.read_text(encoding="utf-8").partition("## What works on each platform")[2].partition("\n## ")[0]
    for block in section.split("\n\n"):
        if block.startswith("| |"):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
            yield [rows[0], *rows[2:]]


def test_every_platform_has_a_word_on_every_ability() -> None:
    found = list(tables())
    assert len(found) == 3
    for head, *rows in found:
        assert head == ["", *COLUMNS.values()]
        assert {len(row) for row in rows} == {len(head)}
        assert all(all(row) for row in rows)
    assert COLUMNS.keys() == UNCONNECTED.keys()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", UNCONNECTED)
async def test_what_the_code_cannot_do_the_table_does_not_promise(name: str, row: str) -> None:
    """A dash stands exactly where the connector has not the ability."""
    cells = {cells[0]: cells for _, *rows in tables() for cells in rows}
    cell = cells[row][1 + list(COLUMNS).index(name)]
    assert cell.startswith("–") is not ROWS[row](UNCONNECTED[name]())
