"""A mapping that does not grow for ever."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_REMEMBERED = 5000


class Recent(Generic[_Key, _Value]):
    """A mapping that keeps the newest *size* entries."""

    def __init__(self, size: int = _REMEMBERED) -> None:
        self._size = size
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def drop(self, key: _Key) -> None:
        """Forget *key*, if it is known."""
        self._entries.pop(key, None)

    def newest(self, count: int) -> list[tuple[_Key, _Value]]:
        """The *count* entries that were put or read last, the newest first."""
        return [(key, self._entries[key]) for key, _ in zip(reversed(self._entries), range(count), strict=False)]

    def __contains__(self, key: _Key) -> bool:
        return key in self._entries
