"""What kind of data some bytes are."""

from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.attachments import media


def _zip(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"%PDF-1.7\n%\xe2\xe3", media.PDF),
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
        (b"# Title\n\nwords", media.TEXT),
        ("Grüße".encode("latin-1") + b" to all of you", media.TEXT),
        ("Grüße".encode("utf-16"), media.TEXT),
        (b"\xef\xbb\xbf<!DOCTYPE html><html>", media.HTML),
        (b"\n <!-- made by hand -->\n<html><body>", media.HTML),
        (b"a < b and <html> in the middle", media.TEXT),
        (b"\x00\x01\x02\x03\x04", ""),
        (b"", ""),
    ],
)
def test_the_beginning_of_the_data_tells_its_kind(data: bytes, kind: str) -> None:
    assert media.sniff(data) == kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("[Content_Types].xml", "word/document.xml"), media.DOCX),
        (("[Content_Types].xml", "xl/workbook.xml"), media.XLSX),
        (("[Content_Types].xml", "ppt/presentation.xml"), media.PPTX),
        (("a.txt", "b.exe"), "application/zip"),
    ],
)
def test_an_office_file_is_told_from_other_archives_by_what_lies_in_it(names: tuple[str, ...], kind: str) -> None:
    assert media.sniff(_zip(*names)) == kind


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
def test_any_text_is_taken_for_text(text: str) -> None:
    assert media.sniff(("words " + text).encode()) in (media.TEXT, media.HTML)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_look_at_them(data: bytes) -> None:
    assert isinstance(media.sniff(data), str)


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
    assert media.size_in_words(size) == words


def test_a_family_allows_all_its_members() -> None:
    assert media.is_among("text/x-anything", frozenset({"text/*"}))
    assert not media.is_among("textual/x", frozenset({"text/*"}))
