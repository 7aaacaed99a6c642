"""What the embedded engine's files take of this process's memory though nothing reads it any more.

The engine makes files far larger than what is in them (32 MB for a few vectors), and opening a shard touches all of
several: 57 MB for 425 passages, 2 of them data. Its log is read once, at the opening. The system would take such pages
back only when it needs them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_SHARED = "s"
"""The last letter of a mapping's permissions, where what is written to it goes to the file."""
_LOG = f"{os.sep}wal{os.sep}"
"""In the path of a file of the engine's log."""


def give_back_unread(folder: Path) -> int:
    """Give back to the system, of the files below *folder* that this process has mapped, the pages of holes and those
    of logs; how many bytes of addresses these are, 0 where the system is not Linux or does not tell. Blocking: 4 ms of
    processor time for 72 mappings.

    Nothing can be lost: of a file that is shared with the system only the page's place in this process goes, and it
    comes again when it is touched. What else holds data is left where it is, for searches read it.
    """
    if sys.platform != "linux":
        return 0
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is None:
        return 0
    given = 0
    for file, start, offset, size in _mapped(folder):
        for first, end in [(offset, offset + size)] if _LOG in file else _holes_of(file, offset, size):
            address = ctypes.c_void_p(start + first - offset)
            if advise(address, ctypes.c_size_t(end - first), mmap.MADV_DONTNEED) == 0:
                given += end - first
    return given


def _mapped(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    """Each mapping of a file below *folder*: its path, its address, where in the file it begins, its size in bytes."""
    below = f"{folder.resolve()}{os.sep}"
    try:
        told = _MAPS.read_text("utf-8", "surrogateescape")
    except OSError:  # /proc is hidden from this process: its memory is as it would be without
        return
    for line in told.splitlines():
        where, mode, offset, _, _, *file = line.split(None, 5)
        if file and file[0].startswith(below) and mode.endswith(_SHARED):
            start, end = (int(address, 16) for address in where.split("-"))
            yield file[0], start, int(offset, 16), end - start


def _holes_of(file: str, start: int, size: int) -> list[tuple[int, int]]:
    """Whole pages of *file* without data, from *start*, a page's beginning, on."""
    try:
        handle = os.open(file, os.O_RDONLY)
    except OSError:  # it was removed, or has a name that the system writes in another way
        return []
    try:
        return list(_holes(handle, start, min(start + size, os.fstat(handle).st_size)))
    finally:
        os.close(handle)


def _holes(handle: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        data = min(_sought(handle, start, os.SEEK_DATA, end), end)
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, data // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            yield first, last
        start = _sought(handle, data, os.SEEK_HOLE, end)


def _sought(handle: int, start: int, what: int, otherwise: int) -> int:
    """Where *what* begins from *start* on; *otherwise* where there is no more of it, for which the system has an
    error (ENXIO)."""
    try:
        return os.lseek(handle, start, what)
    except OSError:
        return otherwise
