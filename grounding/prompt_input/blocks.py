"""The named blocks of a prompt, their places, a block before it is cut (`Draft`), and the prompt itself."""

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
    """The place of a block: its message, its rank in each layout, and how often it changes."""

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
"""Every block of the product. Formatters may add others."""
BOUNDARY = PLACES["tail"]
"""The last block whose bytes outlast a turn, in the layout that puts those first."""


def may_follow(place: Place, volatility: Volatility) -> bool:
    """Say whether text of that *volatility* may stand behind the block of *place*.

    Text that changes with every turn may not stand in front of text that does not: the model would have to read the
    latter anew each time.
    """
    return volatility is not Volatility.TURN or place.prefix_stable >= BOUNDARY.prefix_stable


SEPARATOR = "\n\n"
NO_CEILING_BYTES = 2**31


class ChatMessage(TypedDict):
    """One message in the form of the model's interface."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Block:
    """One named piece of a prompt.

    ``budget`` is in tokens. ``why`` names the source of the text, or the reason why it is empty or cut. ``placed`` is
    the place of a block that is not in `PLACES`.
    """

    name: str
    text: str
    tokens: int
    budget: int
    why: str
    placed: Place | None = None
    weighs: int = 0
    """Its measured share of the model's window, in tokens as we count them; 0 if it was not measured."""

    @property
    def place(self) -> Place:
        return self.placed or PLACES[self.name]

    @property
    def load(self) -> int:
        """Its share of `grounding.prompt_input.budgets.window_room`."""
        return self.weighs or self.tokens

    @property
    def used(self) -> bool:
        return bool(self.text)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One system and one user message for the model.

    ``blocks`` are in the order of the text, including unused ones (empty text). ``tokens_total`` counts the user
    message.
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
        """The digest of the canonical bytes of the messages."""
        return hashlib.sha256(json.dumps(self.messages, ensure_ascii=False).encode()).hexdigest()

    @property
    def prefix_digest(self) -> str:
        """The digest of the blocks before the first one that changes with every turn."""
        digest = hashlib.sha256()
        for block in self.blocks:
            if block.place.volatility is Volatility.TURN:
                break
            digest.update(f"{block.name}\0{block.sha256}\n".encode())
        return digest.hexdigest()

    def block(self, name: str) -> Block | None:
        return next((block for block in self.blocks if block.name == name), None)


@dataclass(frozen=True, slots=True)
class TwoSections:
    """Two sections in one block: the first may have *first_tokens*, the second gets the rest, and yields first.

    ``floor`` is the part of the second that yields to nothing: it is shown whole even if it exceeds the limits. The
    caller makes sure that it does not, or refuses the turn.
    """

    first: Section
    second: Section
    first_tokens: int
    floor: Section

    def fit(self, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        """Return the text of both within both limits."""
        least = self.least
        if not least:
            return self._fit(tokens, max_tokens, max_bytes)
        reserved = tokens.count(least) + tokens.count(SEPARATOR)
        text = self._fit(tokens, max_tokens, max_bytes, reserved, utf8_length(least) + utf8_length(SEPARATOR))
        return text if all(piece in text for piece in self.floor.pieces) else least

    @property
    def least(self) -> str:
        """The text that is always shown."""
        return self.floor.whole

    @property
    def whole(self) -> str:
        return SEPARATOR.join(text for text in (self.first.whole, self.second.whole) if text)

    def _fit(
        self, tokens: Tokens, max_tokens: int, max_bytes: int, reserved_tokens: int = 0, reserved_bytes: int = 0
    ) -> str:
        first_tokens = min(self.first_tokens, max_tokens - reserved_tokens)
        first = self.first.fit(tokens, max(first_tokens, 0), max(max_bytes - reserved_bytes, 0))
        if not first:
            return self.second.fit(tokens, max_tokens, max_bytes)
        left = max_tokens - tokens.count(first) - tokens.count(SEPARATOR)
        room = max_bytes - utf8_length(first) - utf8_length(SEPARATOR)
        while left > 0 and room > 0 and (second := self.second.fit(tokens, left, room)):
            both = first + SEPARATOR + second
            if tokens.fits(both, max_tokens):
                return both
            left -= 1  # tokens at the joint may merge or split
        return first


@dataclass(frozen=True, slots=True)
class Draft:
    """A block before it is cut. The fields are those of `Block`."""

    section: Section | TwoSections
    budget: int
    why: str
    placed: Place | None = None

    @property
    def least(self) -> str:
        """The text that is shown whatever else has to go."""
        return self.section.least if isinstance(self.section, TwoSections) else ""

    def block(self, name: str, text: str, tokens: Tokens) -> Block:
        """Return the block *name* with *text*, the rest of the draft after cutting."""
        return Block(name, text, tokens.count(text), self.budget, self._why(text), self.placed)

    def _why(self, text: str) -> str:
        whole = self.section.whole
        if whole and not text:
            return f"{self.why}; no room"
        return f"{self.why}; cut to fit" if text != whole else self.why
