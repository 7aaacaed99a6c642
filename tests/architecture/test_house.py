"""The house: imports flow one way, and each module owns its keys."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("config", "connectors", "grounding", "promptpolicy", "runtime")
CHANGING = (
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert"),
    *("pop", "popitem", "remove", "set", "setdefault", "update"),
)
"""Methods that change their object."""
OWNER = re.compile(r'^_?OWNER = "(\w+)"|redis_key\(\s*"(\w+)"', re.MULTILINE)


def sources() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }


def test_imports_flow_one_way() -> None:
    checked = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stdout


def test_every_redis_owner_is_one_module_or_one_package_of_a_room() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for name, text in sources().items():
        for match in OWNER.finditer(text):
            owners[match[1] or match[2]].add(name.rsplit("/", 1)[0] if name.count("/") > 1 else name)

    assert {owner: homes for owner, homes in owners.items() if len(homes) > 1} == {}
    assert len(owners) >= 12


def test_only_the_mailbox_and_the_outbox_write_their_keys() -> None:
    """Nobody else spells such a key, and nobody else gives or takes the token by which a conversation is held."""
    homes = {"mailbox": {"runtime/turns/mailbox.py"}, "outbox": {"runtime/delivery/outbox.py"}}
    spelled: dict[str, set[str]] = defaultdict(set)
    for name, text in sources().items():
        for owner in homes:
            if re.search(rf'''OWNER = "{owner}"|redis_key\(\s*"{owner}"|ar:{owner}:''', text):
                spelled[owner].add(name)
    gives = re.compile(r"'(?:HSET|HDEL|HSETNX)', (?:KEYS\[\d\]|current), 'token'")

    assert spelled == homes
    assert {name for name, text in sources().items() if gives.search(text)} == {"runtime/turns/mailbox_scripts.py"}


def test_nothing_waits_in_a_way_that_loses_a_cancellation() -> None:
    """Before Python 3.12 ``asyncio.wait_for`` swallows one that comes as what it waits for ends."""
    assert [name for name, text in sources().items() if "asyncio.wait_for(" in text] == []


def test_help_needs_none_of_the_heavy_libraries() -> None:
    heavy = ["litellm", "redis", "qdrant_client", "qdrant_edge", "aiogram", "fastapi", "tiktoken", "wordllama"]
    asked = "import sys, runtime.cli.main; print([name for name in sys.argv[1:] if name in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-c", asked, *heavy], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert told.strip() == "[]"


def test_a_process_imports_litellm_and_the_platforms_only_when_they_are_used() -> None:
    heavy = ["litellm", "aiogram", "qdrant_client", "discord", "slack_bolt"]
    imported = "import sys, runtime.process.serve, runtime.http.app"
    asked = f"{imported}; print([name for name in sys.argv[1:] if name in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-c", asked, *heavy], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert told.strip() == "[]"


def test_who_catches_every_exception_raises_it_again() -> None:
    """Else a cancellation, or the end of the process, would be swallowed."""
    swallowed = [
        f"{name}:{handler.lineno}"
        for name, text in sources().items()
        for handler in ast.walk(ast.parse(text))
        if isinstance(handler, ast.ExceptHandler)
        and (handler.type is None or ast.unparse(handler.type) == "BaseException")
        and not any(isinstance(statement, ast.Raise) for statement in ast.walk(handler))
    ]
    assert swallowed == []


def test_two_runtimes_in_one_process_share_no_state() -> None:
    """No function changes what a name of its module holds; a context variable belongs to each task."""
    assert sorted({change for name, text in sources().items() for change in _changes_of_module_names(name, text)}) == []


def _changes_of_module_names(path: str, text: str) -> Iterator[str]:
    module = ast.parse(text)
    targets = [one.targets[0] if isinstance(one, ast.Assign) else getattr(one, "target", None) for one in module.body]
    names = {one.id for one in targets if isinstance(one, ast.Name) and f"{one.id}: ContextVar" not in text}
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes = list(ast.walk(function))
        own = {node.arg for node in nodes if isinstance(node, ast.arg)}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in nodes:
            changed = _changed_object(node)
            if isinstance(node, ast.Global):
                yield f"{path}: global {', '.join(node.names)}"
            elif isinstance(changed, ast.Name) and changed.id in names - own:
                yield f"{path}: {changed.id}"


def _changed_object(node: ast.AST) -> ast.AST | None:
    """The object that *node* changes in place, if it does."""
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        return node.func.value
    return None


def test_json_is_decoded_and_never_searched_as_text() -> None:
    """A text inside of it may look like what is searched for, and another writer may set blanks."""
    quoted_name = r"""'\{?"\w+":.*?'"""
    searched = re.compile(
        rf"startswith\(\(?{quoted_name}|{quoted_name} (?:not )?in |re\.compile\(r?{quoted_name}|"
        rf"string\.(?:find|match)\([^,]*, {quoted_name}"
    )
    assert [f"{name}: {found[0]}" for name, text in sources().items() for found in searched.finditer(text)] == []
