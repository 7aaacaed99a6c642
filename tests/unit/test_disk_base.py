"""Writing down what files and documents were costs what changed of it, and survives what happens to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.documents import sync
from grounding.documents.sync import BASE_NAME, CHANGES_NAME, Base, DiskBase, Same

MANY: Base = {f"{number}.md": Same("0" * 64, number, number) for number in range(50)}


def save(disk: DiskBase, folder: Path, base: Base) -> None:
    before = disk.load(folder)
    disk.save(folder, base, [path for path in before.keys() | base.keys() if before.get(path) != base.get(path)])


def test_one_change_among_many_documents_is_one_line(tmp_path: Path) -> None:
    disk = DiskBase()
    save(disk, tmp_path, MANY)
    before = (tmp_path / CHANGES_NAME).read_text()
    changed = MANY | {"7.md": Same("1" * 64, 1, 1)}
    save(disk, tmp_path, changed)
    after = (tmp_path / CHANGES_NAME).read_text()
    assert after.removeprefix(before) == json.dumps([1, "7.md", "1" * 64, 1, 1]) + "\n"
    assert DiskBase().load(tmp_path) == changed


def test_many_changes_are_taken_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "MOST_CHANGES", 60)
    disk = DiskBase()
    save(disk, tmp_path, MANY)
    save(disk, tmp_path, {path: Same("1" * 64, 1, 1) for path in MANY})
    assert not (tmp_path / CHANGES_NAME).exists()
    assert DiskBase().load(tmp_path) == {path: Same("1" * 64, 1, 1) for path in MANY}


@given(st.lists(st.dictionaries(st.sampled_from("abcdé "), st.integers(0, 3), max_size=5), max_size=8), st.booleans())
def test_what_was_saved_last_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, saved: list[dict[str, int]], anew: bool
) -> None:
    """Whether by the process that saved it or by another one."""
    folder = tmp_path_factory.mktemp("acme")
    disk = DiskBase()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "MOST_CHANGES", 6)
        for one in saved:
            base = {path: Same(str(number), number, number) for path, number in one.items()}
            save(disk, folder, base)
            disk = DiskBase() if anew else disk
            assert disk.load(folder) == base


def test_a_line_that_was_not_finished_is_left_out_and_nothing_is_added_to_it(tmp_path: Path) -> None:
    save(DiskBase(), tmp_path, MANY)
    with (tmp_path / CHANGES_NAME).open("a") as file:
        file.write('[1, "7.md", "111')
    disk = DiskBase()
    assert disk.load(tmp_path) == MANY
    changed = MANY | {"8.md": Same("1" * 64, 1, 1)}
    save(disk, tmp_path, changed)
    assert DiskBase().load(tmp_path) == changed


@pytest.mark.parametrize("name", [BASE_NAME, CHANGES_NAME])
def test_where_a_file_is_damaged_nothing_was_the_same(tmp_path: Path, name: str) -> None:
    disk = DiskBase()
    save(disk, tmp_path, MANY)
    (tmp_path / name).write_text("[1, 2\n")
    assert disk.load(tmp_path) == {}


def test_what_another_process_saved_is_seen(tmp_path: Path) -> None:
    one, other = DiskBase(), DiskBase()
    save(one, tmp_path, MANY)
    save(other, tmp_path, {})
    assert one.load(tmp_path) == {}


def test_a_folder_that_was_made_meanwhile_has_what_was_written_down_for_it(tmp_path: Path) -> None:
    disk, folder = DiskBase(), tmp_path / "acme"
    assert disk.load(folder) == {}
    folder.mkdir()
    disk.save(folder, MANY, [*MANY])
    assert DiskBase().load(folder) == MANY


def test_nothing_is_written_down_in_a_folder_that_took_the_place_of_another(tmp_path: Path) -> None:
    disk, folder = DiskBase(), tmp_path / "acme"
    folder.mkdir()
    disk.load(folder)
    folder.rename(tmp_path / "gone")
    folder.mkdir()
    disk.save(folder, MANY, [*MANY])
    assert list(folder.iterdir()) == []


def test_nothing_is_written_down_in_a_folder_that_got_the_inode_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else documents of the former would be taken for deleted in the latter, and with that everywhere."""
    look = sync._look
    monkeypatch.setattr(sync, "_look", lambda file: (1, 2, 3) if file.is_dir() else look(file))
    disk, folder = DiskBase(), tmp_path / "acme"
    folder.mkdir()
    assert disk.load(folder) == {}
    shutil.rmtree(folder)
    folder.mkdir()
    disk.save(folder, MANY, MANY)
    assert DiskBase().load(folder) == {}
