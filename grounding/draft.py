"""A block before it is cut: its text in pieces, its budget, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass

from grounding.blocks import SEPARATOR, Block, Place
from grounding.sections import Section
from grounding.tokens import Tokens, utf8_length

NO_CEILING_BYTES = 2**31
NOTHING = Section()


@dataclass(frozen=True, slots=True)
class Two:
    """Two sections in one block: the first may have *first_tokens*, the second what is left, and yields first.

    ``floor`` is of the second what yields to nothing: it stands there whole even where it is over the limits. Whoever
    sets them sees to it that it is not, or gives up.
    """

    first: Section
    second: Section
    first_tokens: int
    floor: Section = NOTHING

    def fit(self, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        """The text of both within both limits."""
        least = self.least
        if not least:
            return self._fit(tokens, max_tokens, max_bytes)
        kept = tokens.count(least) + tokens.count(SEPARATOR)
        text = self._fit(tokens, max_tokens, max_bytes, kept, utf8_length(least) + utf8_length(SEPARATOR))
        return text if all(piece in text for piece in self.floor.pieces) else least

    @property
    def least(self) -> str:
        """What always stands there."""
        return self.floor.whole

    def _fit(self, tokens: Tokens, max_tokens: int, max_bytes: int, kept_tokens: int = 0, kept_bytes: int = 0) -> str:
        first_tokens = min(self.first_tokens, max_tokens - kept_tokens)
        one = self.first.fit(tokens, max(first_tokens, 0), max(max_bytes - kept_bytes, 0))
        if not one:
            return self.second.fit(tokens, max_tokens, max_bytes)
        left = max_tokens - tokens.count(one) - tokens.count(SEPARATOR)
        room = max_bytes - utf8_length(one) - utf8_length(SEPARATOR)
        while left > 0 and room > 0 and (other := self.second.fit(tokens, left, room)):
            both = one + SEPARATOR + other
            if tokens.fits(both, max_tokens):
                return both
            left -= 1  # tokens at the joint may merge or split
        return one

    @property
    def whole(self) -> str:
        return SEPARATOR.join(text for text in (self.first.whole, self.second.whole) if text)


@dataclass(frozen=True, slots=True)
class Draft:
    """``budget`` is in tokens; ``why`` says where the text came from, or why there is none; ``placed`` is for
    blocks that are not in `grounding.blocks.PLACES`."""

    section: Section | Two
    budget: int
    why: str
    placed: Place | None = None

    @property
    def least(self) -> str:
        """What stands there whatever else has to go."""
        return self.section.least if isinstance(self.section, Two) else ""

    def block(self, name: str, text: str, tokens: Tokens) -> Block:
        """The block of that *name* with what is left of the draft: *text*."""
        return Block(name, text, tokens.count(text), self.budget, self._why(text), self.placed)

    def _why(self, text: str) -> str:
        whole = self.section.whole
        if whole and not text:
            return f"{self.why}; no room"
        return f"{self.why}; cut to fit" if text != whole else self.why
