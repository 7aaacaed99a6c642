"""What kind of data some bytes are, and what documents of each format become."""

from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import conversion
from runtime.attachments import size_in_words
from runtime.conversion import Refused, Text, convert
from tests.emulators import documents as made


def _zip(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"%PDF-1.7\n%\xe2\xe3", conversion.PDF),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "image/png"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg"),
        (b"GIF89a\x01\x00", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "audio/wav"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", ""),
        (b"OggS\x00\x02", "audio/ogg"),
        (b"\x00\x00\x00\x1cftypM4A \x00", "audio/mp4"),
        (b"\x00\x00\x00\x1cftypisom\x00", "video/mp4"),
        (b"MZ\x90\x00\x03\x00\x00\x00", "application/x-msdownload"),
        (b"\x7fELF\x02\x01\x01\x00", "application/x-executable"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", "application/x-ole-storage"),
        (b"# Title\n\nwords", conversion.TEXT),
        ("Grüße".encode("latin-1") + b" to all of you", conversion.TEXT),
        ("Grüße".encode("utf-16"), conversion.TEXT),
        (b"\xef\xbb\xbf<!DOCTYPE html><html>", conversion.HTML),
        (b"\n <!-- made by hand -->\n<html><body>", conversion.HTML),
        (b"a < b and <html> in the middle", conversion.TEXT),
        (b"\x00\x01\x02\x03\x04", ""),
        (b"", ""),
    ],
)
def test_the_beginning_of_the_data_tells_its_kind(data: bytes, kind: str) -> None:
    assert conversion.sniff(data) == kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("[Content_Types].xml", "word/document.xml"), conversion.DOCX),
        (("[Content_Types].xml", "xl/workbook.xml"), conversion.XLSX),
        (("[Content_Types].xml", "ppt/presentation.xml"), conversion.PPTX),
        (("a.txt", "b.exe"), "application/zip"),
    ],
)
def test_an_office_file_is_told_from_other_archives_by_what_lies_in_it(names: tuple[str, ...], kind: str) -> None:
    assert conversion.sniff(_zip(*names)) == kind


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
def test_any_text_is_taken_for_text(text: str) -> None:
    assert conversion.sniff(("words " + text).encode()) in (conversion.TEXT, conversion.HTML)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_look_at_them(data: bytes) -> None:
    assert isinstance(conversion.sniff(data), str)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (37, "37 bytes"),
        (1000, "1 kB"),
        (999_400, "999 kB"),
        (1_500_000, "1.5 MB"),
        (10_000_000, "10 MB"),
        (12_345_678, "12 MB"),
    ],
)
def test_a_size_is_told_as_people_tell_it(size: int, words: str) -> None:
    assert size_in_words(size) == words


def test_a_family_allows_all_its_members() -> None:
    assert conversion.is_among("text/x-anything", frozenset({"text/*"}))
    assert not conversion.is_among("textual/x", frozenset({"text/*"}))


def read(data: bytes, *, pages: int = 50, most: int = 20_000) -> Text:
    return convert(data, conversion.sniff(data), pages, most)


def refusal(data: bytes) -> str:
    with pytest.raises(Refused) as refused:
        read(data)
    return str(refused.value)


def test_a_pdf_is_read_page_by_page_up_to_the_limit() -> None:
    data = made.pdf("Tyres cost 40 euros", "Second page", "Third page")
    assert read(data) == Text("Tyres cost 40 euros\n\nSecond page\n\nThird page")
    assert read(data, pages=1) == Text("Tyres cost 40 euros", "only the first 1 of 3 pages")


def test_a_word_document_keeps_headings_and_tables() -> None:
    body = (
        made.paragraph("Prices", "Heading1") + made.paragraph("Of &lt;tyres&gt;.") + made.table(("a", "b"), ("1", "2"))
    )
    found = read(made.docx(body))
    assert found.text.startswith("# Prices\n\nOf <tyres>.\n\n| ")
    assert "| 1 | 2 |" in found.text


def test_a_workbook_is_one_table_per_sheet() -> None:
    data = made.xlsx(Stock=[("part", "count"), ("tyre|winter", 4), (None, None), ("rim", 2)], Empty=[], More=[("x",)])
    found = read(data, pages=2)
    assert found.text == ("## Stock\n\n| part | count |\n| --- | --- |\n| tyre\\|winter | 4 |\n| rim | 2 |\n\n## Empty")
    assert found.note == "only the first 2 of 3 sheets"


def test_slides_are_read_in_the_order_in_which_they_are_shown() -> None:
    found = read(made.pptx(("Welcome", "to all"), ("Prices",), shown=(2, 1)))
    assert found.text == "## Slide 1\n\nPrices\n\n## Slide 2\n\nWelcome\n\nto all"


def test_an_opendocument_text_keeps_headings_lists_and_tables() -> None:
    body = (
        '<text:h text:outline-level="2">Prices</text:h><text:p>Of<text:s text:c="2"/>tyres</text:p>'
        "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
        "<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell>"
        "<table:table-cell><text:p>b</text:p></table:table-cell></table:table-row></table:table>"
    )
    assert read(made.odt(body)).text == "## Prices\n\nOf  tyres\n\n- one\n\n| a | b |"


def test_lists_and_tables_inside_others_stand_there_once() -> None:
    def item(text: str, inside: str = "") -> str:
        return f"<text:list-item><text:p>{text}</text:p>{inside}</text:list-item>"

    def row(cells: str) -> str:
        return f"<table:table-row>{cells}</table:table-row>"

    def cell(text: str, inside: str = "") -> str:
        return f"<table:table-cell><text:p>{text}</text:p>{inside}</table:table-cell>"

    inner_list = f"<text:list>{item('Pear')}</text:list>"
    inner_table = f"<table:table>{row(cell('inner'))}</table:table>"
    repeated = '<table:table-cell table:number-columns-repeated="2"/>'
    body = (
        f"<text:list>{item('Fruit', inner_list)}{item('Bread')}</text:list>"
        f"<table:table><table:table-header-rows>{row(cell('head'))}</table:table-header-rows>"
        f"{row(cell('outer', inner_table))}{row(repeated + cell('third'))}</table:table>"
    )
    assert read(made.odt(body)).text == (
        "- Fruit\n  - Pear\n- Bread\n\n| head |\n| outer \\| inner \\| |\n|  |  | third |"
    )


def test_a_web_page_loses_what_is_not_read() -> None:
    page = b"<html><head><title>t</title></head><body><h1>Prices</h1><script>x()</script><p>of <b>tyres</b></p>"
    assert read(page).text == "# Prices\n\nof **tyres**"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"# Title\r\n\r\nwords  \r\n", "# Title\n\nwords"),
        ("Grüße".encode("cp1252") + b" to all of you", "Grüße to all of you"),
        ("\ufeffGrüße".encode(), "Grüße"),
        ("Grüße".encode("utf-16"), "Grüße"),
        (b'{"a": [1, 2]}', '{"a": [1, 2]}'),
        (b"a;b\n1;2", "a;b\n1;2"),
    ],
)
def test_text_of_any_usual_encoding_is_read_as_it_is(data: bytes, text: str) -> None:
    assert read(data) == Text(text)


def test_a_long_document_is_cut_and_says_so() -> None:
    assert read(b"word " * 1000, most=100) == Text(("word " * 20), "its beginning only: it is long")


def test_a_protected_pdf_is_read_only_where_no_password_is_asked_for() -> None:
    assert read(made.encrypted_pdf("Words", "")).text == "Words"
    assert refusal(made.encrypted_pdf("Words", "secret")) == "it is protected by a password"


def test_a_pdf_without_text_is_said_to_be_a_scan() -> None:
    assert refusal(made.pdf("")) == "it contains no text (perhaps it is scanned)"


@pytest.mark.parametrize("before", [made.LAUGHS, made.EXTERNAL, "<!-- " + " " * 9000 + "-->" + made.EXTERNAL])
def test_entities_are_not_expanded(before: str) -> None:
    document = made.docx(made.paragraph("&i;"), before)
    assert "document type definition" in refusal(document)


def test_entities_in_another_encoding_are_not_expanded_either() -> None:
    xml = f'<?xml version="1.0" encoding="utf-16"?>{made.EXTERNAL}<p/>'
    data = made.archive({"[Content_Types].xml": "<Types/>", "ppt/presentation.xml": xml.encode("utf-16")})
    assert "document type definition" in refusal(data)


def test_a_huge_sheet_is_read_no_further_than_is_shown() -> None:
    rows = [[f"row {number}", number] for number in range(5_000)]
    data = made.xlsx(Stock=rows)
    found = read(data, most=1000)
    assert len(found.text) == 1000
    assert found.note == "its beginning only: it is long"
