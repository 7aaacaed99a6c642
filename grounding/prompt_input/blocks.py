"""The named blocks that a prompt is made of, and the prompt itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypedDict

from grounding.prompt_input.sections import Section
from grounding.prompt_input.tokens import Tokens, utf8_length

Layout = Literal["user_first", "prefix_stable"]


class Volatility(StrEnum):
    """How often the bytes of a block change."""

    STATIC = "static"  # on publish
    SESSION = "session"  # at a session's start, or a refresh
    APPENDED = "appended"  # only at its end
    TURN = "turn"  # with every message


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block stands: its message, its rank in each layout, how often it changes."""

    name: str
    message: Literal["system", "user"]
    prefix_stable: int
    user_first: int
    volatility: Volatility


PLACES: dict[str, Place] = {
    place.name: place
    for place in (
        Place("identity", "system", 1, 1, Volatility.STATIC),
        Place("global_context", "system", 2, 2, Volatility.SESSION),
        Place("codex", "system", 3, 3, Volatility.STATIC),
        Place("censors", "system", 4, 4, Volatility.STATIC),
        Place("environment", "system", 5, 5, Volatility.SESSION),
        Place("karma_floor", "system", 6, 6, Volatility.SESSION),
        Place("summary", "user", 7, 9, Volatility.SESSION),
        Place("tail", "user", 8, 10, Volatility.APPENDED),
        Place("frame", "user", 9, 11, Volatility.TURN),
        Place("records", "user", 10, 12, Volatility.TURN),
        Place("karma", "user", 11, 13, Volatility.TURN),
        Place("retrieved", "user", 12, 14, Volatility.TURN),
        Place("now", "user", 13, 15, Volatility.TURN),
        Place("hint", "user", 14, 16, Volatility.TURN),
        Place("query", "user", 15, 8, Volatility.TURN),
    )
}
"""Every block that this package may put into a prompt."""
BOUNDARY = PLACES["tail"]
"""The last block whose bytes outlast a turn, in the layout that puts those first."""


def may_follow(place: Place, volatility: Volatility) -> bool:
    """Whether text of that *volatility* may stand behind the block of *place*: what changes with every turn may not in
    front of what does not, which would be computed anew each time."""
    return volatility is not Volatility.TURN or place.prefix_stable >= BOUNDARY.prefix_stable


SEPARATOR = "\n\n"


class ChatMessage(TypedDict):
    """One message as the model's interface takes it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Block:
    """One named piece of a prompt: its canonical text and what is known about it.

    ``budget`` is in tokens. ``why`` says where the text came from, or why it is empty or cut. ``placed`` is for blocks
    that are not in `PLACES`.
    """

    name: str
    text: str
    tokens: int
    budget: int
    why: str
    placed: Place | None = None
    weighs: int = 0
    """What it takes of a model's window, where that was measured: in tokens as all other text is reckoned there."""

    @property
    def place(self) -> Place:
        return self.placed or PLACES[self.name]

    @property
    def load(self) -> int:
        """What it takes of `grounding.prompt_input.budgets.window_room`."""
        return self.weighs or self.tokens

    @property
    def used(self) -> bool:
        return bool(self.text)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent to the model: always one system and one user message.

    ``blocks`` stand in the order in which they are sent; unused ones (empty text) are among them.
    ``tokens_total`` counts the user message.
    """

    blocks: tuple[Block, ...]
    layout: Layout
    system: str
    user: str
    tokens_total: int

    @property
    def messages(self) -> list[ChatMessage]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def sha256(self) -> str:
        """Digest of the canonical bytes of the messages."""
        return hashlib.sha256(json.dumps(self.messages, ensure_ascii=False).encode()).hexdigest()

    @property
    def prefix_digest(self) -> str:
        """Digest of everything before the first block that changes with every turn."""
        digest = hashlib.sha256()
        for block in self.blocks:
            if block.place.volatility is Volatility.TURN:
                break
            digest.update(f"{block.name}\0{block.sha256}\n".encode())
        return digest.hexdigest()

    def block(self, name: str) -> Block | None:
        return next((block for block in self.blocks if block.name == name), None)


# ---- draft ----
#
# A block before it is cut: its text in pieces, its budget, and where it came from.


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
    blocks that are not in `grounding.prompt_input.blocks.PLACES`."""

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
