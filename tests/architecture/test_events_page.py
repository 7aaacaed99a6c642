"""Operators read events by their names: the page names every one, and no other."""

import ast
import re
from functools import cache
from pathlib import Path

from runtime.observability.metrics import COUNTED_EVENTS
from runtime.observability.redaction import FORBIDDEN_KEYS

ROOT = Path(__file__).parents[2]
ROOMS = ("connectors", "grounding", "promptpolicy", "runtime")
LEVELS = {"info", "warning", "error", "exception", "critical"}
LOGGERS = {"log", "_log"}
NAME = re.compile(r"[a-z]+\.[a-z_]+")


@cache
def calls() -> tuple[ast.Call, ...]:
    """Every call in the code of the rooms that log, read once, for to read it is what takes long."""
    paths = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    return tuple(node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))


def logged() -> set[str]:
    """The event names in calls such as ``_log.info("turn.answered", …)``, and of a level that was chosen."""
    return {
        call.args[0].value
        for call in calls()
        if call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
        and (
            (
                isinstance(call.func, ast.Attribute)
                and call.func.attr in LEVELS
                and isinstance(call.func.value, ast.Name)
                and call.func.value.id in LOGGERS
            )
            or (isinstance(call.func, ast.Name) and call.func.id == "level")
        )
    }


def fields() -> set[str]:
    """The names of the fields in calls such as ``_log.info("turn.answered", model=…)``."""
    return {
        keyword.arg
        for call in calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in LOGGERS
        for keyword in call.keywords
        if keyword.arg is not None
    }


def test_no_event_has_a_field_that_would_be_taken_out_of_it() -> None:
    named = fields()
    assert named & FORBIDDEN_KEYS == set()
    assert "workspace_id" in named


def emitted() -> set[str]:
    return logged() | {"library.log"}  # the last is made of what libraries log


def documented() -> set[str]:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    table = page.partition("| event | says |")[2].partition("\n\n")[0]
    return {
        name
        for row in table.splitlines()
        for name in re.findall(r"`([^`]+)`", row.removeprefix("| ").partition(" | ")[0])
        if NAME.fullmatch(name)
    }


def test_every_event_has_a_name_of_the_usual_form() -> None:
    assert {name for name in emitted() if not NAME.fullmatch(name)} == set()


def test_the_page_names_every_event_and_no_other() -> None:
    assert emitted() - documented() == set(), "name these in docs/operating.md"
    assert documented() - emitted() == set(), "these are logged nowhere"
    assert len(emitted()) > 30


def test_what_is_counted_is_logged() -> None:
    assert emitted() >= COUNTED_EVENTS
