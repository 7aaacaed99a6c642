"""The human copy of each conversation's context document: one Markdown file, always the latest version."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from connectors.message import ConversationKey, file_stem
from grounding.memory.versions import Mark

_Look = tuple[int, int, int, int]
"""Device, inode, bytes and nanoseconds of the last change: what tells a file that was touched without reading it."""
_REMEMBERED = 10_000
"""Conversations whose file is known; of others it is read once more."""


def path(key: ConversationKey) -> PurePosixPath:
    """Where the copy for *key* lies under DATA_DIR; different conversations never share a file."""
    stem = file_stem(f"{key.connector}:{key.external_id}")
    return PurePosixPath("workspaces", key.workspace_id, "memory", "contexts", stem + ".md")


class ContextCopy:
    """Writes context documents to ``memory/contexts/*.md`` under *data_dir*. Redis is what holds them; nothing
    reads these files back."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._written: OrderedDict[ConversationKey, tuple[Mark, _Look]] = OrderedDict()

    async def write(self, key: ConversationKey, text: str, mark: Mark | None = None) -> bool:
        """Make the file hold *text*, whole or not at all; False where it did already. Raises OSError.

        *mark* is the document's, by which `in_step` knows it again.
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
        """The conversations whose file this process wrote, or read, for the document of that mark, and nobody touched
        since."""
        known = {key: self._written[key][1] for key, mark in marks.items() if self._written.get(key, ("",))[0] == mark}
        if not known:
            return set()

        def looks() -> list[_Look | None]:
            return [_look(self._data_dir / path(key)) for key in known]

        found = await asyncio.to_thread(looks)
        return {key for (key, look), now in zip(known.items(), found, strict=True) if now == look}

    async def remove(self, key: ConversationKey) -> None:
        """Take the file away, if there is one. Raises OSError."""
        self._written.pop(key, None)
        await asyncio.to_thread((self._data_dir / path(key)).unlink, missing_ok=True)


def _write(file: Path, content: bytes) -> tuple[bool, _Look]:
    """Whether *file* had to be written, and how it looks then."""
    if look := _holds(file, content):
        return False, look
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".copy-")
    try:
        with os.fdopen(descriptor, "wb") as output:
            output.write(content)
            output.flush()
            look = _looks(os.fstat(descriptor))
        os.replace(temporary, file)  # takes the place of a link, too, and never writes through one
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True, look


def _holds(file: Path, content: bytes) -> _Look | None:
    """How *file* looks, where *content* is what it holds."""
    look = _look(file)  # before it is read: who writes in between makes it look different
    try:
        return look if look and not file.is_symlink() and file.read_bytes() == content else None
    except FileNotFoundError:
        return None


def _look(file: Path) -> _Look | None:
    try:
        return _looks(os.lstat(file))
    except OSError:  # nothing that is ours can be seen there
        return None


def _looks(found: os.stat_result) -> _Look:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
