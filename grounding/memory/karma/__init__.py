"""Karma: answers that people marked, and their use as examples.

`MarkStore` holds the marks, `Karma` chooses the examples of a prompt.
"""

from grounding.memory.karma.examples import NOTHING, Examples, Karma, Likeness, preferred
from grounding.memory.karma.marks import (
    SCOPE,
    Exchange,
    Marked,
    Opinion,
    Sign,
    add_sign,
    remove_sign,
    set_by_command,
    set_sign,
    sign_of,
)
from grounding.memory.karma.store import MarkBusy, MarkStore

__all__ = [
    "NOTHING",
    "SCOPE",
    "Examples",
    "Exchange",
    "Karma",
    "Likeness",
    "MarkBusy",
    "MarkStore",
    "Marked",
    "Opinion",
    "Sign",
    "add_sign",
    "preferred",
    "remove_sign",
    "set_by_command",
    "set_sign",
    "sign_of",
]
