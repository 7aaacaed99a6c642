"""A terminal without a screen: lines are typed into it by tests, and what was written can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from connectors.console.terminal import Style


class FakeTerminal:
    """Implements `connectors.console.terminal.Terminal`.

    ``written`` is everything written, by style, ``answers`` what of it was Markdown, ``growing`` what was shown of
    answers that were being written; ``complaints`` what went beside it. ``typed`` may hold lines, None for the end, and
    errors to be raised.
    """

    def __init__(self, *, interactive: bool = True, live: bool = False) -> None:
        self.interactive = interactive
        self.live = live
        self.columns = 0
        self.typed: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.reads = 0
        self.written: list[tuple[Style, str]] = []
        self.complaints: list[str] = []
        self.answers: list[str] = []
        self.growing: list[str] = []
        self.interrupt: Callable[[], None] | None = None
        """What Ctrl-C would call now."""
        self.gone = False

    async def read_line(self) -> str | None:
        self.reads += 1
        line = await self.typed.get()
        if isinstance(line, Exception):
            raise line
        return line

    async def write(self, text: str, style: Style) -> None:
        if self.gone:
            raise BrokenPipeError("nobody reads")
        self.written.append((style, text))

    async def complain(self, text: str) -> None:
        if self.gone:
            raise BrokenPipeError("nobody reads")
        self.complaints.append(text)

    async def write_markdown(self, text: str) -> None:
        await self.write(text + "\n", Style.PLAIN)
        self.answers.append(text)

    async def show_growing(self, text: str) -> None:
        self.growing.append(text)

    @contextmanager
    def interrupts(self, callback: Callable[[], None]) -> Iterator[None]:
        self.interrupt = callback
        try:
            yield
        finally:
            self.interrupt = None

    def type(self, *lines: str | Exception | None) -> None:
        for line in lines:
            self.typed.put_nowait(line)

    def text(self, style: Style | None = None) -> str:
        """All that was written, or all of one style."""
        return "".join(text for written_as, text in self.written if style in (None, written_as))
