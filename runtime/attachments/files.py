"""Fetches one file that came with a message, and converts it to text. Time, size and memory are limited."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any, Protocol

import structlog

from config.settings import Settings
from connectors.connector import AttachmentUnavailable, Location
from connectors.message import Attachment
from runtime.attachments.conversion import Conversion
from runtime.attachments.formats import Text
from runtime.attachments.media import (
    DOCX,
    HTML,
    IMAGES,
    ODT,
    PDF,
    PPTX,
    XLSX,
    Fetched,
    Network,
    check_type,
    plain_type,
    too_large,
)

AT_ONCE = 4
"""Files that are fetched at the same time: a limit on memory."""
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


class Locates(Protocol):
    """Finds a connector's files; see `runtime.attachments.locate.Locator`."""

    async def locate(self, connector: str, attachment: Attachment) -> Location: ...


class Files:
    """Files of messages."""

    def __init__(
        self,
        settings: Settings,
        locates: Locates,
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
        self._slots = asyncio.Semaphore(AT_ONCE)

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
