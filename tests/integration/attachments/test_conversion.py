"""Documents are read in a process of their own, and hostile ones become a sentence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.connector import AttachmentUnavailable
from runtime.attachments.files import Conversion
from runtime.conversion import Text, sniff
from tests.emulators import documents as made

LONGEST = 20_000
ROOT = Path(__file__).parents[3]


async def read(data: bytes, name: str, *, pages: int = 50, most: int = LONGEST, seconds: float = 30) -> Text:
    return await Conversion(pages, seconds).text(data, sniff(data), name, most)


async def refusal(data: bytes, name: str, *, seconds: float = 30) -> str:
    with pytest.raises(AttachmentUnavailable) as refused:
        await read(data, name, seconds=seconds)
    return refused.value.user_text


async def test_what_a_file_is_counts_for_more_than_its_name() -> None:
    found = await read(made.docx(made.paragraph("Words")), "report.pdf")
    assert found == Text("Words")


async def test_an_archive_that_expands_to_far_too_much_is_refused() -> None:
    assert await refusal(await asyncio.to_thread(made.bomb), "a.docx") == "it expands to far too much"


@pytest.mark.parametrize(
    ("data", "name", "why"),
    [
        (b"%PDF-1.4\nnothing of the kind", "a.pdf", "damaged"),
        (made.archive({"a.txt": "x"}), "a.zip", "an archive"),
        (b"MZ\x90\x00\x03\x00", "a.pdf", "a program"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", "a.docx", "old or encrypted Office file"),
        (b"\x00\x01\x02", "a.bin", "not a kind that I know"),
        (b"<div>" * 50_000 + b"x", "a.html", "nested too deeply"),
    ],
)
async def test_what_cannot_be_read_is_told_in_words(data: bytes, name: str, why: str) -> None:
    assert why in await refusal(data, name)


async def test_a_document_for_which_no_process_can_be_started_becomes_a_sentence_too() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no file can be opened any more
    try:
        why = await refusal(made.docx(made.paragraph("Words")), "a.docx")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert why == "something went wrong with it here"


async def test_a_document_that_takes_too_long_is_given_up_and_its_process_ended() -> None:
    rows = [[f"row {number}", number] for number in range(2_000)]
    data = await asyncio.to_thread(lambda: made.xlsx(Stock=rows))
    with pytest.raises(AttachmentUnavailable, match=r"longer than 0\.05 seconds"):
        await read(data, "a.xlsx", most=50_000_000, seconds=0.05)
    assert not await asyncio.to_thread(_children)


async def test_the_child_reads_up_to_the_limit_and_knows_no_secret_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = made.pdf("Tyres cost 40 euros", "Second page", "Third page")
    monkeypatch.setenv("AGENT_RUNTIME_SLACK_BOT_TOKEN", "xoxb-secret")
    reading = asyncio.create_task(read(data, "a.pdf", pages=1))
    environment = b""
    while b"PYTHONPATH" not in environment and not reading.done():
        await asyncio.sleep(0.001)
        for child in await asyncio.to_thread(_children):
            with contextlib.suppress(OSError):  # it has just ended
                environment = await asyncio.to_thread((child / "environ").read_bytes)
    assert await reading == Text("Tyres cost 40 euros", "only the first 1 of 3 pages")
    assert b"PYTHONPATH" in environment
    assert b"secret" not in environment


def test_the_child_can_take_neither_much_memory_nor_write_a_file(tmp_path: Path) -> None:
    tried = (
        "from runtime.conversion.child import MEMORY_BYTES, limit\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "limit(5)\n"
        "try: bytearray(MEMORY_BYTES)\n"
        "except MemoryError: print('no memory')\n"
        f"try: open({str(tmp_path / 'x')!r}, 'w', buffering=1).write('words\\n')\n"
        "except OSError: print('no file')\n"
    )
    done = subprocess.run([sys.executable, "-c", tried], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout.split("\n")[:2] == ["no memory", "no file"]


def _children() -> list[Path]:
    """This process's living children that convert something, as they lie in /proc."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            command = (process / "cmdline").read_bytes().decode()
        except OSError:  # it has just ended
            continue
        if parent == str(os.getpid()) and state != "Z" and "conversion.child" in command:
            found.append(process)
    return found
