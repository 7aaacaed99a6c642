"""The human copy of each conversation's context document: one Markdown file, always the latest version."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path, PurePosixPath

from connectors.message import ConversationKey, file_stem


def path(key: ConversationKey) -> PurePosixPath:
    """Where the copy for *key* lies under DATA_DIR; different conversations never share a file."""
    stem = file_stem(f"{key.connector}:{key.external_id}")
    return PurePosixPath("workspaces", key.workspace_id, "memory", "contexts", stem + ".md")


class ContextCopy:
    """Writes context documents to ``memory/contexts/*.md`` under *data_dir*. Redis is what holds them; nothing
    reads these files back."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    async def write(self, key: ConversationKey, text: str) -> bool:
        """Make the file hold *text*, whole or not at all; False where it did already. Raises OSError."""
        return await asyncio.to_thread(_write, self._data_dir / path(key), text.encode("utf-8", "surrogatepass"))

    async def remove(self, key: ConversationKey) -> None:
        """Take the file away, if there is one. Raises OSError."""
        await asyncio.to_thread((self._data_dir / path(key)).unlink, missing_ok=True)


def _write(file: Path, content: bytes) -> bool:
    if _holds(file, content):
        return False
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".copy-")
    try:
        with os.fdopen(descriptor, "wb") as output:
            output.write(content)
        os.replace(temporary, file)  # takes the place of a link, too, and never writes through one
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def _holds(file: Path, content: bytes) -> bool:
    try:
        return not file.is_symlink() and file.read_bytes() == content
    except FileNotFoundError:
        return False
