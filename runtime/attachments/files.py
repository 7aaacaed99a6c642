"""Fetches the files that came with messages, and converts documents to text. Time, size and memory are limited.

`Locator` finds a file, `Files` fetches it, `Conversion` converts it in a child process of its own, so that no document
can harm, stall or read this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import uuid
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter

from config.settings import Settings
from connectors.connector import AttachmentUnavailable, Connector, LocatesAttachments, Location
from connectors.message import Attachment
from runtime.attachments.network import Fetched, Network, check_type, too_large
from runtime.conversion import (
    DOCX,
    HTML,
    IMAGES,
    ODT,
    PDF,
    PPTX,
    READABLE,
    TEXT,
    XLSX,
    Refused,
    Text,
    as_words,
    convert,
    plain_type,
)
from runtime.coordination import Hub, News
from runtime.embedded import die_with_parent

FETCHES_AT_ONCE = 4
"""Files that are fetched at the same time: a limit on memory."""
CONVERSIONS_AT_ONCE = 2
"""Conversions at the same time; each may use a whole processor."""
REAP_SECONDS = 2.0
LONGEST_CHARACTER_BYTES = 6
"""A JSON escape of one character; those beyond the basic plane take two."""
_ROOM_BYTES = 10_000
DOCUMENT_TYPES = frozenset(
    {
        *(PDF, DOCX, XLSX, PPTX, ODT, HTML, "text/*"),
        *("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"),
        *("application/javascript", "application/x-javascript", "application/sql", "application/x-sh"),
        *("application/x-ndjson", "application/rtf", "application/csv", "application/xhtml+xml"),
        # Windows calls a CSV so; an old workbook is recognised by its bytes.
        *("application/vnd.ms-excel",),
    }
)
"""Types that a document may be declared as, or turn out to be; `Conversion` knows which it can read."""
IMAGE_TYPES = frozenset(IMAGES)
AUDIO_TYPES = frozenset({"audio/*", "application/ogg", "video/mp4", "video/webm", "video/ogg"})
"""Types of voice messages; a container without a picture is often declared a video."""
_log = structlog.get_logger()
ASK = "locate.ask"
ANSWER = "locate.told"
"""Topics of the hub."""
NOT_FROM_HERE = "files cannot be fetched from here"
_ATTACHMENT = TypeAdapter(Attachment)
_LOCATION = TypeAdapter(Location)


# Where a file lies


class Locator:
    """Asks the *connectors* of this process, or the other processes if this one does not run the connector."""

    def __init__(self, connectors: Mapping[str, Connector], hub: Hub) -> None:
        self._connectors = connectors
        self._hub = hub
        self._pending: dict[str, asyncio.Future[News]] = {}
        self._questions: asyncio.Queue[News] = asyncio.Queue(1000)
        hub.hear(ASK, self._hear_question)
        hub.hear(ANSWER, self._hear_answer)

    async def locate(self, connector: str, attachment: Attachment) -> Location:
        """Return where *attachment* lies. Raises `AttachmentUnavailable`. Without a time limit: the caller sets one."""
        own = self._connectors.get(connector)
        if own is not None:
            if not isinstance(own, LocatesAttachments):
                raise AttachmentUnavailable(NOT_FROM_HERE)
            return await own.locate(attachment)
        question = uuid.uuid4().hex
        answer = self._pending[question] = asyncio.get_running_loop().create_future()
        try:
            news = {
                "id": question,
                "by": self._hub.name,
                "connector": connector,
                "attachment": _ATTACHMENT.dump_python(attachment, mode="json"),
            }
            await self._hub.tell(ASK, news)
            reply = await answer
        finally:
            del self._pending[question]
        if reply["refused"]:
            raise AttachmentUnavailable(reply["refused"])
        return _LOCATION.validate_python(reply["location"])

    async def run(self) -> None:
        """Answer the questions of other processes, until cancelled."""
        async with asyncio.TaskGroup() as answers:
            while True:
                answers.create_task(self._answer(await self._questions.get()))

    async def _answer(self, question: News) -> None:
        reply: dict[str, Any] = {"id": question["id"], "refused": "", "location": None}
        try:
            location = await self.locate(question["connector"], _ATTACHMENT.validate_python(question["attachment"]))
            reply["location"] = _LOCATION.dump_python(location, mode="json")
        except AttachmentUnavailable as error:
            reply["refused"] = error.user_text
        await self._hub.tell(ANSWER, reply, question["by"])

    def _hear_question(self, question: News) -> None:
        if question["connector"] in self._connectors and not self._questions.full():
            self._questions.put_nowait(question)

    def _hear_answer(self, reply: News) -> None:
        answer = self._pending.get(reply["id"])
        if answer is not None and not answer.done():
            answer.set_result(reply)


# Fetching


class Files:
    """Files of messages."""

    def __init__(
        self,
        settings: Settings,
        locates: Locator,
        network: Network | None = None,
        *,
        max_pages: int = 50,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._settings = settings
        self.timeout_seconds = timeout_seconds
        """Time limit of fetching one file, and of reading it."""
        self._locates = locates
        self._network = network
        self._conversion = Conversion(max_pages, timeout_seconds)
        self._slots = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def fetch(
        self, connector: str, attachment: Attachment, allowed: frozenset[str], max_bytes: int | None = None
    ) -> Fetched:
        """Return the bytes of *attachment*, which came through *connector* and must be of an *allowed* type.

        Raises `AttachmentUnavailable` for every failure.
        """
        most = min(max_bytes or self._settings.attachment_max_bytes, self._settings.attachment_max_bytes)
        if attachment.size_bytes > most:
            raise too_large(attachment.size_bytes, most)
        seconds = self.timeout_seconds
        async with self._slots:
            try:
                async with asyncio.timeout(seconds):
                    location = await self._locates.locate(connector, attachment)
                    if location.path:
                        return await asyncio.to_thread(_read, location.path, attachment.media_type, most, allowed)
                    # aiohttp is imported with the first file, not at every start.
                    fetcher: Any = await asyncio.to_thread(importlib.import_module, "runtime.attachments.fetch")
                    fetched: Fetched = await fetcher.fetch(location, most, allowed, seconds, self._network)
                    return fetched
            except AttachmentUnavailable:
                raise
            except TimeoutError as error:
                raise AttachmentUnavailable(f"fetching it took longer than {seconds:g} seconds") from error
            except Exception as error:
                # An adapter or a library failed on somebody's file: the turn goes on without it.
                _log.exception("attachment.failed", connector=connector, media_type=attachment.media_type)
                raise AttachmentUnavailable("something went wrong with it here") from error

    async def text(self, connector: str, attachment: Attachment, most: int, max_bytes: int | None = None) -> Text:
        """Return *attachment* as Markdown of at most *most* characters. Raises `AttachmentUnavailable`."""
        fetched = await self.fetch(connector, attachment, DOCUMENT_TYPES, max_bytes)
        if fetched.media_type == HTML and not _is_web_page(attachment):
            # A platform that does not accept our token any more answers with its login page.
            raise AttachmentUnavailable("the platform sent a web page in its place")
        return await self._conversion.text(fetched.data, fetched.media_type, attachment.name, most)


def _read(path: str, declared: str, most: int, allowed: frozenset[str]) -> Fetched:
    """Read a file that was uploaded on the chat page."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise AttachmentUnavailable("it is not on the machine that answers, or was deleted") from None
    if len(data) > most:
        raise too_large(len(data), most)
    return Fetched(data, check_type(data, plain_type(declared), allowed))


def _is_web_page(attachment: Attachment) -> bool:
    return plain_type(attachment.media_type) == HTML or attachment.name.lower().endswith((".html", ".htm", ".xhtml"))


# Converting


class Conversion:
    """Converts documents to text. *pages* and *seconds* limit each."""

    def __init__(self, pages: int, seconds: float) -> None:
        self._pages = pages
        self._seconds = seconds
        self._slots = asyncio.Semaphore(CONVERSIONS_AT_ONCE)

    async def text(self, data: bytes, kind: str, name: str, most: int) -> Text:
        """Return *data*, recognised as *kind* and named *name*, as Markdown of at most *most* characters.

        Raises `AttachmentUnavailable`.
        """
        if kind == TEXT and name.lower().endswith((".html", ".htm", ".xhtml")):
            kind = HTML
        if kind not in READABLE:
            raise AttachmentUnavailable(f"it is {as_words(kind)}, which I cannot read")
        if kind == TEXT:  # without a parser, so without a child
            return await asyncio.to_thread(_plain, data, self._pages, most)
        async with self._slots:
            return await self._in_a_child(data, kind, most)

    async def _in_a_child(self, data: bytes, kind: str, most: int) -> Text:
        order = {"kind": kind, "pages": self._pages, "characters": most, "seconds": self._seconds}
        try:
            process = await _spawn()
        except OSError as error:
            _log.warning("attachment.failed", media_type=kind, error=str(error))
            raise AttachmentUnavailable("something went wrong with it here") from error
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
        return convert(data, TEXT, pages, most)
    except Refused as refused:
        raise AttachmentUnavailable(str(refused)) from refused


async def _spawn() -> Process:
    # Without this process's environment: it holds secrets, and the child reads a stranger's file.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-sP", "-m", "runtime.conversion.child"),
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
