"""What was worked out of the last texts, so that it need not be worked out again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """Remembers what was found of at most *most* texts. Of a text its digest is kept, not its words. Any thread may
    ask: at worst two of them find the same."""

    def __init__(self, most: int) -> None:
        # Two generations: what is used moves to the younger one; when that is full, the older one is let go.
        self._half = most // 2
        self._young: dict[bytes, V] = {}
        self._old: dict[bytes, V] = {}

    def of(self, text: str, find: Callable[[str], V]) -> V:
        """What *find* gives for *text*. It must give the same for the same text, and not None."""
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._young.get(digest)
        if known is None:
            known = self._old.get(digest)
            if known is None:
                known = find(text)
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[digest] = known
        return known
