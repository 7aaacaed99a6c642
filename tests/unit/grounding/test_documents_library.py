"""Documents are files of one folder, whatever their names say; and what becomes of a file and a shared document."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.documents import DocumentMissing, DocumentRefused, Library, Skipped, check_path
from grounding.documents.sync import Action, merge

ACME = Scope("acme")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path, max_bytes=1000)


def test_what_was_put_is_there_and_what_was_deleted_is_gone(library: Library) -> None:
    library.put(ACME, "policies/refunds.md", "# Refunds ✓")
    assert library.get(ACME, "policies/refunds.md").text == "# Refunds ✓"
    assert [found.path for found in library.walk(ACME)[0]] == ["policies/refunds.md"]
    library.delete(ACME, "policies/refunds.md")
    assert library.walk(ACME)[0] == []
    assert not (library.root(ACME) / "policies").exists()
    with pytest.raises(DocumentMissing):
        library.get(ACME, "policies/refunds.md")
    with pytest.raises(DocumentMissing):
        library.delete(ACME, "policies/refunds.md")


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd.md", "../a.md", "a/../../b.md", "a//b.md", "./a.md", "a\\b.md", "C:/a.md", "C:a.md", "a\0.md",
        "a\n.md", ".hidden.md", "a/.git/b.md", "a.png", "a",
        "x" * 300 + ".md", "/".join(["x" * 100] * 20) + ".md", "\ud800.md", "a/", "..", "a.md/",
    ],
)  # fmt: skip
def test_hostile_paths_are_refused_for_reading_and_writing(library: Library, path: str) -> None:
    for attempt in (
        lambda: library.get(ACME, path),
        lambda: library.put(ACME, path, "x"),
        lambda: library.delete(ACME, path),
    ):
        with pytest.raises(DocumentRefused) as refused:
            attempt()
        assert refused.value.why == "path"


@pytest.mark.parametrize(
    "path",
    [
        "%2e%2e%2fa.md",
        "a%00.md",
        "a b/ü.md",
        "~/x.md",
        "$(x).md",
        "notes.TXT",
        "logs/a.md",
        "memory/a.md",
        "HEARTBEAT.md",
    ],
)
def test_odd_names_mean_themselves(library: Library, path: str) -> None:
    library.put(ACME, path, "x")
    assert [found.path for found in library.walk(ACME)[0]] == [path]
    assert (library.root(ACME) / path).is_file()


@given(st.text(max_size=40))
def test_no_accepted_path_leaves_the_folder(path: str) -> None:
    try:
        check_path(path)
    except DocumentRefused:
        return
    base = Path("/data/docs")
    assert Path(os.path.normpath(base / path)).is_relative_to(base)
    assert Path(os.path.normpath(base / path)) != base


def test_folders_that_can_hold_no_document_are_not_looked_into(library: Library, tmp_path: Path) -> None:
    """A version control's folder may hold a hundred thousand files."""
    library.put(ACME, "sub/logs/a.md", "x")
    root = library.root(ACME)
    for folder in (".git/objects", "sub/.cache"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.md").write_text("x")
        (root / folder / "link").symlink_to(tmp_path)
    assert library.walk(ACME) == ([library.stat(ACME, "sub/logs/a.md")], [])


def test_links_that_go_round_in_circles_and_deep_folders_end(library: Library) -> None:
    root = library.root(ACME)
    deep = root
    for depth in range(600):
        deep = deep / "d"
        deep.mkdir(parents=depth == 0)
        if depth + 1 in (200, 550):  # the second one's path is longer than a document's may be
            (deep / "a.md").write_text("x")
    (root / "d" / "up").symlink_to(root)
    found, unfit = library.walk(ACME)
    assert [one.path for one in found] == ["d/" * 200 + "a.md"]
    assert [(one.path, one.why) for one in unfit] == [("d/up", "link")]


def test_links_are_never_followed(library: Library, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("secret")
    root = library.root(ACME)
    root.mkdir(parents=True)
    (root / "link.md").symlink_to(secret)
    (root / "folder").symlink_to(tmp_path)
    found, skipped = library.walk(ACME)
    assert found == []
    assert {(one.path, one.why) for one in skipped} == {("link.md", "link"), ("folder", "link")}
    for path in ("link.md", "folder/secret.md"):
        with pytest.raises(DocumentRefused) as refused:
            library.get(ACME, path)
        assert refused.value.why == "link"
        with pytest.raises(DocumentRefused):
            library.put(ACME, path, "overwritten")
    assert secret.read_text() == "secret"


def test_a_workspace_folder_that_is_a_link_holds_nothing(library: Library, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("secret")
    library.root(ACME).parent.mkdir(parents=True)
    library.root(ACME).symlink_to(outside)
    assert library.walk(ACME)[0] == []
    with pytest.raises(DocumentRefused):
        library.get(ACME, "a.md")


@pytest.mark.parametrize(
    ("raw", "why"), [(b"a\0b", "binary"), (b"caf\xe9", "encoding"), (b"x" * 1001, "size")]
)  # fmt: skip
def test_what_is_no_text_is_refused_and_named(library: Library, raw: bytes, why: str) -> None:
    with pytest.raises(DocumentRefused) as refused:
        library.put(ACME, "a.md", raw)
    assert refused.value.why == why
    root = library.root(ACME)
    root.mkdir(parents=True, exist_ok=True)
    (root / "a.md").write_bytes(raw)
    seen = library.read(ACME, "a.md")
    assert isinstance(seen, Skipped)
    assert (seen.path, seen.why) == ("a.md", why)


def test_a_refused_document_leaves_the_former_one_untouched(library: Library) -> None:
    library.put(ACME, "a.md", "good")
    with pytest.raises(DocumentRefused):
        library.put(ACME, "a.md", b"\0")
    assert library.get(ACME, "a.md").text == "good"
    assert os.listdir(library.root(ACME)) == ["a.md"]


def test_a_document_cannot_take_a_folder_s_place_or_lie_below_a_document(library: Library) -> None:
    library.put(ACME, "a.md", "x")
    with pytest.raises(DocumentRefused):
        library.put(ACME, "a.md/b.md", "x")
    library.put(ACME, "c.md.d/e.md", "x")
    (library.root(ACME) / "f.md").mkdir()
    with pytest.raises(DocumentRefused):
        library.put(ACME, "f.md", "x")


def test_a_pipe_in_the_folder_is_no_document(library: Library) -> None:
    library.root(ACME).mkdir(parents=True)
    os.mkfifo(library.root(ACME) / "a.md")
    assert library.walk(ACME)[0] == []
    with pytest.raises(DocumentRefused):
        library.get(ACME, "a.md")


def test_workspaces_do_not_see_each_other(library: Library) -> None:
    library.put(ACME, "a.md", "acme")
    assert library.walk(Scope("other"))[0] == []
    assert library.workspaces() == ["acme"]


def test_what_lies_at_a_path_is_told_without_an_error(library: Library) -> None:
    """Whatever became of a file since it was listed."""
    library.put(ACME, "folder.md/a.md", "x")
    root = library.root(ACME)
    (root / "dangling.md").symlink_to(root / "nowhere.md")
    seen = {path: library.read(ACME, path) for path in ("folder.md", "gone.md", "a.md/b.md", "x.png", "../a.md")}
    assert set(seen.values()) == {None}
    assert library.read(ACME, "dangling.md") == Skipped("dangling.md", "link")


texts = st.none() | st.sampled_from(["one", "two", "three"])


@given(texts, texts, texts, st.booleans())
def test_of_a_file_and_a_shared_document_a_change_wins_over_none_and_a_deletion_loses_none(
    base: str | None, here: str | None, shared: str | None, newer: bool
) -> None:
    what = merge(base, here, shared, file_is_newer=newer)
    outcome = {
        Action.NOTHING: here,
        Action.PUT: here,
        Action.REMOVE: None,
        Action.WRITE: shared,
        Action.DELETE: None,
    }[what]
    if here == shared:
        assert what is Action.NOTHING
    elif here == base:
        assert outcome == shared
    elif shared == base:
        assert outcome == here
    elif None in (here, shared):
        assert outcome is not None
    else:
        assert outcome == (here if newer else shared)
    if what in (Action.WRITE, Action.PUT):
        assert outcome is not None
