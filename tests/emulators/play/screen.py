"""Where a person types and sees, or where a script is read from and written to."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Protocol

from connectors.console import neutralise
from connectors.console.terminal import PlainTerminal, Unreadable

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples

DIM, ANN, BOT, BAD = "2", "36", "32", "33"
_LIVE_LINES = 8


class Screen(Protocol):
    """Lines in, lines out."""

    @property
    def width(self) -> int | None:
        """Characters in a line; None where lines may be of any length."""

    def opened(self) -> AbstractContextManager[object]:
        """Inside, lines may be written while one is typed."""

    async def read(self) -> str | None:
        """The next line; None at the end."""

    def write(self, *pieces: tuple[str, str]) -> None:
        """One line (or some) of pieces of text, each with its colour."""


def _plain(pieces: Iterable[tuple[str, str]]) -> str:
    return neutralise("".join(text for text, _ in pieces))


class ScriptScreen:
    """A file or a pipe: what is read is not echoed, and nothing is coloured."""

    def __init__(self, source: IO[bytes], output: IO[str] = sys.stdout) -> None:
        self._terminal = PlainTerminal(source, output, sys.stderr)
        self._output = output

    @property
    def width(self) -> int | None:
        return None

    def opened(self) -> AbstractContextManager[object]:
        return nullcontext()

    async def read(self) -> str | None:
        try:
            return await self._terminal.read_line()
        except Unreadable as error:
            return f"/say {error}"

    def write(self, *pieces: tuple[str, str]) -> None:
        self._output.write(_plain(pieces) + "\n")
        self._output.flush()


class TerminalScreen:
    """A person's terminal: what is being written grows above the line that is typed."""

    def __init__(
        self, words: Sequence[str], prompt: Callable[[], str], live: Callable[[], list[tuple[str, str]]]
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter

        self._prompt, self._live = prompt, live
        self._colours = "NO_COLOR" not in os.environ
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            completer=WordCompleter(list(words), sentence=True),
            complete_while_typing=False,
            refresh_interval=0.1,
            erase_when_done=True,
        )

    @property
    def width(self) -> int | None:
        return max(20, shutil.get_terminal_size().columns - 1)

    def opened(self) -> AbstractContextManager[object]:
        from prompt_toolkit.patch_stdout import patch_stdout

        return patch_stdout(raw=True)

    async def read(self) -> str | None:
        try:
            return await self._session.prompt_async()
        except (EOFError, KeyboardInterrupt):
            return None

    def write(self, *pieces: tuple[str, str]) -> None:
        clean = [(neutralise(text), colour) for text, colour in pieces]
        print("".join(self._coloured(text, colour) for text, colour in clean))

    def _coloured(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if colour and self._colours else text

    def _message(self) -> StyleAndTextTuples:
        width = self.width or 0
        shown: StyleAndTextTuples = []
        for who, text in self._live():
            lines = [piece for line in neutralise(text).splitlines() for piece in folded(line, width - 4)]
            more = ["…"] if len(lines) > _LIVE_LINES else []
            body = "\n".join(f"    {line}" for line in [*more, *lines[-_LIVE_LINES:]])
            shown.append(("ansibrightblack", f"{who} …\n{body}\n"))
        return [*shown, ("ansicyan bold", self._prompt())]


def folded(line: str, width: int | None) -> list[str]:
    """*line* in lines of at most *width* characters, between words where it can be; indented ones stay so."""
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, replace_whitespace=False, drop_whitespace=False) or [""]
