"""Where a document that was sent is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.documents import check_path
from runtime.commands.documents import document_path


@pytest.mark.parametrize(
    ("wanted", "name", "path"),
    [
        ("", "report.pdf", "report.md"),
        ("", "notes.md", "notes.md"),
        ("", "notes.TXT", "notes.TXT"),
        ("", "archive.tar.docx", "archive.tar.md"),
        ("", "no ending", "no ending.md"),
        ("", ".hidden", "hidden.md"),
        ("", "../../etc/passwd", "-..-etc-passwd.md"),
        ("", "...", "document.md"),
        ("", ".md", "md.md"),
        ("handbook/", "report.pdf", "handbook/report.md"),
        ("handbook/ships", "report.pdf", "handbook/ships.md"),
        ("handbook/ships.md", "report.pdf", "handbook/ships.md"),
    ],
)
def test_a_document_is_kept_where_its_sender_says_or_under_its_own_name(wanted: str, name: str, path: str) -> None:
    assert document_path(wanted, name) == path


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_no_name_of_a_file_leads_out_of_the_folder(name: str) -> None:
    path = document_path("", name)
    assert "/" not in path
    assert path.lower().endswith((".md", ".txt"))
    assert not path.startswith(".")
    if not path.lower().startswith("heartbeat."):
        assert check_path(path) == path
