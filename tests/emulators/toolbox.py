"""Tools of the tests' own, beside the real ones or in their place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import Field

from grounding.tools import Arguments, Call, Tool, Toolbox, ToolRefused
from runtime.llm import Completion, ToolCall
from runtime.process import bootstrap
from runtime.process.bootstrap import build_tools
from runtime.turns.rounds import Result, Round
from tests.emulators.openai import Reply


class Note(Arguments):
    words: str = Field(description="What to write down.", max_length=100)


@dataclass
class Desk:
    """What the tools of a test did, and what they are to do."""

    calls: list[Call] = field(default_factory=list)
    """The calls of `note`, as they began."""
    noted: list[str] = field(default_factory=list)
    """What `note` wrote down."""
    held: asyncio.Event | None = None
    """While set, `note` waits for it, with the pen in the hand."""
    says: str | Exception = "noted"
    met: asyncio.Barrier | None = None
    """Where set, that many calls of `meet` have to be made at the same time."""

    async def note(self, call: Call, arguments: Note) -> str:
        self.calls.append(call)
        if self.held is not None:
            await self.held.wait()
        if isinstance(self.says, Exception):
            raise self.says
        if arguments.words == "no":
            raise ToolRefused("there is nothing to write down: say what")
        self.noted.append(arguments.words)
        return self.says

    async def meet(self, call: Call, arguments: Note) -> str:
        if self.met is not None:
            await self.met.wait()
        return f"met as {arguments.words}"

    def toolbox(self) -> tuple[Tool[Any], ...]:
        return (
            Tool("note", "Write something down.", Note, self.note, frozenset({"notes:write"})),
            Tool("meet", "Meet others.", Note, self.meet, frozenset({"notes:read"}), together=True, repeatable=True),
            Tool("burn", "Burn all notes.", Note, self.note, frozenset({"notes:administer"})),
        )


def writes_down(body: dict[str, Any]) -> Reply | str:
    """What a model answers that has `note` write something down and, beside it, `meet` meet, and then says so."""
    if "tools" not in body:  # a summary
        return "Nothing of note."
    if any(message["role"] == "tool" for message in body["messages"]):
        return "It is written down."
    return Reply(text="A moment.", tool_calls=(("note", {"words": "x"}), ("meet", {"words": "x"})))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return desk_beside(monkeypatch)


def desk_beside(patch: pytest.MonkeyPatch) -> Desk:
    """Bots that are started from now on, until *patch* is undone, have the desk's tools besides their own."""
    made = Desk()

    def wired(*parts: Any) -> Toolbox:
        return Toolbox(*build_tools(*parts).values(), *made.toolbox())

    patch.setattr(bootstrap, "build_tools", wired)
    return made


def round_of(text: str = "", *calls: ToolCall, **more: Any) -> Round:
    """A round of an answer with those *calls*, and what they brought."""
    made = calls or (ToolCall("a", "find", '{"q": "x"}'), ToolCall("", "go now!", "no json"))
    results = tuple(Result("find", f"<tool_result>{number}</tool_result>", tokens=9) for number in range(len(made)))
    return Round(Completion(text, "m", tool_calls=made, **more), results)
