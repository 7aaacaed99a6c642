"""Small documents of every kind that is read, made as the programs of their kinds make them; and hostile ones."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import openpyxl
from pypdf import PdfReader, PdfWriter

_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
_P = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
_R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
_RELATIONS = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'
_TYPES = 'xmlns="http://schemas.openxmlformats.org/package/2006/content-types"'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_ODF = "urn:oasis:names:tc:opendocument:xmlns"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c636000010000000500"
    "010d0a2db40000000049454e44ae426082"
)
"""One transparent pixel."""
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
"""The media type of `docx`."""
OGG = b"OggS\x00\x02" + bytes(60)


def archive(members: dict[str, str | bytes]) -> bytes:
    """A zip of *members*, compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def pdf(*pages: str) -> bytes:
    """A PDF with a line of Latin text on each page."""
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {5 + 2 * index} 0 R >>"
        )
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    data, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"xref\n0 {len(offsets) + 1}\n0000000000 65535 f \n{table}"
    trailer = f"trailer\n<< /Size {len(offsets) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + (end + trailer).encode()


def encrypted_pdf(text: str, password: str) -> bytes:
    """A PDF that asks for *password*; for an empty one readers ask nobody."""
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(text))))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="AES-256")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def docx(body: str, before: str = "") -> bytes:
    """A Word document with *body* as WordprocessingML; *before* stands before its root element."""
    return archive(
        {
            "[Content_Types].xml": f'<Types {_TYPES}><Default Extension="xml" ContentType="application/xml"/></Types>',
            "_rels/.rels": f'<Relationships {_RELATIONS}><Relationship Id="r1" Type="{_OFFICE}/officeDocument" '
            'Target="word/document.xml"/></Relationships>',
            "word/document.xml": f"{before}<w:document {_W}><w:body>{body}</w:body></w:document>",
        }
    )


def paragraph(text: str, style: str = "") -> str:
    """One paragraph for `docx`; *style* is e.g. ``Heading1``."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def table(*rows: Sequence[str]) -> str:
    """A table for `docx`."""
    cells = ["".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) for row in rows]
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in cells) + "</w:tbl>"


def xlsx(**sheets: Sequence[Sequence[object]]) -> bytes:
    """A workbook with *sheets* of rows."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(list(row))
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def pptx(*slides: Sequence[str], shown: Sequence[int] | None = None) -> bytes:
    """A presentation whose *slides* have paragraphs; *shown* is the order of their numbers (from 1)."""
    order = shown or range(1, len(slides) + 1)
    listed = "".join(f'<p:sldId id="{255 + number}" r:id="rId{number}"/>' for number in order)
    relations = "".join(
        f'<Relationship Id="rId{number}" Type="{_OFFICE}/slide" Target="slides/slide{number}.xml"/>'
        for number in range(1, len(slides) + 1)
    )
    members: dict[str, str | bytes] = {
        "[Content_Types].xml": f"<Types {_TYPES}/>",
        "ppt/presentation.xml": f"<p:presentation {_P} {_R}><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": f"<Relationships {_RELATIONS}>{relations}</Relationships>",
    }
    for number, texts in enumerate(slides, 1):
        said = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in texts)
        members[f"ppt/slides/slide{number}.xml"] = f"<p:sld {_P} {_A}><p:txBody>{said}</p:txBody></p:sld>"
    return archive(members)


def odt(body: str) -> bytes:
    """An OpenDocument text with *body* as its content."""
    names = " ".join(f'xmlns:{name}="{_ODF}:{name}:1.0"' for name in ("office", "text", "table"))
    content = f"<office:document-content {names}><office:body><office:text>{body}</office:text></office:body>"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("mimetype", "application/vnd.oasis.opendocument.text")  # first, and not compressed
        file.writestr("content.xml", content + "</office:document-content>", zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


LAUGHS = (
    '<!DOCTYPE w [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefgh", "bcdefghi", strict=True))
    + "]>"
)
"""Entities that expand to hundreds of megabytes."""
EXTERNAL = '<!DOCTYPE w [<!ENTITY i SYSTEM "file:///etc/passwd">]>'
"""An entity that is another file."""


def bomb() -> bytes:
    """A Word document of a few hundred kilobytes that expands to 300 MB."""
    return archive({"[Content_Types].xml": "<Types/>", "word/document.xml": b" " * 300_000_000})
