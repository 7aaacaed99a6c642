"""The codex: material that the model is given whole, or searches if it is too much.

`CodexStore` holds the material, `choose` decides between the two, `CodexIndex` and `search_codex` search it.
"""

from grounding.codex.codex import (
    HERE,
    SCOPE,
    SEARCH_CODEX,
    Chosen,
    CodexEntry,
    CodexFull,
    CodexTooNew,
    FindsMaterial,
    Room,
    Size,
    check_path,
    choose,
    search_codex,
    shown_path,
    size_of,
)
from grounding.codex.store import CodexIndex, CodexStore, Holding

__all__ = [
    "HERE",
    "SCOPE",
    "SEARCH_CODEX",
    "Chosen",
    "CodexEntry",
    "CodexFull",
    "CodexIndex",
    "CodexStore",
    "CodexTooNew",
    "FindsMaterial",
    "Holding",
    "Room",
    "Size",
    "check_path",
    "choose",
    "search_codex",
    "shown_path",
    "size_of",
]
