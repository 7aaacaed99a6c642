"""Server-sent events, read as they come. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EventParser:
    """Turns pieces of a stream (WHATWG HTML, 9.2.6) into pairs of event name and JSON data.

    Only line feeds and carriage returns end a line: other line separators of Unicode may stand in the data.
    """

    _rest: bytes = b""
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, piece: bytes) -> Iterator[tuple[str, Any]]:
        """The events that *piece* completes. Raises `ValueError` for data that is no JSON."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            event = self._line(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _line(self, line: str) -> tuple[str, Any] | None:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            return None
        name, data = self._name or "message", "\n".join(self._data)
        self._name, self._data = "", []
        return (name, json.loads(data)) if data else None
