"""Copies the transcript from Redis to its Markdown files, in order and once."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from connectors.message import PARTITIONS, ConversationKey, StoreUnavailable
from grounding.transcript import markdown
from grounding.transcript.entry import Entry, Forget, ToCopy
from grounding.transcript.log import Transcript

_BATCH = 200
"""Things to be copied that are read of one partition at once."""
_PARTITIONS_AT_ONCE = 16
SETTLE_SECONDS = 0.25
"""How long what was appended waits for more: a burst of turns is one piece of work, and in the way of none of them."""
_SWEEP_SECONDS = 5.0
_REMEMBERED = 10_000
"""Files of which the number of bytes is known; the end of others is read."""
_HEAD = b"\n#"
_log = structlog.get_logger()


class MarkdownCopy:
    """Writes what the transcript holds to ``logs/chats/**.md`` under *data_dir*.

    Redis is what holds the log; a file that cannot be written (a full disk) is tried again, and what
    waits is not lost.
    """

    def __init__(self, transcript: Transcript, data_dir: Path, *, alone: bool = True) -> None:
        self._transcript = transcript
        self._data_dir = data_dir
        self._alone = alone
        self._whole: dict[Path, int] = {}
        """How many bytes those files had that end with what this process wrote last, and let go of. One that has
        another number now was touched by somebody else."""
        self._waiting: set[int] = set(range(PARTITIONS))
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._writing = threading.Lock()
        self._failing = False

    def appended(self, key: ConversationKey) -> None:
        """Say that *key* has something new to copy; it is, in a moment, with what comes until then."""
        self._waiting.add(key.partition)
        self._wake.set()

    def forgotten(self, key: ConversationKey) -> None:
        """Say that something of *key* is to be taken out; that does not wait."""
        self.appended(key)
        self._hurry.set()

    async def run(self) -> None:
        """Copy until cancelled; looks at everything once at the start and after each outage, and every few seconds
        where other processes append, too."""
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
            try:
                async with asyncio.timeout(None if self._alone else _SWEEP_SECONDS):
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
        """Copy all that waits now, and can be. Raises OSError or `connectors.message.StoreUnavailable`."""
        async with self._flushing:  # or two of them would write the same
            waiting, self._waiting = self._waiting, set()
            failed: OSError | None = None
            try:
                while waiting:
                    some = sorted(waiting)[:_PARTITIONS_AT_ONCE]
                    found = await self._transcript.to_copy(some, _BATCH)
                    errors = await self._copy(found)
                    self._waiting |= errors.keys()
                    failed = failed or next(iter(errors.values()), None)
                    # What was not full was seen whole.
                    waiting -= {one for one in some if one in errors or len(found.get(one, ())) < _BATCH}
            finally:
                self._waiting |= waiting
            if failed is not None:
                raise failed

    async def _copy(self, found: Mapping[int, Sequence[ToCopy]]) -> dict[int, OSError]:
        """Copy what was *found* in partitions. A file that cannot be written keeps no other from it; their errors."""
        by_key: dict[ConversationKey, list[ToCopy]] = {}
        for one in itertools.chain.from_iterable(found.values()):
            by_key.setdefault(one.key, []).append(one)
        if not by_key:
            return {}
        paths = {key: self._data_dir / markdown.path(key) for key in by_key}
        # If this is interrupted, who knows how much of it is there.
        whole = {path: self._whole.pop(path) for path in paths.values() if path in self._whole}
        failed = await asyncio.to_thread(self._do_all, by_key, paths, whole)
        copied: dict[int, list[str]] = {}
        for key, ordered in by_key.items():
            if key not in failed:
                copied.setdefault(key.partition, []).extend(one.export_id for one in ordered)
        await self._transcript.copied(copied)
        self._whole |= whole
        while len(self._whole) > _REMEMBERED:
            del self._whole[next(iter(self._whole))]
        return {key.partition: error for key, error in failed.items()}

    def _do_all(
        self,
        by_key: Mapping[ConversationKey, Sequence[ToCopy]],
        paths: Mapping[ConversationKey, Path],
        whole: dict[Path, int],
    ) -> dict[ConversationKey, OSError]:
        """The errors, by conversation; *whole* is brought up to date."""
        failed: dict[ConversationKey, OSError] = {}
        with self._writing:  # a thread goes on where its task was cancelled
            for key, ordered in by_key.items():
                path = paths[key]
                try:
                    for what in _steps(ordered):
                        bytes_then = whole.pop(path, None)
                        if isinstance(what, Forget):
                            _forget(path, what)
                        else:
                            whole[path] = _append(path, key, what, bytes_then)
                except OSError as error:
                    failed[key] = error
        return failed


def _forget(path: Path, what: Forget) -> None:
    """Take a turn out of the file, or the file away. The file is whole at every moment."""
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


def _append(path: Path, key: ConversationKey, entries: Iterable[Entry], whole_bytes: int | None) -> int:
    """Put *entries* at the end of the file: what of them is not there yet. None of them is where it has *whole_bytes*.
    How many bytes it has then."""
    # A message's text comes as it is: line ends and half surrogate pairs too.
    text = "".join(map(markdown.render, entries)).encode("utf-8", "surrogatepass")
    with open(path, "ab+", opener=_open_in_place) as file:
        size = file.seek(0, os.SEEK_END)
        if size != whole_bytes or size == 0:
            text = _unwritten(file, size, markdown.title(key).encode(), text)
        file.write(text)
    return size + len(text)


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


def _open_in_place(path: str, flags: int) -> int:
    """`_open_private`, with the folder where there is none yet."""
    try:
        return _open_private(path, flags)
    except FileNotFoundError:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _open_private(path, flags)


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
