"""Pages of mapped files in which there is nothing."""

import mmap
import sys
from pathlib import Path

import pytest

from grounding.documents import mapped
from grounding.documents.mapped import give_back_unread

SIZE = 4_000_000 // mmap.PAGESIZE * mmap.PAGESIZE
IN_THE_MIDDLE = SIZE // 2
TEXT = b"there is something here"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is told by Linux only")


def file_with_holes(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(SIZE)
        file.seek(IN_THE_MIDDLE)
        file.write(TEXT)
    return path


def resident(path: Path) -> int:
    """Bytes of *path* in this process's memory."""
    found, is_it = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_it = line.endswith(str(path))
        elif is_it and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def touched(map_: mmap.mmap) -> bytes:
    return bytes(map_[:: mmap.PAGESIZE])


def test_pages_without_data_are_given_back_and_what_was_written_stays(tmp_path: Path) -> None:
    path = file_with_holes(tmp_path / "index" / "vectors")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), SIZE) as map_:
        touched(map_)
        map_[mmap.PAGESIZE : mmap.PAGESIZE + len(TEXT)] = TEXT  # into a hole, and not yet on disk
        assert resident(path) >= SIZE // 2

        given = give_back_unread(tmp_path / "index")

        if not given:
            pytest.skip("this file system keeps no holes")
        assert resident(path) < SIZE // 8
        assert map_[IN_THE_MIDDLE : IN_THE_MIDDLE + len(TEXT)] == TEXT
        assert map_[mmap.PAGESIZE : mmap.PAGESIZE + len(TEXT)] == TEXT
    assert path.read_bytes()[mmap.PAGESIZE :].startswith(TEXT)


def test_a_log_is_given_back_with_what_is_in_it_and_can_be_read_and_written_again(tmp_path: Path) -> None:
    path = file_with_holes(tmp_path / "index" / "wal" / "open-1")
    path.write_bytes(TEXT * (SIZE // len(TEXT)))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as map_:
        map_[:1] = b"T"
        touched(map_)
        before = resident(path)

        given = give_back_unread(tmp_path / "index")

        assert given >= len(map_)
        assert resident(path) < before // 4
        assert map_[:] == b"T" + (TEXT * (SIZE // len(TEXT)))[1:]
        map_[-1:] = b"!"
    assert path.read_bytes().endswith(b"!")


def test_files_elsewhere_and_what_a_process_has_changed_for_itself_alone_are_left(tmp_path: Path) -> None:
    elsewhere = file_with_holes(tmp_path / "index-of-others" / "vectors")
    own = file_with_holes(tmp_path / "index" / "own")
    with (
        elsewhere.open("r+b") as one,
        own.open("r+b") as other,
        mmap.mmap(one.fileno(), SIZE) as theirs,
        mmap.mmap(other.fileno(), SIZE, access=mmap.ACCESS_COPY) as ours,
    ):
        touched(theirs)
        ours[: len(TEXT)] = TEXT

        assert give_back_unread(tmp_path / "index") == 0

        assert resident(elsewhere) >= SIZE // 2
        assert ours[: len(TEXT)] == TEXT


def test_where_the_system_does_not_tell_nothing_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_MAPS", tmp_path / "hidden")

    assert give_back_unread(tmp_path) == 0
