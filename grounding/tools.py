"""What the model may call here: plain typed functions with a name, a description and strict parameters.

A module that has something to offer makes a `Tool`; the wiring puts it into the `Toolbox`. Who may call what, when and
how often is for `runtime.turns.tools`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from connectors.message import AgentRuntimeError, ConversationKey, Role, Scope
from grounding.prompt_input import Participant, Passage, RunContext, one_line

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""What every provider takes for a function's name."""
_SCOPE = re.compile(r"[a-z][a-z0-9-]*:[a-z]+")
_MOST_MISTAKES = 5


class Arguments(BaseModel):
    """Base of a tool's parameters. The docstring of a field (``Field(description=…)``) is what the model reads."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class ToolRefused(AgentRuntimeError):
    """A tool will not do what it was asked: nothing has changed. The text is for the model and says what to do."""


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, and for whom. ``idempotency_key`` is the same for the same call however often its turn is taken up
    again, and of no other call: ``<turn>/<messages>/<round>/<place>``, *messages* being how many the turn answers.

    ``role`` is that of the least allowed of ``authors``; ``user`` (``connector:user_id``) wrote the last message.
    ``context`` is what the turn was given; ``has_read_untrusted`` says that in this turn the model has also read what a
    tool brought that is `Tool.untrusted`. ``at`` is when it was called, in the workspace's time zone (UTC as long as
    workspaces have none of their own).
    """

    key: ConversationKey
    turn_id: str
    authors: tuple[Participant, ...]
    user: str
    role: Role
    direct: bool
    idempotency_key: str
    at: datetime
    context: RunContext
    has_read_untrusted: bool = False

    @property
    def scope(self) -> Scope:
        return self.key.scope


@dataclass(frozen=True, slots=True)
class Evidence:
    """A tool's answer that may be cited: ``passages`` count where their labels stand in the text."""

    text: str
    passages: tuple[Passage, ...] = ()


A = TypeVar("A", bound=Arguments)
Run = Callable[[Call, A], Awaitable[str | Evidence]]


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """One function that the model may call.

    ``scopes`` are the permissions that it needs, at least one, as ``what:do`` (``documents:read``). ``run`` says its
    answer, raises `ToolRefused` with what to do instead, and may raise anything else: then the model is told that it
    failed.

    ``untrusted``: what it answers may be anybody's words. ``together``: other calls may run at the same time.
    ``repeatable``: a second call with the same idempotency key changes nothing (it only reads, or its store knows the
    key). A tool that is not is never begun twice: where its process ends in between, the model is told that nobody
    knows what came of it. ``spare``: where the model's window has no room for all tools, those of the
    highest number go first; those of 0 stay together.
    """

    name: str
    description: str
    parameters: type[A]
    run: Run[A]
    scopes: frozenset[str]
    untrusted: bool = False
    together: bool = False
    repeatable: bool = False
    spare: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name for a tool: use a-z, 0-9 and _")
        if not self.scopes:
            raise ValueError(f"{self.name} needs no scope: name what it needs, e.g. documents:read")
        wrong = sorted(scope for scope in self.scopes if not _SCOPE.fullmatch(scope))
        if wrong:
            raise ValueError(f"{self.name}: {wrong[0]!r} is no scope: write what:do, e.g. documents:read")
        if not self.description.strip():
            raise ValueError(f"{self.name} has no description: the model would not know when to call it")

    @property
    def schema(self) -> dict[str, Any]:
        """OpenAI's function description; the same bytes for the same tool."""
        parameters = _plain(self.parameters.model_json_schema())
        parameters.pop("description", None)  # our docstring, written for people
        function = {"name": self.name, "description": " ".join(self.description.split()), "parameters": parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: str) -> A:
        """*arguments*, the JSON text that the model wrote. Raises `ToolRefused`."""
        try:
            return self.parameters.model_validate_json(arguments.strip() or "{}")
        except ValidationError as error:
            mistakes = "; ".join(_mistake(one) for one in error.errors(include_url=False)[:_MOST_MISTAKES])
            raise ToolRefused(
                f"the arguments do not fit: {mistakes}. Call {self.name} again with arguments that fit its parameters"
            ) from None


class Toolbox(Mapping[str, Tool[Any]]):
    """All tools of a process by name, in the order of their names."""

    def __init__(self, *tools: Tool[Any]) -> None:
        self._tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}
        if len(self._tools) != len(tools):
            raise ValueError("two tools have one name")

    def __getitem__(self, name: str) -> Tool[Any]:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def schema_text(schema: Mapping[str, Any]) -> str:
    """The canonical text of a `Tool.schema`."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _plain(schema: Any) -> Any:
    """A JSON schema in sorted order, without the titles that pydantic makes up of names."""
    if isinstance(schema, dict):
        titled = isinstance(schema.get("title"), str)  # a property may be called so, too
        return {name: _plain(schema[name]) for name in sorted(schema) if not (titled and name == "title")}
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema


def _mistake(error: Any) -> str:
    """What pydantic found, without the value: it may be anything, and the model knows it."""
    if error["type"] == "json_invalid":
        return "they are no JSON object"
    where = one_line(".".join(str(part) for part in error["loc"]))[:80]
    said = str(error["msg"])[:200]
    return f"{where}: {said}" if where else said
