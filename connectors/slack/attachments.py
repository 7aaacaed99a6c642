"""Files that come with a message: as our nouns, with a handle by which they are found again. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from connectors.message import Attachment

File = Mapping[str, Any]

HIDDEN = "hidden_by_limit"
EXTERNAL = "external"
ASK = "ask"
HOSTED = "hosted"


@dataclass(frozen=True, slots=True)
class Handle:
    """``access``: `HOSTED` (``url`` has it), `ASK` (Slack says more when asked), `HIDDEN` or `EXTERNAL`."""

    file_id: str
    access: str
    url: str = ""

    def encode(self) -> str:
        """One line; URLs have no spaces."""
        return " ".join(filter(None, (self.file_id, self.access, self.url)))

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The inverse of `encode`. Raises `ValueError`."""
        file_id, _, rest = text.partition(" ")
        access, _, url = rest.partition(" ")
        if not file_id:
            raise ValueError("a file without an id")
        return cls(file_id, access or ASK, url)


def attachments_of(said: Mapping[str, Any]) -> tuple[Attachment, ...]:
    """The files of a message and of those that it forwards; deleted ones are left out."""
    return tuple(attachment_of(file) for file in _files(said) if file.get("mode") != "tombstone")


def attachment_of(file: File) -> Attachment:
    """Raises `KeyError` for a file without an id."""
    media_type = str(file.get("mimetype") or "")
    return Attachment(
        kind=_kind(media_type, file),
        name=str(file.get("name") or file.get("title") or file["id"]),
        media_type=media_type,
        size_bytes=int(file.get("size") or 0),
        handle=handle_of(file).encode(),
    )


def handle_of(file: File) -> Handle:
    """Where *file* is, as far as Slack says."""
    file_id = str(file["id"])
    if file.get("mode") == HIDDEN:
        return Handle(file_id, HIDDEN)
    if file.get("mode") == EXTERNAL or file.get("is_external"):
        return Handle(file_id, EXTERNAL)
    url = str(file.get("url_private_download") or file.get("url_private") or "")
    if file.get("file_access") == "check_file_info" or not url or any(c.isspace() for c in url):
        return Handle(file_id, ASK)
    return Handle(file_id, HOSTED, url)


def _files(said: Mapping[str, Any]) -> Iterator[File]:
    yield from said.get("files") or ()
    for shared in said.get("attachments") or ():
        if shared.get("is_share") or shared.get("is_msg_unfurl"):
            yield from shared.get("files") or ()


def _kind(media_type: str, file: File) -> Literal["document", "image", "voice", "other"]:
    if file.get("mode") == EXTERNAL or file.get("is_external"):
        return "other"
    if media_type.startswith("image/"):
        return "image"
    if media_type.startswith("audio/") or file.get("subtype") == "slack_audio":
        return "voice"
    return "other" if media_type.startswith("video/") else "document"
