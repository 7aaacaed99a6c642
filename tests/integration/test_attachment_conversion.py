"""Documents become Markdown in a process of their own, and hostile ones become a sentence."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.connector import AttachmentUnavailable
from runtime.attachments import files
from runtime.attachments.files import Conversion
from runtime.attachments.formats import Text
from runtime.attachments.media import sniff
from tests.emulators import documents as made

LONGEST = 20_000
ROOT = Path(__file__).parents[2]


async def read(data: bytes, name: str, *, pages: int = 50, most: int = LONGEST, seconds: float = 30) -> Text:
    return await Conversion(pages, seconds).text(data, sniff(data), name, most)


async def refusal(data: bytes, name: str, *, seconds: float = 30) -> str:
    with pytest.raises(AttachmentUnavailable) as refused:
        await read(data, name, seconds=seconds)
    return refused.value.user_text


async def test_a_pdf_is_read_page_by_page_up_to_the_limit() -> None:
    data = made.pdf("Tyres cost 40 euros", "Second page", "Third page")
    assert await read(data, "a.pdf") == Text("Tyres cost 40 euros\n\nSecond page\n\nThird page")
    assert await read(data, "a.pdf", pages=1) == Text("Tyres cost 40 euros", "only the first 1 of 3 pages")


async def test_a_word_document_keeps_headings_and_tables() -> None:
    body = (
        made.paragraph("Prices", "Heading1") + made.paragraph("Of &lt;tyres&gt;.") + made.table(("a", "b"), ("1", "2"))
    )
    found = await read(made.docx(body), "a.docx")
    assert found.text.startswith("# Prices\n\nOf <tyres>.\n\n| ")
    assert "| 1 | 2 |" in found.text


async def test_a_workbook_is_one_table_per_sheet() -> None:
    data = made.xlsx(Stock=[("part", "count"), ("tyre|winter", 4), (None, None), ("rim", 2)], Empty=[], More=[("x",)])
    found = await read(data, "a.xlsx", pages=2)
    assert found.text == ("## Stock\n\n| part | count |\n| --- | --- |\n| tyre\\|winter | 4 |\n| rim | 2 |\n\n## Empty")
    assert found.note == "only the first 2 of 3 sheets"


async def test_slides_are_read_in_the_order_in_which_they_are_shown() -> None:
    found = await read(made.pptx(("Welcome", "to all"), ("Prices",), shown=(2, 1)), "a.pptx")
    assert found.text == "## Slide 1\n\nPrices\n\n## Slide 2\n\nWelcome\n\nto all"


async def test_an_opendocument_text_keeps_headings_lists_and_tables() -> None:
    body = (
        '<text:h text:outline-level="2">Prices</text:h><text:p>Of<text:s text:c="2"/>tyres</text:p>'
        "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
        "<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell>"
        "<table:table-cell><text:p>b</text:p></table:table-cell></table:table-row></table:table>"
    )
    assert (await read(made.odt(body), "a.odt")).text == "## Prices\n\nOf  tyres\n\n- one\n\n| a | b |"


async def test_a_web_page_loses_what_is_not_read() -> None:
    page = b"<html><head><title>t</title></head><body><h1>Prices</h1><script>x()</script><p>of <b>tyres</b></p>"
    assert (await read(page, "a.html")).text == "# Prices\n\nof **tyres**"


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
async def test_text_of_any_usual_encoding_is_read_as_it_is(data: bytes, text: str) -> None:
    assert await read(data, "a.txt") == Text(text)


async def test_a_long_document_is_cut_and_says_so() -> None:
    assert await read(b"word " * 1000, "a.txt", most=100) == Text(("word " * 20), "its beginning only: it is long")


async def test_what_a_file_is_counts_for_more_than_its_name() -> None:
    found = await read(made.docx(made.paragraph("Words")), "report.pdf")
    assert found == Text("Words")


async def test_the_child_knows_no_secret_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_SLACK_BOT_TOKEN", "xoxb-secret")
    process = await files._spawn()
    environment = await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)
    await files._end(process)
    assert b"PYTHONPATH" in environment
    assert b"secret" not in environment


async def test_a_protected_pdf_is_read_only_where_no_password_is_asked_for() -> None:
    assert (await read(made.encrypted_pdf("Words", ""), "a.pdf")).text == "Words"
    assert await refusal(made.encrypted_pdf("Words", "secret"), "a.pdf") == "it is protected by a password"


async def test_a_pdf_without_text_is_said_to_be_a_scan() -> None:
    assert await refusal(made.pdf(""), "a.pdf") == "it contains no text (perhaps it is scanned)"


@pytest.mark.parametrize("before", [made.LAUGHS, made.EXTERNAL, "<!-- " + " " * 9000 + "-->" + made.EXTERNAL])
async def test_entities_are_not_expanded(before: str) -> None:
    document = made.docx(made.paragraph("&i;"), before)
    assert "document type definition" in await refusal(document, "a.docx")


async def test_entities_in_another_encoding_are_not_expanded_either() -> None:
    xml = f'<?xml version="1.0" encoding="utf-16"?>{made.EXTERNAL}<p/>'
    data = made.archive({"[Content_Types].xml": "<Types/>", "ppt/presentation.xml": xml.encode("utf-16")})
    assert "document type definition" in await refusal(data, "a.pptx")


async def test_an_archive_that_expands_to_far_too_much_is_refused() -> None:
    assert await refusal(await asyncio.to_thread(made.bomb), "a.docx") == "it expands to far too much"


async def test_a_huge_sheet_is_read_no_further_than_is_shown() -> None:
    rows = [[f"row {number}", number] for number in range(5_000)]
    data = await asyncio.to_thread(lambda: made.xlsx(Stock=rows))
    found = await read(data, "a.xlsx", most=1000)
    assert len(found.text) == 1000
    assert found.note == "its beginning only: it is long"


@pytest.mark.parametrize(
    ("data", "name", "why"),
    [
        (b"%PDF-1.4\nnothing of the kind", "a.pdf", "damaged"),
        (made.docx("")[:-80], "a.docx", "damaged"),
        (made.archive({"xl/workbook.xml": "<a/>", "[Content_Types].xml": "<Types/>"}), "a.xlsx", "damaged"),
        (made.archive({"ppt/presentation.xml": "<a/>"}), "a.pptx", "damaged"),
        (made.archive({"a.txt": "x"}), "a.zip", "an archive"),
        (b"MZ\x90\x00\x03\x00", "a.pdf", "a program"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", "a.docx", "old or encrypted Office file"),
        (b"\x00\x01\x02", "a.bin", "not a kind that I know"),
        (b"<html>" + b"<div>" * 50_000 + b"x", "a.html", "nested too deeply"),
    ],
)
async def test_what_cannot_be_read_is_told_in_words(data: bytes, name: str, why: str) -> None:
    assert why in await refusal(data, name)


async def test_a_document_that_takes_too_long_is_given_up_and_its_process_ended() -> None:
    rows = [[f"row {number}", number] for number in range(2_000)]
    data = await asyncio.to_thread(lambda: made.xlsx(Stock=rows))
    with pytest.raises(AttachmentUnavailable, match=r"longer than 0\.05 seconds"):
        await read(data, "a.xlsx", most=50_000_000, seconds=0.05)
    assert not await asyncio.to_thread(_children)


def test_the_child_can_take_neither_much_memory_nor_write_a_file(tmp_path: Path) -> None:
    tried = (
        "from runtime.attachments.child import MEMORY_BYTES, limit\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "limit(5)\n"
        "try: bytearray(MEMORY_BYTES)\n"
        "except MemoryError: print('no memory')\n"
        f"try: open({str(tmp_path / 'x')!r}, 'w', buffering=1).write('words\\n')\n"
        "except OSError: print('no file')\n"
    )
    done = subprocess.run([sys.executable, "-c", tried], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout.split("\n")[:2] == ["no memory", "no file"]


def _children() -> list[str]:
    """Command lines of this process's living children that convert something."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            command = (process / "cmdline").read_bytes().decode()
        except OSError:  # it has just ended
            continue
        if parent == str(os.getpid()) and state != "Z" and "attachments.child" in command:
            found.append(command)
    return found
