"""Stores files that people attach on the chat page, which has no platform that stores them.

They lie under ``DATA_DIR/workspaces/<workspace>/attachments/<connector>/<external_id>/``, each by an id. Key (owner
``attachments``, in the conversation's partition): ``files``, by message, its files.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, file_stem, redis_key
from connectors.web import File
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


_FORMAT = 1
_ID = re.compile(r"[0-9a-f]{32}")


class UploadedFiles:
    """The files of all conversations. Raises `connectors.message.StoreUnavailable` and `OSError`."""

    def __init__(self, redis: Redis, data_dir: Path) -> None:
        self._redis = redis
        self._root = data_dir / "workspaces"

    async def keep(self, key: ConversationKey, data: bytes) -> str:
        """Store *data* and return its id. It belongs to no message yet."""
        file_id = secrets.token_hex(16)
        await asyncio.to_thread(_write, self._folder(key) / file_id, data)
        return file_id

    async def find(self, key: ConversationKey, file_id: str) -> Path | None:
        """Return the path of a file; None if there is none with that id."""
        if not _ID.fullmatch(file_id):
            return None
        path = self._folder(key) / file_id
        return path if await asyncio.to_thread(path.is_file) else None

    async def attach(self, key: ConversationKey, message_id: str, files: Sequence[File]) -> None:
        """Store which files belong to a message."""
        if files:
            stored = pack(_FORMAT, files=[asdict(file) for file in files])
            await self._redis.hset(_key(key), message_id, stored)

    async def by_message(self, key: ConversationKey) -> Mapping[str, tuple[File, ...]]:
        """Return the files of a conversation, by message."""
        found: Any = await self._redis.hgetall(_key(key))
        return {
            str(message_id): tuple(File(**fields) for fields in unpack(stored, _FORMAT, "a list of files")["files"])
            for message_id, stored in found.items()
        }

    async def forget(self, key: ConversationKey, message_ids: Collection[str]) -> None:
        """Delete the files of these messages, except those that other messages have too."""
        known = await self.by_message(key)
        gone = {file.id for message_id in message_ids for file in known.get(message_id, ())}
        if not gone:
            return
        gone -= {file.id for message_id, files in known.items() if message_id not in message_ids for file in files}
        for file_id in gone:
            await asyncio.to_thread((self._folder(key) / file_id).unlink, missing_ok=True)
        await self._redis.hdel(_key(key), *message_ids)

    async def forget_conversation(self, key: ConversationKey) -> None:
        """Delete all files of a conversation."""
        await asyncio.to_thread(_remove, self._folder(key))
        await self._redis.delete(_key(key))

    def _folder(self, key: ConversationKey) -> Path:
        return self._root / key.workspace_id / "attachments" / key.connector / file_stem(key.external_id)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _key(key: ConversationKey) -> str:
    return redis_key("attachments", key.tag, "files", key.encoded)
