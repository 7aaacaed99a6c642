"""Whether the passages of a collection are still all there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Mark(NamedTuple):
    """What whoever fills a collection leaves there now and then: a number that grows. ``left`` is the one that was left
    last, 0 for none, and ``new`` the one to be left now."""

    left: int
    new: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Whether a collection is still the one that it was.

    ``token`` is another one whenever it was made anew or something of it was lost: what it was given before has to be
    given again. ``set_aside`` are the paths of damaged files that were replaced and that nobody reads any more.
    """

    token: str = ""
    set_aside: tuple[str, ...] = ()
