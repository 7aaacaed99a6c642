"""Names stand for things of the field: the glossary and the code agree, and no exported name is a riddle."""

import importlib
import pkgutil
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
ROOMS = ("config", "connectors", "promptpolicy", "grounding", "runtime")

RIDDLES = frozenset(
    {"ahead", "asked", "beside", "doubts", "formers", "given", "held", "kept", "made", "said", "shown", "surely"}
    | {"there", "told"}
)
RIDDLES_ALLOWED = {
    "grounding.memory.context_document.kept_lines": "the lines that people wrote and that stay",
    "grounding.prompt.Shown": "what a prompt shows of a session",
}
"""Exported names with a riddle in them, each with what it means."""

SHARED_CLASS_NAMES = {
    "Change": "of a line; of a record",
    "Passage": "in the index; in a prompt (evidence)",
}
"""Class names that two faces export, each with its two meanings."""


@cache
def modules() -> tuple[str, ...]:
    """The names of all modules and packages of the rooms."""
    names = list(ROOMS)
    for room in ROOMS:
        names += [module.name for module in pkgutil.walk_packages([str(ROOT / room)], f"{room}.")]
    return tuple(names)


@cache
def faces() -> dict[str, ModuleType]:
    """By name, the packages that say in ``__all__`` what others may use."""
    packages = (name for name in modules() if (ROOT / name.replace(".", "/")).is_dir())
    loaded = {name: importlib.import_module(name) for name in packages}
    return {name: module for name, module in loaded.items() if hasattr(module, "__all__")}


def glossary_names() -> list[str]:
    """The code names in the last column of the glossary's tables."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return re.findall(r"\| `([\w.]+)` \|$", page, re.MULTILINE)


def is_public(name: str) -> bool:
    """Whether *name* is a module, or a name that a face exports or a module without a face defines."""
    if name in modules():
        return True
    owner, _, attribute = name.rpartition(".")
    if owner in faces():
        return attribute in faces()[owner].__all__
    return owner in modules() and hasattr(importlib.import_module(owner), attribute)


def has_riddle(name: str) -> bool:
    return not RIDDLES.isdisjoint(name.lower().split("_"))


def test_the_code_has_the_names_of_the_glossary() -> None:
    names = glossary_names()
    assert [name for name in names if not is_public(name)] == []
    assert len(names) > 40


def test_no_exported_name_is_a_riddle() -> None:
    exported = [f"{face}.{name}" for face, module in faces().items() for name in module.__all__]
    riddles = {name for name in exported if has_riddle(name.rpartition(".")[2])}
    assert riddles - RIDDLES_ALLOWED.keys() == set()
    assert len(exported) > 500


def test_no_module_is_named_by_a_riddle() -> None:
    public = [name for name in modules() if not name.rpartition(".")[2].startswith("_")]
    assert [name for name in public if has_riddle(name.rpartition(".")[2])] == []


def test_an_exported_class_name_stands_for_one_thing() -> None:
    things: dict[str, set[type]] = defaultdict(set)
    for module in faces().values():
        for name in module.__all__:
            if isinstance(thing := getattr(module, name), type):
                things[name].add(thing)
    shared = {name for name, classes in things.items() if len(classes) > 1}
    assert shared - SHARED_CLASS_NAMES.keys() == set()
