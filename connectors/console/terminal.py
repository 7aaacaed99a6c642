"""The person's terminal: lines in, text out. With prompt_toolkit where there is a real one, else plain."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Protocol, TextIO

from connectors.console.markdown import render

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.formatted_text import AnyFormattedText

PROMPT = "you> "
MAX_LINE_BYTES = 1_000_000
REDRAW_SECONDS = 0.05
KEPT_LINES = 6
"""Of the screen, for the line that is typed and what is above a growing answer."""

_RESET = "\x1b[0m"


class Style(StrEnum):
    """What a piece of text is, where colours are to be had."""

    QUESTION = "question"
    PLAIN = "plain"
    DIM = "dim"
    WARNING = "warning"


_COLOURS: Mapping[Style, str] = {Style.QUESTION: "\x1b[1m", Style.DIM: "\x1b[2m", Style.WARNING: "\x1b[33m"}


class Interrupted(Exception):
    """The person pressed Ctrl-C at the prompt."""


class Unreadable(Exception):
    """A line came that is no text, or too long; it was left out. The text says why."""


class Terminal(Protocol):
    """Where lines come from and text goes to. Text is shown as it is: the caller has neutralised it."""

    interactive: bool
    """Whether a person sits there and can be told things while they wait."""
    live: bool
    """Whether an answer can be shown while it grows, and lines can be read meanwhile."""

    @property
    def columns(self) -> int:
        """The width in which a person reads; 0 where that is not known, or a program reads."""

    async def read_line(self) -> str | None:
        """The next line, without its end; None when no more will come. Raises `Interrupted` and `Unreadable`."""

    async def write(self, text: str, style: Style) -> None:
        """Write whole lines as they are. Raises `OSError` when nobody reads any more."""

    async def write_markdown(self, text: str) -> None:
        """Write blocks of Markdown, rendered for a person, and a line end. Raises `OSError`."""

    async def show_growing(self, text: str) -> None:
        """Show *text* (Markdown) below all that was written, in place of the last one. Empty takes it away. Does
        nothing where the terminal is not `live`. Raises `OSError`."""

    async def complain(self, text: str) -> None:
        """Say one line that is no part of the output proper. Raises `OSError`."""

    def interrupts(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """While inside, Ctrl-C calls *callback* instead of ending the process."""


class PlainTerminal:
    """Standard streams, or anything like them. A line that comes is read in a thread that ends with the process.

    Markdown is rendered where there are *columns*, else written as it is.
    """

    live = False

    def __init__(
        self,
        source: IO[bytes],
        output: IO[str],
        errors: IO[str],
        *,
        prompt: str = "",
        columns: int = 0,
        colours: bool = False,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.interactive = bool(prompt)
        self.columns = columns
        self._colours = colours
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

    async def write_markdown(self, text: str) -> None:
        if self.columns:
            text = render(text, self.columns, colours=self._colours)
        _write(self._output, text + "\n")

    async def show_growing(self, text: str) -> None:
        return

    async def complain(self, text: str) -> None:
        _write(self._errors, text + "\n")

    @contextmanager
    def interrupts(self, callback: Callable[[], None]) -> Iterator[None]:
        if self.interactive:
            with on_interrupt(callback):
                yield
        else:
            yield


class PromptTerminal:
    """A real terminal: a line that is edited at the bottom, with history and completion by Tab; above it the answer
    that grows; above that all that was written, which scrolls away as the output of any program does.

    *words* are completed where a line begins with one of them.
    """

    interactive = True
    live = True

    @property
    def columns(self) -> int:
        return shutil.get_terminal_size().columns - 1

    def __init__(self, output: IO[str], *, colours: bool, words: Sequence[str] = ()) -> None:
        self._output = output
        self._colours = colours
        self._words = words
        self._growing = ""
        self._interrupt: Callable[[], None] | None = None
        self._session: PromptSession[str] | None = None

    async def read_line(self) -> str | None:
        if self._session is None:
            self._session = self._open_session()
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None
        except KeyboardInterrupt:
            raise Interrupted from None

    def _open_session(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.shortcuts import CompleteStyle

        keys = KeyBindings()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def interrupt(event: KeyPressEvent) -> None:
            if self._interrupt is not None:
                self._interrupt()
            elif event.app.current_buffer.text:
                event.app.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        session: PromptSession[str] = PromptSession(
            message=self._above_line,
            completer=WordCompleter(list(self._words), sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=keys,
            erase_when_done=True,  # a line is written when it is asked, so that it stands above its answer
        )
        session.app.min_redraw_interval = REDRAW_SECONDS
        return session

    def _above_line(self) -> AnyFormattedText:
        """The growing end of an answer, as much of it as has room, and the prompt."""
        from prompt_toolkit.formatted_text import ANSI

        if not self._growing:
            return PROMPT
        lines = render(self._growing, self.columns, colours=self._colours).split("\n")
        lines = lines[-max(1, shutil.get_terminal_size().lines - KEPT_LINES) :]
        return ANSI("\n".join([*lines, "", PROMPT]))

    async def write(self, text: str, style: Style) -> None:
        colour = _COLOURS.get(style, "") if self._colours else ""
        line = text.removesuffix("\n")
        await self._print(f"{colour}{line}{_RESET}\n" if colour else text)

    async def write_markdown(self, text: str) -> None:
        await self._print(render(text, self.columns, colours=self._colours) + "\n")

    async def show_growing(self, text: str) -> None:
        self._growing = text
        if self._session is not None and self._session.app.is_running:
            self._session.app.invalidate()

    async def complain(self, text: str) -> None:
        await self.write(text + "\n", Style.WARNING)

    async def _print(self, text: str) -> None:
        if self._session is not None and self._session.app.is_running:
            from prompt_toolkit.application import run_in_terminal

            # Above the line that is being typed, which is drawn again below.
            await run_in_terminal(lambda: _write(self._output, text))
        else:
            _write(self._output, text)

    @contextmanager
    def interrupts(self, callback: Callable[[], None]) -> Iterator[None]:
        self._interrupt = callback
        try:
            yield
        finally:
            self._interrupt = None


def open_terminal(
    environment: Mapping[str, str] = os.environ, *, one_shot: bool = False, words: Sequence[str] = ()
) -> Terminal:
    """The terminal of this process: prompt_toolkit's, or plain for pipes, files and terminals that can do nothing.

    Nothing is read for *one_shot*, and Ctrl-C ends the process. *words* are completed by Tab.
    """
    shows = sys.stdout.isatty()
    is_terminal = not one_shot and sys.stdin.isatty() and shows
    able = environment.get("TERM", "") not in ("", "dumb")
    colours = able and "NO_COLOR" not in environment
    if is_terminal and able:
        return PromptTerminal(sys.stdout, colours=colours, words=words)
    return PlainTerminal(
        _reader(sys.stdin),
        sys.stdout,
        sys.stderr,
        prompt=PROMPT if is_terminal else "",
        columns=shutil.get_terminal_size().columns if shows else 0,
        colours=colours,
    )


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
