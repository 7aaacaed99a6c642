"""What was worked out of the last texts, so that it need not be worked out again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

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
        young, old, lacking = self._young, self._old, []
        for text in texts:
            name = hash(text), len(text)
            if name not in young and name not in old:
                lacking.append(text)
        return lacking

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
        found: list[V] = []
        young = self._young
        for text in texts:
            known = young.get((hash(text), len(text)))
            if known is None:
                known = self.of(text, find)
                young = self._young
            found.append(known)
        return found


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
