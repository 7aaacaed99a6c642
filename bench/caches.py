"""What prefix caches of the kinds that there are would have kept of a row of prompts, token for token. Pure.

None of them ever forgets, so each figure is what is to be had at best. Sources: vLLM, "Automatic Prefix Caching" (a
hash chain over full blocks of 16 tokens); platform.openai.com, "Prompt caching" (prompts of 1,024 tokens and more, in
steps of 128).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """How a cache keeps beginnings: in whole ``step``s of tokens, of prompts of at least ``least`` tokens."""

    name: str
    step: int
    least: int = 0


VLLM = Kind("vLLM, blocks of 16", 16)
OPENAI = Kind("OpenAI, steps of 128 from 1,024", 128, 1024)
EXACT = Kind("to the token", 1)


@dataclass
class Counted:
    """Tokens of all prompts, and how many of them were kept."""

    tokens: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        return sum(self.cached) / sum(self.tokens)

    @property
    def uncached(self) -> float:
        """Tokens a turn that had to be read."""
        return (sum(self.tokens) - sum(self.cached)) / len(self.tokens)

    @property
    def sent(self) -> float:
        """Tokens a turn."""
        return sum(self.tokens) / len(self.tokens)

    def add(self, tokens: int, cached: int) -> None:
        self.tokens.append(tokens)
        self.cached.append(cached)


class Cache:
    """One cache. At least one token of a prompt is always read anew: its answer begins there."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._kept: set[Hashable] = set()

    def read(self, prompt: Sequence[int]) -> int:
        """How many of the tokens of *prompt* are kept; all whole steps of it are from now on."""
        chain, found, is_known = 0, 0, True
        for end in range(self._kind.step, len(prompt) + 1, self._kind.step):
            chain = hash((chain, *prompt[end - self._kind.step : end]))
            if (is_known := is_known and chain in self._kept) and end < len(prompt):
                found = end
            self._kept.add(chain)
        return found if len(prompt) >= self._kind.least and found >= self._kind.least else 0


def simulated(kind: Kind, prompts: Iterable[tuple[str, Sequence[int]]], *, is_shared: bool) -> Counted:
    """*prompts* in their order, each with the name of its conversation; in one cache for all where it *is_shared*, else
    in one for each conversation."""
    caches: dict[str, Cache] = {}
    counted = Counted()
    for name, prompt in prompts:
        cache = caches.setdefault("" if is_shared else name, Cache(kind))
        counted.add(len(prompt), cache.read(prompt))
    return counted
