"""How a workspace's folder is taken away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.ingress.removal import remove_folder


def test_a_file_that_is_written_while_the_folder_goes_goes_too(tmp_path: Path) -> None:
    folder = tmp_path / "acme"
    (folder / "context").mkdir(parents=True)
    late = [folder / "context" / "a.md", folder / "b.md"]

    def take_away(path: Path) -> None:
        if late:
            late.pop().write_text("written in between")
            path.rmdir()
        shutil.rmtree(path)

    (folder / "context" / "c.md").write_text("there before")
    remove_folder(folder, take_away)

    assert not folder.exists()


def test_files_that_may_not_be_taken_away_are_said(tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with pytest.raises(PermissionError):
        remove_folder(tmp_path, refuse)


def test_a_folder_that_never_becomes_empty_is_said(tmp_path: Path) -> None:
    def fill(path: Path) -> None:
        (path / "again.md").write_text("again")
        path.rmdir()

    with pytest.raises(OSError, match="not empty"):
        remove_folder(tmp_path, fill)
