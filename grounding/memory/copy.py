"""A copy of each conversation's context document for people to read: one Markdown file with the latest version."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from connectors.message import ConversationKey, file_stem
from grounding.memory.versions import Mark

_Stamp = tuple[int, int, int, int]
"""Device, inode, size in bytes and modification time in nanoseconds. A difference shows that a file was changed,
without reading it."""
_REMEMBERED = 10_000
"""Conversations whose file stamps are cached. The files of others are read once more."""


def path(key: ConversationKey) -> PurePosixPath:
    """Return the path of the copy for *key* under DATA_DIR. Different conversations never share a file."""
    stem = file_stem(f"{key.connector}:{key.external_id}")
    return PurePosixPath("workspaces", key.workspace_id, "memory", "contexts", stem + ".md")


class ContextCopy:
    """Writes context documents to ``memory/contexts/*.md`` under *data_dir*.

    Redis is the source of truth; nothing reads these files back.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._written: OrderedDict[ConversationKey, tuple[Mark, _Stamp]] = OrderedDict()

    async def write(self, key: ConversationKey, text: str, mark: Mark | None = None) -> bool:
        """Write *text* to the file atomically; return False if the file already held it. Raises OSError.

        *mark* identifies the document for `in_step`.
        """
        self._written.pop(key, None)
        file = self._data_dir / path(key)
        written, look = await asyncio.to_thread(_write, file, text.encode("utf-8", "surrogatepass"))
        if mark is not None:
            self._written[key] = mark, look
            if len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)
        return written

    async def in_step(self, marks: Mapping[ConversationKey, Mark]) -> set[ConversationKey]:
        """Return the conversations whose file still holds the document with that mark.

        Only files are known that this process wrote or read and that nobody changed since.
        """
        known = {key: self._written[key][1] for key, mark in marks.items() if self._written.get(key, ("",))[0] == mark}
        if not known:
            return set()

        def looks() -> list[_Stamp | None]:
            return [_stamp(self._data_dir / path(key)) for key in known]

        found = await asyncio.to_thread(looks)
        return {key for (key, look), now in zip(known.items(), found, strict=True) if now == look}

    async def remove(self, key: ConversationKey) -> None:
        """Delete the file if it exists. Raises OSError."""
        self._written.pop(key, None)
        await asyncio.to_thread((self._data_dir / path(key)).unlink, missing_ok=True)


def _write(file: Path, content: bytes) -> tuple[bool, _Stamp]:
    """Write *file* if its content differs; return whether it was written, and its stamp."""
    if look := _stamp_if_holds(file, content):
        return False, look
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".copy-")
    try:
        with os.fdopen(descriptor, "wb") as output:
            output.write(content)
            output.flush()
            look = _stamp_of(os.fstat(descriptor))
        os.replace(temporary, file)  # replaces a symbolic link instead of writing through it
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True, look


def _stamp_if_holds(file: Path, content: bytes) -> _Stamp | None:
    """Return the stamp of *file* if it holds *content*, else None."""
    look = _stamp(file)  # taken before reading: a write in between then changes the stamp
    try:
        return look if look and not file.is_symlink() and file.read_bytes() == content else None
    except FileNotFoundError:
        return None


def _stamp(file: Path) -> _Stamp | None:
    try:
        return _stamp_of(os.lstat(file))
    except OSError:  # not readable, so none of our files
        return None


def _stamp_of(found: os.stat_result) -> _Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
