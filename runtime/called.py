"""The calls of tools in a streamed answer, put together out of the pieces that they come in. Pure.

By OpenAI's protocol the pieces of one call have one index: id and name come once, the arguments bit by bit. Servers
that speak it also give every call the same index or none, no id, the same id to several calls or a new one to every
piece, say a name again or in parts, and repeat a call at its end. What a piece belongs to is then told by what is there
already.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class _Held:
    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether nothing can follow its arguments."""
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


class Called:
    """What has come of the calls of one answer, the tools *offered* for which are known by their names."""

    def __init__(self, offered: Collection[str] = ()) -> None:
        self._offered = offered
        self._held: dict[int, _Held] = {}
        self._moved: dict[int, int] = {}
        """Where the call stands that the next piece of an index belongs to, if not there."""

    def add(self, index: int, id: str, name: str, arguments: str) -> None:  # noqa: A002 - as the protocol calls it
        """Take one piece; what it does not say is empty."""
        at = self._moved.get(index, index)
        if at in self._held and self._says_again(self._held[at], id, name, arguments):
            return
        if at in self._held and self._begins_another(self._held[at], id, name, arguments):
            at = self._moved[index] = max(self._held) + 1
        held = self._held.setdefault(at, _Held())
        held.id = held.id or id
        if not held.name or self._is_rest(held, name):
            held.name += name
        held.arguments += arguments

    @property
    def all(self) -> tuple[tuple[str, str, str], ...]:
        """Id, name and arguments of each call so far, in their order; once, where one came under several indices."""
        found: list[tuple[str, str, str]] = []
        for _, one in sorted(self._held.items()):
            call = one.id, one.name, one.arguments
            if not one.id or call not in found:
                found.append(call)
        return tuple(found)

    def _says_again(self, held: _Held, id: str, name: str, arguments: str) -> bool:  # noqa: A002 - as above
        """Whether all of the call *held* is there and comes once more: done twice it might make something twice."""
        if not arguments or (name and not id) or id not in ("", held.id) or name not in ("", held.name):
            return False
        return held.is_whole and held.arguments in (arguments, _told_as_text(arguments))

    def _begins_another(self, held: _Held, id: str, name: str, arguments: str) -> bool:  # noqa: A002 - as above
        has_other_id = bool(id and held.id) and id != held.id
        if not name:
            return has_other_id and held.is_whole
        if has_other_id:
            return name != held.name or not held.arguments or held.is_whole
        if held.is_whole and held.name:
            return bool(arguments) or name != held.name
        return name != held.name and name in self._offered and held.name in self._offered

    def _is_rest(self, held: _Held, name: str) -> bool:
        """Whether *name* is a further part of the name, and not the same name once more."""
        return name != held.name and (held.name not in self._offered or held.name + name in self._offered)


def _told_as_text(arguments: str) -> str | None:
    """The text that *arguments* are the JSON of, where they are that: some gateways wrap a repeated call so."""
    try:
        text = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None
