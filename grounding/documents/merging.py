"""What is to be done where a file and the shared document of the same path differ. Pure.

A three-way merge, as of version control, but of whole documents: the base is what both were when they last were the
same. A change wins over no change and over a deletion; of two changes the later one wins.
"""

from __future__ import annotations

from enum import Enum, auto


class Step(Enum):
    """What makes both the same."""

    NOTHING = auto()
    PUT = auto()
    """Keep the file's text as the shared document."""
    REMOVE = auto()
    """Delete the shared document."""
    WRITE = auto()
    """Write the shared document to the file."""
    DELETE = auto()
    """Delete the file."""


def step(base: str | None, here: str | None, shared: str | None, *, here_is_newer: bool) -> Step:
    """*base*, *here* (the file) and *shared* are SHA-256, None where there is no document."""
    if here == shared:
        return Step.NOTHING
    if here == base:
        return Step.DELETE if shared is None else Step.WRITE
    if shared == base:
        return Step.REMOVE if here is None else Step.PUT
    if here is None:
        return Step.WRITE
    return Step.PUT if shared is None or here_is_newer else Step.WRITE
