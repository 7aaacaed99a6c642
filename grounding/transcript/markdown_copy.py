"""Copy the transcript from Redis to its Markdown files, in order and once."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from connectors.message import PARTITIONS, ConversationKey, StoreUnavailable, replace_file
from grounding.transcript import markdown
from grounding.transcript.entry import Forget, ToCopy, TranscriptEntry
from grounding.transcript.log import Transcript

_BATCH = 200
"""How many pending items of one partition are read at once."""
_PARTITIONS_AT_ONCE = 16
SETTLE_SECONDS = 0.25
"""How long an appended entry waits for more, so that a burst of turns is copied in one step and delays none of them."""
_HEAD = b"\n#"
_log = structlog.get_logger()


class MarkdownCopy:
    """Writes the transcript to ``logs/chats/**.md`` under *data_dir*.

    Redis is the source of truth. If a file cannot be written (a full disk), the write is repeated later and nothing is
    lost. *sweep_seconds* is how often what others append is looked for, unless the process is *alone*, and how long a
    failure is waited out.
    """

    def __init__(
        self, transcript: Transcript, data_dir: Path, *, alone: bool = True, sweep_seconds: float = 5.0
    ) -> None:
        self._transcript = transcript
        self._data_dir = data_dir
        self._alone = alone
        self._sweep_seconds = sweep_seconds
        self._waiting: set[int] = set(range(PARTITIONS))
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._writing = threading.Lock()
        self._failing = False

    def appended(self, key: ConversationKey) -> None:
        """Note that *key* has new entries. They are copied after `SETTLE_SECONDS`, together with later ones."""
        self._waiting.add(key.partition)
        self._wake.set()

    def forgotten(self, key: ConversationKey) -> None:
        """Note that *key* has something to remove. It is removed without waiting."""
        self.appended(key)
        self._hurry.set()

    async def run(self) -> None:
        """Copy until cancelled.

        Reads all partitions at the start and after each outage, and every few seconds if other processes append too.
        """
        while True:
            try:
                await self.flush()
                self._failing = False
            except (OSError, StoreUnavailable) as error:
                self._waiting = set(range(PARTITIONS))
                if not self._failing:
                    _log.warning("store.degraded", store="chat_logs", why=type(error).__name__, detail=str(error))
                self._failing = True
                await asyncio.sleep(self._sweep_seconds)
                continue
            try:
                async with asyncio.timeout(None if self._alone else self._sweep_seconds):
                    await self._wake.wait()
            except TimeoutError:
                self._waiting = set(range(PARTITIONS))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._hurry.wait()
            self._hurry.clear()
            self._wake.clear()

    async def flush(self) -> None:
        """Copy everything that waits. Raises OSError or `connectors.message.StoreUnavailable`."""
        async with self._flushing:  # two flushes at once would write the same entries
            waiting, self._waiting = self._waiting, set()
            failed: OSError | None = None
            try:
                while waiting:
                    some = sorted(waiting)[:_PARTITIONS_AT_ONCE]
                    found = await self._transcript.to_copy(some, _BATCH)
                    errors = await self._copy(found)
                    self._waiting |= errors.keys()
                    failed = failed or next(iter(errors.values()), None)
                    # A page that was not full was the last.
                    waiting -= {one for one in some if one in errors or len(found.get(one, ())) < _BATCH}
            finally:
                self._waiting |= waiting
            if failed is not None:
                raise failed

    async def _copy(self, found: Mapping[int, Sequence[ToCopy]]) -> dict[int, OSError]:
        """Copy what was *found*, by partition, and return the errors. A file that cannot be written does not stop the
        others."""
        by_key: dict[ConversationKey, list[ToCopy]] = {}
        for one in itertools.chain.from_iterable(found.values()):
            by_key.setdefault(one.key, []).append(one)
        if not by_key:
            return {}
        failed = await asyncio.to_thread(self._write_files, by_key)
        copied: dict[int, list[str]] = {}
        for key, ordered in by_key.items():
            if key not in failed:
                copied.setdefault(key.partition, []).extend(one.export_id for one in ordered)
        await self._transcript.copied(copied)
        return {key.partition: error for key, error in failed.items()}

    def _write_files(self, by_key: Mapping[ConversationKey, Sequence[ToCopy]]) -> dict[ConversationKey, OSError]:
        """Copy all conversations and return the errors by conversation."""
        failed: dict[ConversationKey, OSError] = {}
        with self._writing:  # a thread continues after its task was cancelled
            for key, ordered in by_key.items():
                path = self._data_dir / markdown.path(key)
                try:
                    for what in _steps(ordered):
                        if isinstance(what, Forget):
                            _forget(path, what)
                        else:
                            _append(path, key, what)
                except OSError as error:
                    failed[key] = error
        return failed


def _forget(path: Path, what: Forget) -> None:
    """Remove a turn from the file, or delete the file. The file is replaced atomically."""
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
        replace_file(path, after)


def _append(path: Path, key: ConversationKey, entries: Iterable[TranscriptEntry]) -> None:
    """Append *entries* to the file. Those that its end already holds are not written again."""
    # Message texts are not normalised: they may hold any line end and lone surrogates.
    text = "".join(map(markdown.render, entries)).encode("utf-8", "surrogatepass")
    with open(path, "ab+", opener=_open_in_place) as file:
        file.write(_unwritten(file, file.seek(0, os.SEEK_END), markdown.title(key).encode(), text))


def _steps(ordered: Iterable[ToCopy]) -> Iterator[list[TranscriptEntry] | Forget]:
    """Yield the steps for one file in order. Consecutive entries are one step."""
    entries: list[TranscriptEntry] = []
    for one in ordered:
        if isinstance(one.what, TranscriptEntry):
            entries.append(one.what)
        elif one.what is not None:
            if entries:
                yield entries
            entries = []
            yield one.what
    if entries:
        yield entries


def _open_private(path: str, flags: int) -> int:
    """Open a file that only this user can read. Symbolic links are not followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _open_in_place(path: str, flags: int) -> int:
    """Do the same as `_open_private`, and create the folder if it is missing."""
    try:
        return _open_private(path, flags)
    except FileNotFoundError:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _open_private(path, flags)


def _unwritten(file: BinaryIO, size: int, title: bytes, text: bytes) -> bytes:
    """Return the part of *title* and *text* that *file* lacks after an interrupted write, which can end anywhere."""
    whole = title + text
    if size < len(title):
        return whole[size:]
    file.seek(max(0, size - len(text)))
    end = file.read()
    # No line of a message begins with "#", so only the headers of entries are compared. A second empty line before a
    # header does no harm.
    at = end.find(_HEAD)
    while at >= 0:
        if text.startswith(end[at:]):
            return text[len(end) - at :]
        at = end.find(_HEAD, at + 1)
    return text
