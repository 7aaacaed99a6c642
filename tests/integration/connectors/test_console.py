"""Real streams, and a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.console.terminal import PlainTerminal, Style, Unreadable, on_interrupt

ROOT = Path(__file__).parents[3]

CHAT = textwrap.dedent(
    """
    import asyncio, sys
    from connectors.console.connector import ConsoleConnector
    from connectors.console.terminal import open_terminal
    from connectors.message import Accepted, ConversationKey, OutboundMessage, OutboundPart

    KEY = ConversationKey("sample", "console", "default")

    async def main():
        chat = ConsoleConnector(open_terminal(), wait_seconds=20, banner="BANNER")
        tasks, hanging = set(), []

        async def answer(message):
            await chat.typing(KEY)
            if "hang" in message.text:
                hanging.append(message)
                return
            if message.text == "/stop":
                reply = OutboundMessage(KEY, "t", "", answers=(hanging[-1].message_id,), silent=True, kind="reply")
                await chat.send(reply, OutboundPart(0, 1, "", token="t"))
                return
            await chat.stream(KEY, (message.message_id,), "echo ")
            reply = OutboundMessage(KEY, "t", f"echo {len(message.text)} \\x1b[31m", answers=(message.message_id,))
            await chat.send(reply, chat.render(reply)[0])

        async def accept(message):
            tasks.add(asyncio.create_task(answer(message)))
            return Accepted("stored")

        await chat.run(accept)
        return chat.exit_code

    sys.exit(asyncio.run(main()))
    """
)


def environment(term: str) -> dict[str, str]:
    return {**os.environ, "TERM": term, "PYTHONPATH": str(ROOT)}


def piped(text: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", CHAT], input=text, capture_output=True, timeout=60, check=False, env=environment("dumb")
    )


def test_piped_input_is_answered_line_by_line() -> None:
    """Lines from a pipe are answered, the last one without a line end too, and nothing of a terminal is written."""
    done = piped("grüß dich\n\nhi".encode())
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.decode().splitlines() if line.startswith("echo")] == [
        "echo 9 ␛[31m",
        "echo 2 ␛[31m",
    ]
    assert b"\x1b" not in done.stdout
    assert b"you>" not in done.stdout


def test_bad_lines_from_a_pipe_are_named_and_the_rest_is_answered() -> None:
    """Binary and oversized lines are left out with a word on standard error; the exit status says so."""
    done = piped(b"\xff\xfe\x00\n" + b"x" * 2_500_000 + b"\nhello\n")
    assert done.returncode == 1
    assert b"not UTF-8" in done.stderr
    assert b"longer than 1000000 bytes" in done.stderr
    assert [line for line in done.stdout.decode().splitlines() if line.startswith("echo")] == ["echo 5 ␛[31m"]


def test_an_open_pipe_does_not_keep_the_process_alive() -> None:
    """A chat whose input never ends stops when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHAT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment("dumb"),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"BANNER\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90) == -signal.SIGINT  # and not by a fatal error of the interpreter
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


class Screen:
    """A person at a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until *text* was shown after what was waited for before."""
        while text not in self.seen:
            try:
                read = os.read(self._descriptor, 65536)
            except OSError:
                read = b""
            if not read:
                raise AssertionError(f"ended without {text!r}: {self.seen!r}")
            if b"\x1b[6n" in read:  # a terminal that is asked where its cursor is says so
                os.write(self._descriptor, b"\x1b[1;1R")
            self.seen += read.decode(errors="replace")
        self.seen = self.seen.partition(text)[2]


@contextmanager
def chatting(term: str) -> Iterator[tuple[Screen, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-c", CHAT],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(term),
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    try:
        yield Screen(ours), process
    finally:
        process.kill()
        process.wait(timeout=90)
        os.close(ours)


@pytest.mark.parametrize(("term", "leave"), [("xterm-256color", "/quit\r"), ("xterm", "\x04"), ("dumb", "/quit\n")])
def test_a_person_at_a_terminal_talks_and_leaves(term: str, leave: str) -> None:
    """At a terminal of any kind the banner and prompt show, a line is answered, and leaving ends the process."""
    with chatting(term) as (screen, process):
        screen.wait_for("BANNER")
        screen.wait_for("you>")
        screen.type("hello\r" if term != "dumb" else "hello\n")
        screen.wait_for("echo 5 ␛[31m")
        screen.wait_for("you>")
        screen.type(leave)
        assert process.wait(timeout=90) == 0


def test_interrupting_at_a_terminal_stops_then_clears_then_leaves() -> None:
    """Ctrl-C while an answer is awaited stops it; then it clears the line; twice at an empty prompt it leaves."""
    with chatting("xterm") as (screen, process):
        screen.wait_for("you>")
        screen.type("hang\r")
        screen.wait_for("…")
        screen.type("\x03")
        screen.wait_for("Stopped.")
        screen.wait_for("you>")
        screen.type("half a line\x03")
        screen.type("\x03")
        screen.wait_for("/quit to leave")
        screen.wait_for("you>")
        screen.type("\x03")
        assert process.wait(timeout=90) == 0


async def test_a_narrow_encoding_is_no_error() -> None:
    """Characters that the output cannot encode are replaced."""
    raw = io.BytesIO()
    output = io.TextIOWrapper(raw, encoding="ascii")
    await PlainTerminal(io.BytesIO(), output, output).write("30 days 🕐 ü", Style.PLAIN)
    assert raw.getvalue() == b"30 days ? ?"


async def test_a_closed_output_is_told_as_a_reader_that_left() -> None:
    """Writing to a closed stream raises an OSError, as a broken pipe does."""
    output = io.StringIO()
    output.close()
    with pytest.raises(OSError):
        await PlainTerminal(io.BytesIO(), output, output).write("x", Style.PLAIN)


async def test_plain_lines_come_without_their_ends() -> None:
    """Lines end with LF or CRLF, and the end of the input is None for good."""
    terminal = PlainTerminal(io.BytesIO(b"one\r\ntwo\n\xff\nlast"), io.StringIO(), io.StringIO())
    assert [await terminal.read_line(), await terminal.read_line()] == ["one", "two"]
    with pytest.raises(Unreadable):
        await terminal.read_line()
    assert [await terminal.read_line() for _ in range(3)] == ["last", None, None]


async def test_ctrl_c_is_handled_only_inside_and_given_back() -> None:
    """Inside, an interrupt is a call; outside, the handler from before is in place again."""
    before = signal.getsignal(signal.SIGINT)
    called = asyncio.Event()
    with on_interrupt(called.set):
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(20):
            await called.wait()
    assert signal.getsignal(signal.SIGINT) is before
