"""What of a prompt an engine has read already, in the prompt before it: the bytes from the beginning that are the same.
Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grounding.blocks import PLACES, Block, Prompt, Volatility
from grounding.budgets import Strict
from grounding.layers import tail

_DIGEST_BYTES = 12


class Stood(Strict):
    """A block as it stood in a prompt: which bytes, without the words. ``characters`` is how many of them count: of one
    that grows all but its closing tag. ``stays`` says whether it outlasts a turn, ``system`` in which message it is."""

    name: str
    digest: str
    characters: int
    tokens: int
    stays: bool = True
    system: bool = False
    load: int = 0
    """What it takes of the window where it is in the system message: see `grounding.blocks.Block`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """``broken_by`` is the first block whose bytes are not those of the prompt before, or did not stand there, or of
    the system message one that does not any more; growing at its end breaks nothing, so it then is the block behind.
    Empty where nothing is known of a prompt before, and where the two are the same. ``tokens_kept`` are the tokens in
    front, as we count them."""

    broken_by: str = ""
    tokens_kept: int = 0


UNKNOWN = Prefix()


def stood(prompt: Prompt) -> tuple[Stood, ...]:
    """The blocks of *prompt* that have a text."""
    return tuple(_stood(block) for block in prompt.blocks if block.used)


def compared(before: Sequence[Stood], prompt: Prompt, stands: Sequence[Stood] | None = None) -> Prefix:
    """What of *prompt*, of which *stands* is what `stood` says, stood in the one *before*."""
    kept = 0
    now = [block for block in prompt.blocks if block.used]
    for at, (was, block, stands_now) in enumerate(zip(before, now, stands or stood(prompt), strict=False)):
        if was == stands_now:
            kept += was.tokens
            continue
        if was.system and was.name not in {one.name for one in now}:
            return Prefix(was.name, kept)  # it is gone, which moves all that is behind it
        if was.name != block.name or not _continues(was, block):
            return Prefix(block.name, kept)
        behind = now[at + 1 :]  # it has grown, and what follows stands elsewhere
        return Prefix(behind[0].name if behind else "", kept + was.tokens)
    if not before or len(before) == len(now):
        return Prefix("", kept)
    return Prefix((now[len(before)] if len(now) > len(before) else before[len(now)]).name, kept)


def tokens_between(blocks: Sequence[Stood], first: str, ends: Collection[str] = ()) -> int:
    """What the blocks from the place of *first* on, whether it stood there or not, took to the volatile boundary, or
    up to any of *ends*: so much is read anew where *first* is another."""
    found, counted, rank = 0, False, PLACES[first].prefix_stable
    for block in blocks:
        if not block.stays or block.name in ends:
            break
        counted = counted or (block.name in PLACES and PLACES[block.name].prefix_stable >= rank)
        found += block.tokens if counted else 0
    return found


def _stood(block: Block) -> Stood:
    text, place = _growing(block), block.place
    is_of_system = place.message == "system"
    return Stood(
        name=block.name,
        digest=_digest(text),
        characters=len(text),
        tokens=block.tokens,
        stays=place.volatility is not Volatility.TURN,
        system=is_of_system,
        load=block.load if is_of_system else 0,
    )


def _continues(was: Stood, block: Block) -> bool:
    text = _growing(block)
    grows = block.place.volatility is Volatility.APPENDED
    same_length = len(text) == was.characters
    return (same_length or (grows and len(text) > was.characters)) and _digest(text[: was.characters]) == was.digest


def _growing(block: Block) -> str:
    return block.text.removesuffix("\n" + tail.FOOT) if block.name == "tail" else block.text


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
