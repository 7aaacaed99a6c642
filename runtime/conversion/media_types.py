"""Recognises the type of a file by its bytes. Names and declared types are claims, so neither is trusted."""

from __future__ import annotations

import codecs
import re

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
ODT = "application/vnd.oasis.opendocument.text"
HTML = "text/html"
TEXT = "text/plain"
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
UNDECLARED = frozenset(
    (
        "",
        "application/octet-stream",
        "binary/octet-stream",
        "application/binary",
        "application/download",
        "application/x-download",
        "application/force-download",
        "application/zip",
        "application/x-zip-compressed",
    )
)
"""Types that say nothing about the data: servers send them if they do not know better."""

_LOOKED_AT_BYTES = 4096
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"%PDF-", PDF),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"),
    (b"fLaC", "audio/flac"),
    (b"#!AMR", "audio/amr"),
    (b"\x1aE\xdf\xa3", "audio/webm"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"{\\rtf", "application/rtf"),
    (b"\x1f\x8b", "application/gzip"),
    (b"7z\xbc\xaf'\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/x-msdownload"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
_ZIP = b"PK\x03\x04"
_IN_ZIP = ((b"word/document.xml", DOCX), (b"xl/workbook.", XLSX), (b"ppt/presentation.xml", PPTX))
_LIKE_HTML = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_NOT_IN_TEXT = frozenset(range(32)) - frozenset(b"\t\n\r\f\v\b\x1b")


def sniff(data: bytes) -> str:
    """Return the media type of *data* by its content; empty if it is unknown.

    Every text is ``text/plain``, except HTML.
    """
    if data.startswith(_ZIP):
        return _zipped(data)
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12], "")
    if data[4:8] == b"ftyp":
        return "audio/mp4" if data[8:11] in (b"M4A", b"M4B") else "video/mp4"
    head = data[:_LOOKED_AT_BYTES]
    if _is_text(head):
        return HTML if _LIKE_HTML.match(head.removeprefix(b"\xef\xbb\xbf")) else TEXT
    return next((kind for beginning, kind in _BEGINNINGS if data.startswith(beginning)), "")


def _zipped(data: bytes) -> str:
    if data[30:38] == b"mimetype" and data[38 : 38 + len(ODT)] == ODT.encode():
        return ODT
    return next((kind for name, kind in _IN_ZIP if name in data), "application/zip")


def _is_text(head: bytes) -> bool:
    """Return whether *head* begins a text: UTF-16 with a byte order mark, or an ASCII-like encoding."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return len(head) > 2
    if head.startswith((b"%PDF-", b"{\\rtf", b"GIF8")):
        return False
    return bool(head) and not _NOT_IN_TEXT.intersection(head) and _mostly_ascii_or_utf8(head)


def _mostly_ascii_or_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # incremental: the cut may split a character
    except UnicodeDecodeError:
        # In an old 8-bit encoding most letters are plain ASCII.
        return sum(byte < 128 for byte in head) >= len(head) * 0.7
    return True


def plain_type(declared: str) -> str:
    """Return a ``Content-Type`` without its parameters, in lower case."""
    return declared.partition(";")[0].strip().lower()


def is_among(kind: str, allowed: frozenset[str]) -> bool:
    """Return whether *kind* is in *allowed*; ``text/*`` there means all types of the family."""
    return kind in allowed or f"{kind.partition('/')[0]}/*" in allowed


def as_words(kind: str) -> str:
    """Return *kind* for people, e.g. ``a PDF`` or ``a program``."""
    known = {
        PDF: "a PDF",
        DOCX: "a Word document",
        XLSX: "an Excel workbook",
        PPTX: "a PowerPoint presentation",
        ODT: "an OpenDocument text",
        HTML: "a web page",
        TEXT: "text",
        "application/x-ole-storage": "an old or encrypted Office file",
        "application/x-executable": "a program",
        "application/x-msdownload": "a program",
        "application/rtf": "an RTF file",
    }
    if kind in known:
        return known[kind]
    if kind in ("application/zip", "application/gzip", "application/x-7z-compressed", "application/vnd.rar"):
        return "an archive"
    family = kind.partition("/")[0]
    return {"image": "an image", "audio": "a sound", "video": "a video"}.get(family, "not a kind that I know")
