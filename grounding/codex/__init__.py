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
    prompt_path,
    search_codex,
    size_of,
)
from grounding.codex.store import CodexIndex, CodexStore, MaterialTotals

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
    "MaterialTotals",
    "Room",
    "Size",
    "check_path",
    "choose",
    "prompt_path",
    "search_codex",
    "size_of",
]
