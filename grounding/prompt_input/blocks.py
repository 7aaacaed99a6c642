"""The named blocks of a prompt, their places, a block before it is cut (`Draft`), and the prompt itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Literal, TypedDict

from pydantic import BaseModel, ConfigDict

from grounding.prompt_input.sections import Section
from grounding.prompt_input.tokens import Tokens, utf8_length

Layout = Literal["user_first", "prefix_stable"]
_DIGEST_BYTES = 12


class Strict(BaseModel):
    """A part of a turn's input: nothing is coerced, added or changed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


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


@dataclass(frozen=True)
class Block:
    """One named piece of a prompt.

    ``budget`` is in tokens. ``why`` names the source of the text, or the reason why it is empty or cut. ``load`` is its
    share of `grounding.prompt_input.budgets.window_room`.
    """

    name: str
    place: Place
    text: str
    tokens: int
    budget: int
    why: str
    load: int

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


class BlockFingerprint(Strict):
    """The fingerprint of a block in a prompt, without its text.

    ``characters`` is the length of the fingerprinted text; the closing tag of a growing block is not part of it.
    ``stays`` says whether the block outlasts a turn, ``system`` whether it is in the system message.
    """

    name: str
    digest: str
    characters: int
    tokens: int
    stays: bool = True
    system: bool = False
    load: int = 0
    """Its `Block.load` if it is in the system message."""

    @classmethod
    def of(cls, block: Block) -> BlockFingerprint:
        """Return the fingerprint of *block*, which is not empty."""
        place, text = block.place, block.text
        if place.volatility is Volatility.APPENDED:
            text = text[: text.rindex("\n")]
        is_system = place.message == "system"
        return cls(
            name=block.name,
            digest=_digest(text),
            characters=len(text),
            tokens=block.tokens,
            stays=place.volatility is not Volatility.TURN,
            system=is_system,
            load=block.load if is_system else 0,
        )

    def begins(self, block: Block) -> bool:
        """Say whether *block* has the fingerprinted text, or goes on behind it if it grows at its end."""
        if block.place.volatility is not Volatility.APPENDED:
            return len(block.text) == self.characters and _digest(block.text) == self.digest
        return block.text.rindex("\n") >= self.characters and _digest(block.text[: self.characters]) == self.digest


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True)
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

    @cached_property
    def prefix_digest(self) -> str:
        """The digest of the blocks before the first one that changes with every turn."""
        digest = hashlib.sha256()
        for block in self.blocks:
            if block.place.volatility is Volatility.TURN:
                break
            digest.update(f"{block.name}\0{block.sha256}\n".encode())
        return digest.hexdigest()

    @cached_property
    def fingerprints(self) -> tuple[BlockFingerprint, ...]:
        """The fingerprints of the blocks that are not empty."""
        return tuple([BlockFingerprint.of(block) for block in self.blocks if block.text])

    def block(self, name: str) -> Block | None:
        for block in self.blocks:
            if block.name == name:
                return block
        return None


@dataclass(frozen=True, slots=True)
class TwoSections:
    """Two sections in one block: the first may have *first_tokens*, the second gets the rest, and yields first.

    ``before`` stands before both. It and ``floor``, a part of the second, yield to nothing: they are shown whole even
    if they exceed the limits. The caller makes sure that they do not, or refuses the turn.
    """

    first: Section
    second: Section
    first_tokens: int
    floor: Section
    before: Section

    def fit(self, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        """Return the text of both within both limits."""
        before = self.before.whole
        if not before:
            return self._fit_both(tokens, max_tokens, max_bytes)
        taken_tokens, taken_bytes = tokens.count(before + SEPARATOR), utf8_length(before + SEPARATOR)
        return _joined(before, self._fit_both(tokens, max_tokens - taken_tokens, max_bytes - taken_bytes))

    @property
    def least(self) -> str:
        """The text that is always shown."""
        return _joined(self.before.whole, self.floor.whole)

    @property
    def whole(self) -> str:
        return _joined(self.before.whole, self.first.whole, self.second.whole)

    def _fit_both(self, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        """Return the text of the first and the second section within both limits."""
        least = self.floor.whole
        if not least:
            return self._fit(tokens, max(max_tokens, 0), max(max_bytes, 0))
        reserved = tokens.count(least) + tokens.count(SEPARATOR)
        text = self._fit(tokens, max_tokens, max_bytes, reserved, utf8_length(least) + utf8_length(SEPARATOR))
        return text if all(piece in text for piece in self.floor.pieces) else least

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


def _joined(*texts: str) -> str:
    return SEPARATOR.join(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class Draft:
    """A block before it is cut. ``least`` is the text that is shown whatever else has to go."""

    place: Place
    section: Section | TwoSections
    budget: int
    why: str
    least: str = ""

    def block(self, text: str, tokens: Tokens) -> Block:
        """Return the block with *text*, the rest of the draft after cutting."""
        count = tokens.count(text) if text else 0
        is_cut = text != self.section.whole
        why = f"{self.why}; {'cut to fit' if text else 'no room'}" if is_cut else self.why
        return Block(self.place.name, self.place, text, count, self.budget, why, count)
