"""Converts documents to Markdown: one function per format.

All but `plain` run only in the child process, where hostile data can do no harm, and which imports the libraries. Each
stops after *most* characters, and after *pages* pages, sheets or slides.
"""

from __future__ import annotations

import io
import itertools
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element

from runtime.conversion.media_types import DOCX, HTML, ODT, PDF, PPTX, TEXT, XLSX

MAX_MEMBERS = 5_000
MAX_EXPANDED_BYTES = 200_000_000
MAX_COLUMNS = 100
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_BLANK_LINES = re.compile(r"\n{3,}")
_SPACE_AT_END = re.compile(r"[ \t]+\n")


class Refused(Exception):
    """The file cannot be read; the text says why, for the person who sent it."""


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a document, and a note about what was left out (may be empty)."""

    text: str
    note: str = ""


def convert(data: bytes, kind: str, pages: int, most: int) -> Text:
    """Return *data* of the media type *kind* as Markdown of at most *most* characters.

    Raises `Refused`, `MemoryError`, and what the formats' libraries raise.
    """
    found = _CONVERTERS[kind](data, pages, most)
    text = _SPACE_AT_END.sub("\n", _BLANK_LINES.sub("\n\n", found.text.replace("\r\n", "\n").replace("\r", "\n")))
    text = text.strip()
    if not text:
        raise Refused("it contains no text" + (" (perhaps it is scanned)" if kind == PDF else ""))
    if len(text) <= most:
        return Text(text, found.note)
    cut = "its beginning only: it is long"
    return Text(text[:most], f"{found.note}; {cut}" if found.note else cut)


def plain(data: bytes, pages: int, most: int) -> Text:
    """Decode UTF-8, UTF-16 with a byte order mark, or else an old Western encoding."""
    for encoding in ("utf-16",) if data.startswith((b"\xff\xfe", b"\xfe\xff")) else ("utf-8-sig", "cp1252"):
        try:
            return Text(data.decode(encoding))
        except UnicodeDecodeError:
            continue
    return Text(data.decode("latin-1"))


def html(data: bytes, pages: int, most: int) -> Text:
    """Convert a web page. Nothing that it links to is fetched."""
    return Text(_markdown(plain(data, pages, most).text))


def _markdown(page: str) -> str:
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(page, "html.parser")
    for element in soup(["script", "style", "head", "template", "noscript", "svg", "iframe", "object", "img"]):
        element.decompose()
    return str(MarkdownConverter(heading_style="ATX", bullets="-").convert_soup(soup))


def pdf(data: bytes, pages: int, most: int) -> Text:
    """Extract the text of a PDF's first pages, in the order in which it is drawn."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Refused("it is protected by a password")
    total = len(reader.pages)
    texts = list(_until((page.extract_text() for page in itertools.islice(reader.pages, pages)), most))
    return Text("\n\n".join(texts), _shown(min(pages, total), total, "pages"))


def docx(data: bytes, pages: int, most: int) -> Text:
    """Convert a Word document with its headings, lists, tables and links, without pictures."""
    import mammoth

    _check_archive(data)
    result = mammoth.convert_to_html(io.BytesIO(data), convert_image=lambda image: [])
    return Text(_markdown(result.value))


def xlsx(data: bytes, pages: int, most: int) -> Text:
    """Convert a workbook to one table per sheet. Of formulas the last computed values are shown."""
    import openpyxl

    _check_archive(data)
    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    sheets = book.worksheets
    texts = list(_until((_sheet(sheet, most) for sheet in sheets[:pages]), most))
    return Text("\n\n".join(texts), _shown(min(pages, len(sheets)), len(sheets), "sheets"))


def _sheet(sheet: Any, most: int) -> str:
    rows = (_row(row) for row in sheet.iter_rows(values_only=True, max_col=MAX_COLUMNS))
    lines = list(_until((row for row in rows if row), most))
    if lines:
        lines.insert(1, "|" + " --- |" * (lines[0].count(" | ") + 1))
    return "\n".join((f"## {sheet.title}", "", *lines))


def _row(cells: Iterable[Any]) -> str:
    texts = ["" if cell is None else " ".join(str(cell).split()).replace("|", "\\|") for cell in cells]
    while texts and not texts[-1]:
        texts.pop()
    return f"| {' | '.join(texts)} |" if texts else ""


def pptx(data: bytes, pages: int, most: int) -> Text:
    """Extract the text of a presentation's slides, in their order."""
    archive = _check_archive(data)
    order = [reference.get(f"{_R}id", "") for reference in _xml(archive, "ppt/presentation.xml").iter(f"{_P}sldId")]
    targets = {
        element.get("Id", ""): element.get("Target", "")
        for element in _xml(archive, "ppt/_rels/presentation.xml.rels").iter()
    }
    names = ["ppt/" + targets[key].removeprefix("/ppt/") for key in order if targets.get(key)]
    slides = (
        f"## Slide {number}\n\n" + "\n\n".join(_runs(_xml(archive, name)))
        for number, name in enumerate(names[:pages], 1)
    )
    return Text("\n\n".join(_until(slides, most)), _shown(min(pages, len(names)), len(names), "slides"))


def _runs(slide: Element) -> Iterator[str]:
    for paragraph in slide.iter(f"{_A}p"):
        text = "".join(part.text or "" for part in paragraph.iter(f"{_A}t")).strip()
        if text:
            yield text


def odt(data: bytes, pages: int, most: int) -> Text:
    """Convert an OpenDocument text with its headings, paragraphs, lists and tables."""
    body = _xml(_check_archive(data), "content.xml").find(f"{_OFFICE}body/{_OFFICE}text")
    return Text("\n\n".join(_until(_flow(body), most)) if body is not None else "")


def _flow(parent: Element) -> Iterator[str]:
    for child in parent:
        if child.tag == f"{_TEXT}h":
            level = child.get(f"{_TEXT}outline-level", "1")
            yield "#" * min(int(level) if level.isdecimal() else 1, 6) + " " + _inline(child)
        elif child.tag == f"{_TEXT}p":
            yield _inline(child)
        elif child.tag == f"{_TEXT}list":
            # A list in an item is a part of the item's text, and so indented like its other lines.
            yield "\n".join("- " + "\n".join(_flow(item)).replace("\n", "\n  ") for item in child)
        elif child.tag == f"{_TABLE}table":
            rows = (_row(itertools.islice(_cells(row), MAX_COLUMNS)) for row in _rows(child))
            yield "\n".join(row for row in rows if row)
        else:
            yield from _flow(child)


def _rows(table: Element) -> Iterator[Element]:
    """Yield the rows of *table*, also those in groups, but not those of tables in its cells."""
    for child in table:
        if child.tag == f"{_TABLE}table-row":
            yield child
        else:
            yield from _rows(child)


def _cells(row: Element) -> Iterator[str]:
    for cell in row:
        count = cell.get(f"{_TABLE}number-columns-repeated", "1")
        yield from [" ".join(_flow(cell))] * min(int(count) if count.isdecimal() else 1, MAX_COLUMNS)


def _inline(element: Element) -> str:
    """Return the text of *element*, with the white space that OpenDocument writes as elements."""
    parts = [element.text or ""]
    for child in element:
        if child.tag == f"{_TEXT}s":
            count = child.get(f"{_TEXT}c", "1")
            parts.append(" " * min(int(count) if count.isdecimal() else 1, 80))
        elif child.tag in (f"{_TEXT}tab", f"{_TEXT}line-break"):
            parts.append("\t" if child.tag == f"{_TEXT}tab" else "\n")
        else:
            parts.append(_inline(child))
        parts.append(child.tail or "")
    return "".join(parts)


def _until(texts: Iterable[str], most: int) -> Iterator[str]:
    """Yield *texts* until they have more than *most* characters together; the rest is not read."""
    total = 0
    for text in texts:
        yield text
        total += len(text)
        if total > most:
            return


def _shown(shown: int, total: int, what: str) -> str:
    return f"only the first {shown} of {total} {what}" if shown < total else ""


def _check_archive(data: bytes) -> zipfile.ZipFile:
    """Open the archive in *data*. Raises `Refused` if it is encrypted, a bomb, or its XML has a document type.

    Office formats have no document type; a file with one wants entities to be expanded, or files to be read.
    """
    archive = zipfile.ZipFile(io.BytesIO(data))
    members = archive.infolist()
    if any(member.flag_bits & 1 for member in members):
        raise Refused("it is protected by a password")
    # zipfile never expands a member beyond the size that is declared here.
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > MAX_EXPANDED_BYTES:
        raise Refused("it expands to far too much")
    for member in members:
        if member.filename.endswith((".xml", ".rels")):
            part = archive.read(member)
            if any("<!DOCTYPE".encode(encoding) in part for encoding in ("utf-8", "utf-16-le", "utf-16-be")):
                raise Refused("it contains a document type definition, which no proper file of its kind does")
    return archive


def _xml(archive: zipfile.ZipFile, name: str) -> Element:
    from defusedxml.ElementTree import fromstring

    try:
        root: Element = fromstring(archive.read(name), forbid_dtd=True)
    except KeyError:
        raise Refused("it is damaged") from None
    return root


_CONVERTERS = {TEXT: plain, HTML: html, PDF: pdf, DOCX: docx, XLSX: xlsx, PPTX: pptx, ODT: odt}
READABLE = frozenset(_CONVERTERS)
"""The media types that can be converted."""
