"""Converts each document in a child process of its own, so that none can harm, stall or read this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

import structlog

from connectors.connector import AttachmentUnavailable
from runtime.attachments import media
from runtime.attachments.formats import READABLE, Refused, Text, convert
from runtime.embedded import die_with_parent

AT_ONCE = 2
"""Conversions at the same time; each may use a whole processor."""
REAP_SECONDS = 2.0
LONGEST_CHARACTER_BYTES = 6
"""A JSON escape of one character; those beyond the basic plane take two."""
_ROOM_BYTES = 10_000
_log = structlog.get_logger()


class Conversion:
    """Converts documents to text. *pages* and *seconds* limit each."""

    def __init__(self, pages: int, seconds: float) -> None:
        self._pages = pages
        self._seconds = seconds
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def text(self, data: bytes, kind: str, name: str, most: int) -> Text:
        """Return *data*, recognised as *kind* and named *name*, as Markdown of at most *most* characters.

        Raises `AttachmentUnavailable`.
        """
        if kind == media.TEXT and name.lower().endswith((".html", ".htm", ".xhtml")):
            kind = media.HTML
        if kind not in READABLE:
            raise AttachmentUnavailable(f"it is {media.as_words(kind)}, which I cannot read")
        if kind == media.TEXT:  # without a parser, so without a child
            return await asyncio.to_thread(_plain, data, self._pages, most)
        async with self._slots:
            return await self._in_a_child(data, kind, most)

    async def _in_a_child(self, data: bytes, kind: str, most: int) -> Text:
        order = {"kind": kind, "pages": self._pages, "characters": most, "seconds": self._seconds}
        process = await _spawn()
        try:
            async with asyncio.timeout(self._seconds):
                answer = await _ask(process, json.dumps(order).encode() + b"\n" + data, most)
                await process.wait()
        except TimeoutError as error:
            raise AttachmentUnavailable(f"reading it took longer than {self._seconds:g} seconds") from error
        finally:
            await _end(process)
        return self._parse_answer(answer, process, kind)

    def _parse_answer(self, raw: bytes, process: Process, kind: str) -> Text:
        try:
            answer: dict[str, Any] = json.loads(raw)
        except ValueError:
            _log.warning("attachment.failed", media_type=kind, exit_code=process.returncode)
            if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
                raise AttachmentUnavailable(f"reading it took longer than {self._seconds:g} seconds") from None
            raise AttachmentUnavailable("it is damaged, or needs too much memory to be read") from None
        if "refused" in answer:
            if "error" in answer:
                _log.info("attachment.failed", media_type=kind, error=answer["error"])
            raise AttachmentUnavailable(str(answer["refused"]))
        return Text(str(answer["text"]), str(answer["note"]))


def _plain(data: bytes, pages: int, most: int) -> Text:
    try:
        return convert(data, media.TEXT, pages, most)
    except Refused as refused:
        raise AttachmentUnavailable(str(refused)) from refused


async def _spawn() -> Process:
    # Without this process's environment: it holds secrets, and the child reads a stranger's file.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-sP", "-m", "runtime.attachments.child"),
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),
        process_group=0,
    )


async def _ask(process: Process, order: bytes, most: int) -> bytes:
    """Return the child's answer to *order*; end the child if it is longer than any valid answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):  # it ended early; its answer or exit code says why
        process.stdin.write(order)
        await process.stdin.drain()
    process.stdin.close()
    limit = 2 * LONGEST_CHARACTER_BYTES * most + _ROOM_BYTES
    answer = bytearray()
    while len(answer) <= limit and (piece := await process.stdout.read(65_536)):
        answer += piece
    if len(answer) > limit:
        process.kill()
    return bytes(answer)


async def _end(process: Process) -> None:
    """End the child, in bounded time."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_SECONDS):
            await asyncio.shield(process.wait())
