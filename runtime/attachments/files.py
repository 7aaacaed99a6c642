"""One file that came with a message: found on its platform, fetched, and made text. Everything is bounded."""

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
from runtime.media import DOCX, HTML, IMAGES, ODT, PDF, PPTX, XLSX, plain_type
from runtime.reachable import Fetched, Network, check_type, too_large

AT_ONCE = 4
"""Files that are fetched side by side, so that they never fill the memory together."""
DOCUMENT_TYPES = frozenset(
    {
        *(PDF, DOCX, XLSX, PPTX, ODT, HTML, "text/*"),
        *("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"),
        *("application/javascript", "application/x-javascript", "application/sql", "application/x-sh"),
        *("application/x-ndjson", "application/rtf", "application/csv", "application/xhtml+xml"),
        # What Windows calls a CSV; if it is an old workbook its bytes say so.
        *("application/vnd.ms-excel",),
    }
)
"""What may be declared, or found, of a document; which of them can be read its conversion knows."""
IMAGE_TYPES = frozenset(IMAGES)
AUDIO_TYPES = frozenset({"audio/*", "application/ogg", "video/mp4", "video/webm", "video/ogg"})
"""Voice messages; containers without a picture are often called videos."""
_log = structlog.get_logger()


class Locates(Protocol):
    """What knows where a connector's files lie; see `runtime.locating.Locator.locate`."""

    async def locate(self, connector: str, attachment: Attachment) -> Location: ...


class Files:
    """Files of messages, by the connectors that they came through."""

    def __init__(self, settings: Settings, locates: Locates, network: Network | None = None) -> None:
        self._settings = settings
        self._locates = locates
        self._network = network
        self._conversion = Conversion(settings.attachment_max_pages, settings.attachment_timeout_seconds)
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def fetch(
        self, connector: str, attachment: Attachment, allowed: frozenset[str], max_bytes: int | None = None
    ) -> Fetched:
        """The bytes of *attachment*, which came through *connector* and is one of *allowed*.

        Raises `AttachmentUnavailable`, whatever went wrong.
        """
        most = min(max_bytes or self._settings.attachment_max_bytes, self._settings.attachment_max_bytes)
        if attachment.size_bytes > most:
            raise too_large(attachment.size_bytes, most)
        seconds = self._settings.attachment_timeout_seconds
        async with self._slots:
            try:
                async with asyncio.timeout(seconds):
                    location = await self._locates.locate(connector, attachment)
                    if location.path:
                        return await asyncio.to_thread(_read, location.path, attachment.media_type, most, allowed)
                    # What it is made with is imported by the first file that comes, not by every start.
                    fetcher: Any = await asyncio.to_thread(importlib.import_module, "runtime.fetch")
                    fetched: Fetched = await fetcher.fetch(location, most, allowed, seconds, self._network)
                    return fetched
            except AttachmentUnavailable:
                raise
            except TimeoutError as error:
                raise AttachmentUnavailable(f"fetching it took longer than {seconds:g} seconds") from error
            except Exception as error:
                # An adapter or a library broke on a stranger's file: the turn goes on without it.
                _log.exception("attachment.failed", connector=connector, media_type=attachment.media_type)
                raise AttachmentUnavailable("something went wrong with it here") from error

    async def text(self, connector: str, attachment: Attachment, most: int, max_bytes: int | None = None) -> Text:
        """*attachment* as Markdown of at most *most* characters. Raises `AttachmentUnavailable`."""
        fetched = await self.fetch(connector, attachment, DOCUMENT_TYPES, max_bytes)
        if fetched.media_type == HTML and not _is_web_page(attachment):
            # A platform that no longer knows us answers with the page on which people sign in.
            raise AttachmentUnavailable("the platform sent a web page in its place")
        return await self._conversion.text(fetched.data, fetched.media_type, attachment.name, most)


def _read(path: str, declared: str, most: int, allowed: frozenset[str]) -> Fetched:
    """The file at *path*, which our own page took. Raises `AttachmentUnavailable`."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise AttachmentUnavailable("it is not on the machine that answers, or was deleted") from None
    if len(data) > most:
        raise too_large(len(data), most)
    return Fetched(data, check_type(data, plain_type(declared), allowed))


def _is_web_page(attachment: Attachment) -> bool:
    return plain_type(attachment.media_type) == HTML or attachment.name.lower().endswith((".html", ".htm", ".xhtml"))
