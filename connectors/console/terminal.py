"""The person's terminal: lines in, text out. With prompt_toolkit where there is a real one, else plain."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

PROMPT = "you> "
MAX_LINE_BYTES = 1_000_000

_RESET = "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"


class Style(StrEnum):
    """What a piece of text is, where colours are to be had."""

    ANSWER = "answer"
    PLAIN = "plain"
    DIM = "dim"
    WARNING = "warning"


_COLOURS: Mapping[Style, str] = {Style.DIM: "\x1b[2m", Style.WARNING: "\x1b[33m"}


class Interrupted(Exception):
    """The person pressed Ctrl-C at the prompt."""


class Unreadable(Exception):
    """A line came that is no text, or too long; it was left out. The text says why."""


class Terminal(Protocol):
    """Where lines come from and text goes to."""

    interactive: bool
    """Whether a person sits there and can be told things while they wait."""

    async def read_line(self) -> str | None:
        """The next line, without its end; None when no more will come. Raises `Interrupted` and `Unreadable`."""

    async def write(self, text: str, style: Style) -> None:
        """Write *text* as it is: the caller has neutralised it. Raises `OSError` when nobody reads any more."""

    async def complain(self, text: str) -> None:
        """Say one line that is no part of the output proper. Raises `OSError`."""

    async def status(self, text: str) -> None:
        """Show *text* until the next output; empty takes it away. Only where a person looks. Raises `OSError`."""

    def interrupts(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """While inside, Ctrl-C calls *callback* instead of ending the process."""


class PlainTerminal:
    """Standard streams, or anything like them. A line that comes is read in a thread that ends with the process."""

    def __init__(
        self,
        source: IO[bytes],
        output: IO[str],
        errors: IO[str],
        *,
        prompt: str = "",
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.interactive = bool(prompt)
        self._source = source
        self._output = output
        self._errors = errors
        self._prompt = prompt
        self._max_line_bytes = max_line_bytes
        self._wanted: queue.SimpleQueue[asyncio.Future[bytes]] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None

    async def read_line(self) -> str | None:
        if self._prompt:
            await self.write(self._prompt, Style.PLAIN)
        if self._reader is None:
            # Not a pool's thread: the interpreter waits for those at its end, and nobody may ever type a line.
            self._reader = threading.Thread(target=self._read, name="console-reader", daemon=True)
            self._reader.start()
        line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._wanted.put(line)
        return self._decode(await line)

    def _decode(self, line: bytes) -> str | None:
        if not line:
            return None
        if len(line) > self._max_line_bytes:
            raise Unreadable(f"a line is longer than {self._max_line_bytes} bytes and was left out")
        try:
            return line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise Unreadable("a line is not UTF-8 text and was left out") from None

    def _read(self) -> None:
        while True:
            future = self._wanted.get()
            try:
                line = self._source.readline(self._max_line_bytes + 1)
                rest = line
                while rest and not rest.endswith(b"\n") and len(line) > self._max_line_bytes:
                    rest = self._source.readline(self._max_line_bytes)  # the rest of a line that is too long
            except (OSError, ValueError):
                line = b""  # the stream was closed: no more will come
            try:
                future.get_loop().call_soon_threadsafe(_set_unless_done, future, line)
            except RuntimeError:  # the loop was closed
                return

    async def write(self, text: str, style: Style) -> None:
        _write(self._output, text)

    async def complain(self, text: str) -> None:
        _write(self._errors, text + "\n")

    async def status(self, text: str) -> None:
        return

    @contextmanager
    def interrupts(self, callback: Callable[[], None]) -> Iterator[None]:
        if self.interactive:
            with on_interrupt(callback):
                yield
        else:
            yield


class PromptTerminal:
    """A real terminal: editing, history within the session, colours."""

    interactive = True

    def __init__(self, output: IO[str], *, colours: bool) -> None:
        self._output = output
        self._colours = colours
        self._status = False
        self._session: PromptSession[str] | None = None

    async def read_line(self) -> str | None:
        if self._session is None:
            from prompt_toolkit import PromptSession

            self._session = PromptSession(message=PROMPT)
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise Interrupted from None

    async def write(self, text: str, style: Style) -> None:
        colour = _COLOURS.get(style, "") if self._colours else ""
        await self._print(f"{colour}{text}{_RESET}" if colour else text)

    async def complain(self, text: str) -> None:
        await self.write(text + "\n", Style.WARNING)

    async def status(self, text: str) -> None:
        if self._status or not text:
            await self._print("")
        if text:
            await self._print(f"{_COLOURS[Style.DIM]}{text}{_RESET}" if self._colours else text)
            self._status = True

    async def _print(self, text: str) -> None:
        if self._status:
            text = _CLEAR_LINE + text
            self._status = False
        if self._session is not None and self._session.app.is_running:
            from prompt_toolkit.application import run_in_terminal

            # Above the line that is being typed, which is drawn again below.
            with_line_end = text if text.endswith("\n") else text + "\n"
            await run_in_terminal(lambda: _write(self._output, with_line_end))
        else:
            _write(self._output, text)

    @contextmanager
    def interrupts(self, callback: Callable[[], None]) -> Iterator[None]:
        with on_interrupt(callback):
            yield


def open_terminal(environment: Mapping[str, str] = os.environ, *, one_shot: bool = False) -> Terminal:
    """The terminal of this process: prompt_toolkit's, or plain for pipes, files and terminals that can do nothing.

    Nothing is read for *one_shot*, and Ctrl-C ends the process.
    """
    is_terminal = not one_shot and sys.stdin.isatty() and sys.stdout.isatty()
    term = environment.get("TERM", "")
    if is_terminal and term not in ("", "dumb"):
        return PromptTerminal(sys.stdout, colours="NO_COLOR" not in environment)
    return PlainTerminal(_reader(sys.stdin), sys.stdout, sys.stderr, prompt=PROMPT if is_terminal else "")


def _reader(stream: TextIO) -> IO[bytes]:
    """The bytes of *stream*; those of a file by a reader of our own.

    At its end the interpreter closes the reader that *stream* has, and aborts where a thread still waits in it.
    """
    raw = getattr(stream.buffer, "raw", None)
    return io.BufferedReader(io.FileIO(raw.fileno(), closefd=False)) if isinstance(raw, io.FileIO) else stream.buffer


@contextmanager
def on_interrupt(callback: Callable[[], None]) -> Iterator[None]:
    """While inside, SIGINT calls *callback* in the event loop; where signals cannot be had, nothing changes."""
    loop = asyncio.get_running_loop()
    previous = signal.getsignal(signal.SIGINT)
    try:
        loop.add_signal_handler(signal.SIGINT, callback)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, previous)


def _set_unless_done(future: asyncio.Future[bytes], line: bytes) -> None:
    if not future.done():
        future.set_result(line)


def _write(output: IO[str], text: str) -> None:
    try:
        output.write(text)
    except UnicodeEncodeError:  # the terminal's encoding lacks a character
        encoding = getattr(output, "encoding", None) or "ascii"
        output.write(text.encode(encoding, "replace").decode(encoding))
    except ValueError as error:  # written to a closed file
        raise BrokenPipeError(str(error)) from error
    output.flush()
