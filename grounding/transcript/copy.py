"""Copies the transcript from Redis to its Markdown files, in order and once."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import structlog

from connectors.message import PARTITIONS, ConversationKey, StoreUnavailable
from grounding.transcript import markdown
from grounding.transcript.entry import Entry
from grounding.transcript.log import Forget, ToCopy, Transcript

_BATCH = 200
_SWEEP_SECONDS = 5.0
_HEAD = b"\n#"
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
        """Copy all that waits now, and can be. Raises OSError or `connectors.message.StoreUnavailable`."""
        waiting, self._waiting = self._waiting, set()
        failed: OSError | None = None
        try:
            while waiting:
                partition = min(waiting)
                if error := await self._copy(partition):
                    self._waiting.add(partition)
                    failed = failed or error
                waiting.discard(partition)
        finally:
            self._waiting |= waiting
        if failed is not None:
            raise failed

    async def _copy(self, partition: int) -> OSError | None:
        """Copy what waits in *partition*. A file that cannot be written keeps no other from it; its error."""
        while batch := await self._transcript.to_copy(partition, _BATCH):
            by_key: dict[ConversationKey, list[ToCopy]] = {}
            for one in batch:
                by_key.setdefault(one.key, []).append(one)
            failed: OSError | None = None
            copied: list[str] = []
            for key, ordered in by_key.items():
                try:
                    for what in _steps(ordered):
                        await asyncio.to_thread(self._do, key, what)
                    copied += [one.export_id for one in ordered]
                except OSError as error:
                    failed = failed or error
            await self._transcript.copied(partition, copied)
            if failed is not None:
                return failed
        return None

    def _do(self, key: ConversationKey, what: list[Entry] | Forget) -> None:
        if isinstance(what, Forget):
            self._forget(key, what)
        else:
            self._write(key, what)

    def _forget(self, key: ConversationKey, what: Forget) -> None:
        """Take a turn out of the file, or the file away. The file is whole at every moment."""
        path = self._data_dir / markdown.path(key)
        self._touched.discard(path)
        if not what.turn_id:
            path.unlink(missing_ok=True)
            return
        try:
            with open(path, "rb", opener=_open_private) as file:
                before = file.read()
        except FileNotFoundError:
            return
        text = before.decode("utf-8", "surrogatepass")
        after = markdown.without_turn(text, what.turn_id).encode("utf-8", "surrogatepass")
        if after != before:
            _replace(path, after)

    def _write(self, key: ConversationKey, entries: Iterable[Entry]) -> None:
        path = self._data_dir / markdown.path(key)
        # A message's text comes as it is: line ends and half surrogate pairs too.
        text = "".join(map(markdown.render, entries)).encode("utf-8", "surrogatepass")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = path in self._touched
        self._touched.discard(path)  # if this write fails, who knows how much of it is there
        with open(path, "ab+", opener=_open_private) as file:
            size = file.seek(0, os.SEEK_END)
            if not known or size == 0:
                text = _unwritten(file, size, markdown.title(key).encode(), text)
            file.write(text)
        self._touched.add(path)


def _steps(ordered: Iterable[ToCopy]) -> Iterator[list[Entry] | Forget]:
    """What is to be done to one file, in order: entries that follow each other are written at once."""
    entries: list[Entry] = []
    for one in ordered:
        if isinstance(one.what, Entry):
            entries.append(one.what)
        elif one.what is not None:
            if entries:
                yield entries
            entries = []
            yield one.what
    if entries:
        yield entries


def _replace(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".forgetting-")  # for this user alone
    try:
        with os.fdopen(descriptor, "wb") as output:
            output.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _open_private(path: str, flags: int) -> int:
    """What people said is for this user alone, and stays where it belongs: a link is not followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _unwritten(file: BinaryIO, size: int, title: bytes, text: bytes) -> bytes:
    """What of *title* and *text* an interrupted write, which may have ended anywhere, has not put into *file*."""
    whole = title + text
    if size < len(title):
        return whole[size:]
    file.seek(max(0, size - len(text)))
    end = file.read()
    # No line of a message begins with "#", so that only the heads of entries are looked at. The empty line
    # before a head may be there already, too: a second one does no harm.
    at = end.find(_HEAD)
    while at >= 0:
        if text.startswith(end[at:]):
            return text[len(end) - at :]
        at = end.find(_HEAD, at + 1)
    return text
