"""What was worked out of the last texts, so that it need not be worked out again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import is_
from typing import Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[V]):
    """Remembers what was found of at most *most* texts. Of a text its hash and length are kept, not its words: SipHash
    with a secret of the process, 64 bits, for a third of what a digest costs. Any thread may ask: at worst two of them
    find the same."""

    def __init__(self, most: int) -> None:
        # Two generations: what is used moves to the younger one; when that is full, the older one is let go.
        self._half = most // 2
        self._young: dict[tuple[int, int], V] = {}
        self._old: dict[tuple[int, int], V] = {}

    def lacking(self, texts: Iterable[str]) -> list[str]:
        """Those of *texts* of which nothing was found lately, in their order."""
        young, old, some = self._young, self._old, list(texts)
        named = zip(some, _names(some), strict=True)
        return [text for text, name in named if name not in young and name not in old]

    def of(self, text: str, find: Callable[[str], V]) -> V:
        """What *find* gives for *text*. It must give the same for the same text, and not None."""
        name = hash(text), len(text)
        known = self._young.get(name)
        if known is None:
            known = self._old.get(name)
            if known is None:
                known = find(text)
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
            self._young[name] = known
        return known

    def of_all(self, texts: Iterable[str], find: Callable[[str], V]) -> list[V]:
        """As `of`, of each of *texts* in their order, for less where most of them are known."""
        some = list(texts)
        found = list(map(self._young.get, _names(some)))
        if any(map(is_, found, repeat(None))):
            return [self.of(text, find) if known is None else known for text, known in zip(some, found, strict=True)]
        return cast("list[V]", found)


def _names(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    # Without a step of Python for each: of a hundred texts that is most of what it takes to find them.
    return zip(map(hash, texts), map(len, texts), strict=True)


class RecentObjects(Generic[K, V]):
    """As `Recent`, of objects, each known by what it is and not by what it holds: for those that many questions share.
    At most *most* of them are kept from being forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[int, tuple[K, V]] = {}

    def of(self, thing: K, find: Callable[[K], V]) -> V:
        """What *find* gives for *thing*. It must give the same for the same object, which never changes."""
        known = self._known.get(id(thing))
        if known is None or known[0] is not thing:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(thing)] = thing, find(thing)
        return known[1]
