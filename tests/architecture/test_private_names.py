"""Nothing of another package's private parts is used: no name with an underscore, no override of one, no patch.

A name is private if it begins with one underscore. Such an attribute may be used only in the file that defines it. That
needs no knowledge of types: ``reader._buffer`` is a violation wherever ``reader`` comes from, unless the file itself
defines ``_buffer``; and then it is still one if ``reader`` is known to come from another package.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from runtime.llm import begin_loading

ROOT = Path(__file__).parents[2]
ROOMS = ("config", "connectors", "grounding", "promptpolicy", "runtime")
DOCUMENTED = {"_replace", "_asdict", "_make", "_fields", "_exit"}
"""Public in spite of the underscore: the methods of named tuples, and `os._exit`."""
ACCESSORS = {"getattr", "setattr", "hasattr", "delattr"}
PATCHERS = {"setattr", "delattr"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in DOCUMENTED


def is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in (*ROOMS, "__future__")


class File:
    """One file: what it imports from other packages, and which private names it defines."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.imports: dict[str, str] = {}
        """Local names, and what of another package each stands for, as a dotted path."""
        self.defined: set[str] = set()
        self.instances: set[str] = set()
        """Variables and attributes of self that hold an instance of another package's class, as far as is plain."""
        self.inherited: set[ast.expr] = set()
        """Attributes of self in classes whose bases are all our own: another file may define them."""
        for node in ast.walk(self.tree):
            self._read_import(node)
            self._read_definition(node)
            self._read_inheritance(node)
        for node in ast.walk(self.tree):
            self._read_instance(node)

    def _read_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_foreign(alias.name):
                    self.imports[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level and is_foreign(node.module):
            for alias in node.names:
                self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _read_definition(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.defined.add(node.id)
        elif isinstance(node, ast.arg):
            self.defined.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root_of(node) in ("self", "cls"):
            self.defined.add(node.attr)

    def _read_inheritance(self, node: ast.AST) -> None:
        if isinstance(node, ast.ClassDef) and node.bases and not any(map(self.is_imported, node.bases)):
            self.inherited |= {
                inner
                for inner in ast.walk(node)
                if isinstance(inner, ast.Attribute) and ast.unparse(inner.value) in ("self", "cls")
            }

    def _read_instance(self, node: ast.AST) -> None:
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.annotation
        elif isinstance(node, ast.arg) and node.annotation is not None and self.is_imported(node.annotation):
            self.instances.add(node.arg)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            targets, value = [node.optional_vars], node.context_expr
        while isinstance(value, ast.Await | ast.Call):
            value = value.value if isinstance(value, ast.Await) else value.func
        if value is not None and self.is_imported(value):
            self.instances |= {ast.unparse(target) for target in targets}

    def is_imported(self, node: ast.expr) -> bool:
        """Whether *node* is a name of another package, or an attribute of one."""
        return root_of(node) in self.imports

    def resolve(self, node: ast.expr) -> object:
        """Return the object that *node*, a name of another package, stands for; None if it cannot be found."""
        path = self.imports[root_of(node)] + ast.unparse(node)[len(root_of(node)) :]
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            try:
                found: object = importlib.import_module(".".join(parts[:length]))
            except ImportError:
                continue
            for part in parts[length:]:
                found = getattr(found, part, None)
            return found
        return None


def root_of(node: ast.expr) -> str:
    """The name at the beginning of ``name.attribute[index].attribute``; empty if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def violations(text: str) -> list[str]:
    """What in a file of this *text* uses another package's private parts, with its line."""
    file = File(text)
    return sorted({f"{line}: {what}" for node in ast.walk(file.tree) for line, what in violations_of(node, file)})


def violations_of(node: ast.AST, file: File) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Import(names=names):
            yield from (
                (node.lineno, f"imports {alias.name}")
                for alias in names
                if is_foreign(alias.name) and any(map(is_private, alias.name.split(".")))
            )
        case ast.ImportFrom(module=str(module), names=names):
            parts = [*module.split("."), *(alias.name for alias in names)]
            if is_foreign(module) and any(map(is_private, parts)):
                yield node.lineno, f"imports {module}.{', '.join(alias.name for alias in names)}"
        case ast.Attribute(value=value, attr=name) if is_private(name):
            if node in file.inherited:
                return
            if name not in file.defined or file.is_imported(value) or ast.unparse(value) in file.instances:
                yield node.lineno, f"uses {ast.unparse(node)}"
        case ast.Call(func=ast.Name(id=called), args=[of, ast.Constant(value=str(name)), *_]) if called in ACCESSORS:
            if is_private(name) and name not in file.defined:
                yield node.lineno, f"uses {ast.unparse(node)}"
            elif called in PATCHERS and file.is_imported(of) and is_patch(file.resolve(of), name):
                yield node.lineno, f"patches {ast.unparse(of)}.{name}"
        case ast.keyword(arg=str(name)) if is_private(name) and name not in file.defined:
            yield node.value.lineno, f"passes {name}"
        case ast.ClassDef(name=name, bases=bases, body=body):
            foreign = [file.resolve(base) for base in bases if file.is_imported(base)]
            own = {member for statement in body for member in members_of(statement) if is_private(member)}
            overridden = sorted(member for member in own if any(hasattr(base, member) for base in foreign))
            yield from ((node.lineno, f"{name} overrides {member}") for member in overridden)
    match node:
        case ast.Attribute(value=value, attr=name, ctx=ast.Store() | ast.Del()) if file.is_imported(value):
            if is_patch(file.resolve(value), name):
                yield node.lineno, f"patches {ast.unparse(node)}"


def members_of(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement in a class's body defines, those that its methods set on self among them."""
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def is_patch(owner: object, name: str) -> bool:
    """Whether setting *name* of *owner* replaces code. A module's plain data may be set: so LiteLLM is configured."""
    if isinstance(owner, ModuleType):
        value = getattr(owner, name, None)
        return callable(value) or isinstance(value, ModuleType)
    return inspect.isclass(owner) or callable(owner)


def product_files() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def test_no_file_uses_private_parts_of_another_package() -> None:
    begin_loading().result()  # LiteLLM is among what is looked at, and asks the network if it is imported otherwise
    found = {
        path.relative_to(ROOT).as_posix(): wrong
        for path in product_files()
        if (wrong := violations(path.read_text(encoding="utf-8")))
    }

    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "import litellm._internal_context",
        "from litellm._internal_context import is_internal_call",
        "from redis.asyncio import _thing",
        "def f():\n    from litellm import _x",
        "import asyncio\nasyncio.get_running_loop()._ready",
        "def f(reader):\n    return reader._buffer",
        "def f(loop):\n    loop._ready = []",
        "import tiktoken\nclass A:\n    def f(self):\n        self._x = tiktoken.Encoding()\n        self._x._x = 1",
        "from redis.asyncio import Redis\ndef f(client: Redis, _a=0):\n    return client._a",
        "from httpx import AsyncClient\nasync def f(_a):\n    async with AsyncClient() as client:\n        client._a()",
        "def f(model):\n    return getattr(model, '_fields_set')",
        "def f(model):\n    setattr(model, '_fields_set', 1)",
        "import discord\nclass A(discord.Client):\n    def _get_state(self, **options):\n        return None",
        "import discord\nclass A(discord.Client):\n    def f(self):\n        return self._connection",
        "import discord\ndiscord.VoiceClient.warn_nacl = False",
        "from pydantic import BaseModel\nBaseModel.model_rebuild = None",
        "import httpx\nhttpx.get = None",
        "import httpx\nsetattr(httpx, 'get', None)",
        "import httpx\ndel httpx.Client.get",
        "from pydantic import BaseModel\nBaseModel.model_rebuild(_types_namespace={})",
    ],
)
def test_each_way_to_use_private_parts_is_found(text: str) -> None:
    assert len(violations(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import litellm\nlitellm.telemetry = False",
        "import os\nos.environ['A'] = 'b'\nos._exit(0)",
        "class A:\n    def __init__(self):\n        self._x = 1\n    def f(self, other):\n        return other._x",
        "from runtime.hub import Hub\nclass A(Hub):\n    def f(self):\n        return self._x",
        "def f(row):\n    return row._replace(a=1)",
        "import discord\nclass A(discord.Client):\n    def __init__(self):\n        self._own = 1",
        "import sys\nprint(sys.__doc__)",
        "import httpx\ndef f(client):\n    client.headers = httpx.Headers()",
    ],
)
def test_public_parts_and_own_private_names_are_fine(text: str) -> None:
    assert violations(text) == []
