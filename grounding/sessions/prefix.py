"""Find the prefix that a prompt shares with the prompt before, and that a provider can therefore reuse. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grounding.blocks import PLACES, Block, Prompt, Volatility
from grounding.budgets import Strict
from grounding.layers import tail

_DIGEST_BYTES = 12


class Stood(Strict):
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
    """Its share of the window if it is in the system message; see `grounding.blocks.Block`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The shared prefix of a prompt.

    ``broken_by`` is the first block that differs from the prompt before or was not in it, or the first block of the
    system message that disappeared. A block that grows at its end does not break the prefix; then it is the block
    behind. It is empty if no prompt before is known, or if nothing differs. ``tokens_kept`` are the shared tokens, by
    our count.
    """

    broken_by: str = ""
    tokens_kept: int = 0


UNKNOWN = Prefix()


def stood(prompt: Prompt) -> tuple[Stood, ...]:
    """Return the fingerprints of the non-empty blocks of *prompt*."""
    return tuple(_stood(block) for block in prompt.blocks if block.used)


def compared(before: Sequence[Stood], prompt: Prompt, stands: Sequence[Stood] | None = None) -> Prefix:
    """Return the prefix that *prompt* shares with the blocks *before*. *stands* are the fingerprints of *prompt*, if
    known."""
    kept = 0
    now = [block for block in prompt.blocks if block.used]
    for at, (was, block, stands_now) in enumerate(zip(before, now, stands or stood(prompt), strict=False)):
        if was == stands_now:
            kept += was.tokens
            continue
        if was.system and was.name not in {one.name for one in now}:
            return Prefix(was.name, kept)  # its removal moves everything behind it
        if was.name != block.name or not _continues(was, block):
            return Prefix(block.name, kept)
        behind = now[at + 1 :]  # it has grown, which moves everything behind it
        return Prefix(behind[0].name if behind else "", kept + was.tokens)
    if not before or len(before) == len(now):
        return Prefix("", kept)
    return Prefix((now[len(before)] if len(now) > len(before) else before[len(now)]).name, kept)


def tokens_between(blocks: Sequence[Stood], first: str, ends: Collection[str] = ()) -> int:
    """Return the tokens from the place of *first* to the volatile boundary, or to the first block in *ends*.

    An engine must read them again if *first* changes. *first* itself need not be among *blocks*.
    """
    found, counted, rank = 0, False, PLACES[first].prefix_stable
    for block in blocks:
        if not block.stays or block.name in ends:
            break
        counted = counted or (block.name in PLACES and PLACES[block.name].prefix_stable >= rank)
        found += block.tokens if counted else 0
    return found


def _stood(block: Block) -> Stood:
    text, place = _growing_text(block), block.place
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
    text = _growing_text(block)
    grows = block.place.volatility is Volatility.APPENDED
    same_length = len(text) == was.characters
    return (same_length or (grows and len(text) > was.characters)) and _digest(text[: was.characters]) == was.digest


def _growing_text(block: Block) -> str:
    return block.text.removesuffix("\n" + tail.FOOT) if block.name == "tail" else block.text


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
