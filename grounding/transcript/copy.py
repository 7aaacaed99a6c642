"""Copies the transcript from Redis to its Markdown files, in order and once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import structlog

from connectors.message import PARTITIONS, ConversationKey, StoreUnavailable
from grounding.transcript import markdown
from grounding.transcript.entry import Entry
from grounding.transcript.log import Transcript

_BATCH = 200
_SWEEP_SECONDS = 5.0
_TAIL_BYTES = 256 * 1024
_log = structlog.get_logger()


class MarkdownCopy:
    """Writes what the transcript holds to ``logs/chats/**.md`` under *data_dir*.

    Redis is what holds the log; a file that cannot be written (a full disk) is tried again, and what
    waits is not lost.
    """

    def __init__(self, transcript: Transcript, data_dir: Path) -> None:
        self._transcript = transcript
        self._data_dir = data_dir
        self._touched: set[Path] = set()
        self._waiting: set[int] = set(range(PARTITIONS))
        self._wake = asyncio.Event()
        self._failing = False

    def appended(self, key: ConversationKey) -> None:
        """Say that *key* has something new to copy."""
        self._waiting.add(key.partition)
        self._wake.set()

    async def run(self) -> None:
        """Copy until cancelled; looks at everything once at the start and after each outage."""
        while True:
            try:
                await self.flush()
                self._failing = False
            except (OSError, StoreUnavailable) as error:
                self._waiting = set(range(PARTITIONS))
                if not self._failing:
                    _log.warning("store.degraded", store="chat_logs", why=type(error).__name__, detail=str(error))
                self._failing = True
                await asyncio.sleep(_SWEEP_SECONDS)
                continue
            await self._wake.wait()
            self._wake.clear()

    async def flush(self) -> None:
        """Copy all that waits now. Raises OSError or `connectors.message.StoreUnavailable`."""
        while self._waiting:
            partition = self._waiting.pop()
            try:
                while batch := await self._transcript.to_copy(partition, _BATCH):
                    by_key: dict[ConversationKey, list[Entry]] = {}
                    for _, key, entry in batch:
                        by_key.setdefault(key, []).append(entry)
                    for key, entries in by_key.items():
                        await asyncio.to_thread(self._write, key, entries)
                    await self._transcript.copied(partition, [export_id for export_id, _, _ in batch])
            except BaseException:
                self._waiting.add(partition)
                raise

    def _write(self, key: ConversationKey, entries: Iterable[Entry]) -> None:
        path = self._data_dir / markdown.path(key)
        texts = [markdown.render(entry) for entry in entries]
        path.parent.mkdir(parents=True, exist_ok=True)
        # 'a' with newline='' keeps every character of a message as it is.
        with path.open("a+", encoding="utf-8", errors="surrogatepass", newline="") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                file.write(markdown.title(key))
            elif path not in self._touched:
                texts = _unwritten(texts, path, size)
            for text in texts:
                file.write(text)
        self._touched.add(path)


def _unwritten(texts: list[str], path: Path, size: int) -> list[str]:
    """*texts* without those that an interrupted run had written already."""
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        end = file.read().decode("utf-8", "replace")
    return [text for text in texts if text not in end]
