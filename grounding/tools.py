"""Tools: typed functions that the model may call, with a name, a description and strict parameters.

Each package creates its own `Tool`s; `runtime.process.bootstrap` puts them into the `Toolbox`. `runtime.turns.tools`
decides who may call what, and how often.
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
"""Every provider accepts such a name for a function."""
_SCOPE = re.compile(r"[a-z][a-z0-9-]*:[a-z]+")
_MOST_MISTAKES = 5


class Arguments(BaseModel):
    """The base of a tool's parameters. The model reads the description of each field (``Field(description=…)``)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class ToolRefused(AgentRuntimeError):
    """The tool refuses the call and has changed nothing. The text tells the model what to do instead."""


@dataclass(frozen=True, slots=True)
class Call:
    """The circumstances of one call.

    ``idempotency_key`` (``<turn>/<messages>/<round>/<place>``, *messages* being the number of messages that the turn
    answers) is unique for a call, and the same if the turn is repeated. ``role`` is the lowest role among ``authors``;
    ``user`` (``connector:user_id``) wrote the last message. ``context`` is the turn's input. ``has_read_untrusted``
    says that the model has read the result of an untrusted tool in this turn. ``at`` is the time of the call in UTC.
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
    """A tool's result that may be cited: those of ``passages`` whose labels are in the text."""

    text: str
    passages: tuple[Passage, ...] = ()


A = TypeVar("A", bound=Arguments)
Run = Callable[[Call, A], Awaitable[str | Evidence]]


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """One function that the model may call.

    ``scopes`` are the permissions that it needs, at least one, as ``what:do`` (``documents:read``). ``run`` returns the
    result or raises `ToolRefused`; after any other error the model is told that the tool failed.

    ``untrusted``: the result may contain anybody's words. ``together``: other calls may run at the same time.
    ``repeatable``: a second call with the same idempotency key changes nothing (it only reads, or its store knows the
    key). Any other tool is never started twice: if the process ends during a call, the model is told that the outcome
    is unknown. ``spare``: if the model's window has no room for all tools, those with the highest number are dropped
    first; those with 0 stay together.
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
        """The function in OpenAI's format; the same bytes for the same tool."""
        parameters = _plain(self.parameters.model_json_schema())
        parameters.pop("description", None)  # the class's docstring, written for people
        function = {"name": self.name, "description": " ".join(self.description.split()), "parameters": parameters}
        return {"type": "function", "function": function}

    def read(self, arguments: str) -> A:
        """Parse *arguments*, JSON text from the model. Raises `ToolRefused`."""
        try:
            return self.parameters.model_validate_json(arguments.strip() or "{}")
        except ValidationError as error:
            mistakes = "; ".join(_mistake(one) for one in error.errors(include_url=False)[:_MOST_MISTAKES])
            raise ToolRefused(
                f"the arguments do not fit: {mistakes}. Call {self.name} again with arguments that fit its parameters"
            ) from None


class Toolbox(Mapping[str, Tool[Any]]):
    """All tools of a process by name, in alphabetical order."""

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
    """Return the canonical text of a `Tool.schema`."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _plain(schema: Any) -> Any:
    """Return a JSON schema in sorted order, without the titles that pydantic derives from names."""
    if isinstance(schema, dict):
        has_title = isinstance(schema.get("title"), str)  # otherwise it is a property of that name
        return {name: _plain(schema[name]) for name in sorted(schema) if not (has_title and name == "title")}
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema


def _mistake(error: Any) -> str:
    """Return the mistake that pydantic found, without the value, which the model knows."""
    if error["type"] == "json_invalid":
        return "they are no JSON object"
    path = one_line(".".join(str(part) for part in error["loc"]))[:80]
    message = str(error["msg"])[:200]
    return f"{path}: {message}" if path else message
