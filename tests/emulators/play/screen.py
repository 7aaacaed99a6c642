"""Where a person types and sees, or where a script is read from and written to."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Protocol

from connectors.console.convert import neutralise
from connectors.console.terminal import PlainTerminal, Unreadable

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples

DIM, ANN, BOT, BAD = "2", "36", "32", "33"
_LIVE_LINES = 8


class Screen(Protocol):
    """Lines in, lines out."""

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
        width = max(20, shutil.get_terminal_size().columns - 1)
        shown: StyleAndTextTuples = []
        for who, text in self._live():
            lines = [piece for line in neutralise(text).splitlines() for piece in _folded(line, width - 4)]
            more = ["…"] if len(lines) > _LIVE_LINES else []
            body = "\n".join(f"    {line}" for line in [*more, *lines[-_LIVE_LINES:]])
            shown.append(("ansibrightblack", f"{who} …\n{body}\n"))
        return [*shown, ("ansicyan bold", self._prompt())]


def _folded(line: str, width: int) -> list[str]:
    return [line[start : start + width] for start in range(0, len(line), width)] or [""]
