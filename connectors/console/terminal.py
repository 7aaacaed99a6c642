"""Read lines from a terminal and write text to it, with prompt_toolkit on a real terminal, else with plain streams."""

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

from connectors.console.convert import render

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.formatted_text import AnyFormattedText

PROMPT = "you> "
MAX_LINE_BYTES = 1_000_000
REDRAW_SECONDS = 0.05
KEPT_LINES = 6
"""Lines of the screen that stay free for the prompt and for text above a growing answer."""

_RESET = "\x1b[0m"


class Style(StrEnum):
    """The role of a piece of text, which decides its colour."""

    QUESTION = "question"
    PLAIN = "plain"
    DIM = "dim"
    WARNING = "warning"


_COLOURS: Mapping[Style, str] = {Style.QUESTION: "\x1b[1m", Style.DIM: "\x1b[2m", Style.WARNING: "\x1b[33m"}


class Interrupted(Exception):
    """The person pressed Ctrl-C at the prompt."""


class Unreadable(Exception):
    """A line was skipped because it is not UTF-8 text or too long. The error's text says which."""


class Terminal(Protocol):
    """A source of lines and a target for text. It writes text unchanged: callers must neutralise it first."""

    interactive: bool
    """Whether a person is at the terminal and reads messages while they wait."""
    live: bool
    """Whether the terminal can show a growing answer and read lines at the same time."""

    @property
    def columns(self) -> int:
        """The width of the terminal; 0 if it is unknown, or if a program reads the output."""

    async def read_line(self) -> str | None:
        """Read the next line, without its line end; None at the end of input. Raises `Interrupted` and `Unreadable`."""

    async def write(self, text: str, style: Style) -> None:
        """Write whole lines unchanged. Raises `OSError` if the output is closed."""

    async def write_markdown(self, text: str) -> None:
        """Write rendered blocks of Markdown and a line end. Raises `OSError`."""

    async def show_growing(self, text: str) -> None:
        """Show *text* (Markdown) below the written text, in place of the previous growing text.

        An empty text removes it. Does nothing if the terminal is not `live`. Raises `OSError`.
        """

    async def complain(self, text: str) -> None:
        """Write one line about a problem, outside the regular output. Raises `OSError`."""

    def interrupts(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Inside the context, Ctrl-C calls *callback* instead of ending the process."""


class PlainTerminal:
    """A terminal on plain streams. A daemon thread reads the lines.

    Renders Markdown if *columns* is not 0, else writes it unchanged.
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
        self._line_requests: queue.SimpleQueue[asyncio.Future[bytes]] = queue.SimpleQueue()
        self._byte_reader: threading.Thread | None = None

    async def read_line(self) -> str | None:
        if self._prompt:
            await self.write(self._prompt, Style.PLAIN)
        if self._byte_reader is None:
            # Not a pool's thread: the interpreter waits for those when it exits, but the next line may never come.
            self._byte_reader = threading.Thread(target=self._read, name="console-reader", daemon=True)
            self._byte_reader.start()
        line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._line_requests.put(line)
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
            future = self._line_requests.get()
            try:
                line = self._source.readline(self._max_line_bytes + 1)
                rest = line
                while rest and not rest.endswith(b"\n") and len(line) > self._max_line_bytes:
                    rest = self._source.readline(self._max_line_bytes)  # skip the rest of an overlong line
            except (OSError, ValueError):
                line = b""  # the stream was closed
            try:
                future.get_loop().call_soon_threadsafe(_set_result_if_pending, future, line)
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
    """A real terminal. At the bottom is the prompt, with history and Tab completion; above it the growing answer; above
    that the written text, which scrolls like the output of any program.

    Tab completes the beginning of a line to one of *words*.
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
            message=self._prompt_text,
            completer=WordCompleter(list(self._words), sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=keys,
            erase_when_done=True,  # the connector writes the line itself, directly above its answer
        )
        session.app.min_redraw_interval = REDRAW_SECONDS
        return session

    def _prompt_text(self) -> AnyFormattedText:
        """Return the last lines of the growing answer, as many as fit on the screen, and the prompt."""
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

            # Writes above the prompt, which prompt_toolkit then draws again below.
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
    """Open this process's terminal: with prompt_toolkit, or plain for pipes, files and dumb terminals.

    With *one_shot*, no line is read and Ctrl-C ends the process. Tab completes *words*.
    """
    writes_to_terminal = sys.stdout.isatty()
    is_terminal = not one_shot and sys.stdin.isatty() and writes_to_terminal
    can_move_cursor = environment.get("TERM", "") not in ("", "dumb")
    colours = can_move_cursor and "NO_COLOR" not in environment
    if is_terminal and can_move_cursor:
        return PromptTerminal(sys.stdout, colours=colours, words=words)
    return PlainTerminal(
        _byte_reader(sys.stdin),
        sys.stdout,
        sys.stderr,
        prompt=PROMPT if is_terminal else "",
        columns=shutil.get_terminal_size().columns if writes_to_terminal else 0,
        colours=colours,
    )


def _byte_reader(stream: TextIO) -> IO[bytes]:
    """Return a reader of the bytes of *stream*, separate from its own reader if it is a file.

    When the interpreter exits, it closes the stream's own reader and aborts if a thread still waits in it.
    """
    raw = getattr(stream.buffer, "raw", None)
    return io.BufferedReader(io.FileIO(raw.fileno(), closefd=False)) if isinstance(raw, io.FileIO) else stream.buffer


@contextmanager
def on_interrupt(callback: Callable[[], None]) -> Iterator[None]:
    """Inside the context, SIGINT calls *callback* in the event loop. Does nothing if no signal handler can be set."""
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


def _set_result_if_pending(future: asyncio.Future[bytes], line: bytes) -> None:
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
