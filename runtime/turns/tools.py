"""Which tools the model is offered in a turn, and what comes of its calls.

A call is refused if its tool was not offered, whatever the model was told; what a tool answers is data for the
model, cut to what there is room for. Each result is journaled by turn, round and place: a turn that is taken up again
runs no call whose result is there, and begins none again that is not `Tool.repeatable`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, Role
from grounding.codex import SEARCH_CODEX
from grounding.memory.karma import SCOPE as MARKS
from grounding.pipeline import why
from grounding.prompt import NO_ROOM, USUAL_TOKEN_CHARACTERS, label, tool_results_rendered
from grounding.prompt_input import Censor, RunContext, Tokens, as_data, clip
from grounding.tools import Arguments, Call, Evidence, Tool, Toolbox, ToolRefused, schema_text
from promptpolicy.sigils import Holder, Sigil, Sigils
from runtime.llm import Model, ToolCall
from runtime.stores import retry_until_stored
from runtime.turns.batch import Batch
from runtime.turns.censors import CENSORED, because, of_call
from runtime.turns.checkpoint import Checkpoints
from runtime.turns.rounds import Result, Round
from runtime.turns.turn_state import Question

MAX_CALLS = 8
"""Calls that are run of one round; the model is told of those beyond."""
WINDOW_SHARE = 8
"""Tools whose descriptions take more than this part of the model's window are not offered, those that are spare first:
they would leave too little for the prompt."""
MAX_ERROR_CHARACTERS = 1000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one turn, by name in their order; ``tokens`` is what their descriptions take."""

    tools: Mapping[str, Tool[Any]]
    schemas: tuple[Mapping[str, Any], ...] = ()
    tokens: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tools)


NO_TOOLS = OfferedTools({})


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Whose turn it is, what it was given, and the rounds *before* the one whose calls are to be made."""

    batch: Batch
    question: Question
    context: RunContext
    before: tuple[Round, ...]

    @property
    def number(self) -> int:
        """Of the round, from 0."""
        return len(self.before)

    def call(self, place: int, *, has_read_untrusted: bool) -> Call:
        """The *place*-th call of the round."""
        batch, question = self.batch, self.question
        return Call(
            key=question.key,
            turn_id=batch.turn_id,
            authors=question.authors,
            user=batch.user,
            role=question.role,
            direct=question.direct,
            idempotency_key=f"{batch.turn_id}/{len(batch.envelopes)}/{self.number}/{place}",
            at=datetime.now(UTC),
            context=self.context,
            has_read_untrusted=has_read_untrusted,
        )


class Tooling:
    """Offers tools and runs calls, as the sigil of who asks allows."""

    def __init__(
        self,
        settings: Settings,
        toolbox: Toolbox,
        model: Model,
        checkpoints: Checkpoints,
        tokens: Tokens,
    ) -> None:
        self._max_rounds = settings.tool_max_rounds
        self._timeout_seconds = settings.tool_timeout_seconds
        self._max_tokens = settings.tool_result_max_tokens
        self._toolbox = toolbox
        self._model = model
        self._checkpoints = checkpoints
        self._tokens = tokens
        self._sigils = Sigils.from_settings(settings)
        self._offers: dict[tuple[str, ...], OfferedTools] = {}

    async def offer(
        self, question: Question, *, window_tokens: int, first: str | None, with_material: bool = False
    ) -> OfferedTools:
        """What the model that is asked first is offered for *question*, which is no small talk; *with_material* also
        what searches material. The first time it may wait for LiteLLM."""
        if not self._max_rounds or not self._toolbox or not await self._model.calls_tools(first):
            return NO_TOOLS
        for most in sorted({tool.spare for tool in self._toolbox.values()}, reverse=True):
            names = (name for name, tool in self._toolbox.items() if tool.spare <= most)
            offer = self.offered([name for name in names if with_material or name != SEARCH_CODEX], question)
            if offer.tokens * WINDOW_SHARE <= window_tokens:
                return offer
        return NO_TOOLS

    def sigil(self, question: Question) -> Sigil:
        """What may be done for whoever asks *question*."""
        holders = (Holder(author.user, Role(author.role)) for author in question.authors)
        return self._sigils.held_by(holders, question.key.context_id, vouched=question.vouched)

    def unneeded(self) -> Mapping[str, tuple[str, ...]]:
        """By the names of sigils, those of their scopes that allow nothing that there is in this process."""
        return self._sigils.unneeded({MARKS, *(scope for tool in self._toolbox.values() for scope in tool.scopes)})

    def offered(self, names: Sequence[str], question: Question) -> OfferedTools:
        """Those of *names* that there are and that may be used for *question*."""
        sigil = self.sigil(question)
        allowed = tuple(name for name in names if name in self._toolbox and self._is_permitted(name, sigil))
        if allowed not in self._offers:
            tools = {name: self._toolbox[name] for name in allowed}
            schemas = tuple(tool.schema for tool in tools.values())
            self._offers[allowed] = OfferedTools(
                tools, schemas, sum(self._tokens.count(schema_text(one)) for one in schemas)
            )
        return self._offers[allowed]

    async def run(
        self,
        turn: ToolContext,
        offer: OfferedTools,
        calls: Sequence[ToolCall],
        room: int,
        known: Mapping[int, Result | None],
    ) -> tuple[Result, ...]:
        """The results of *calls* in their order, in at most *room* tokens together. Those of *known*, by their place,
        were run before; None there was begun by a process that ended. Raises nothing that a tool raises, only
        `connectors.message.Superseded` and `connectors.message.StoreUnavailable`.
        """
        most = min(self._max_tokens, room // max(len(calls), 1))
        results: dict[int, Result] = {place: result for place, result in known.items() if result is not None}

        async def one(place: int) -> None:
            results[place] = await self._run(turn, offer, place, calls[place], most, begun=place in known)

        for places in self._groups(offer, calls, results):
            await _beside_each_other([one(place) for place in places])
        return tuple(results[place] for place in range(len(calls)))

    def refuse(self, question: Question, calls: Sequence[ToolCall]) -> None:
        """Tell of *calls* that are not run at all."""
        for call in calls:
            self._refused(NO_TOOLS, call.name, question)

    def has_read_untrusted(self, rounds: Sequence[Round]) -> bool:
        """Whether in *rounds* the model was told what may be anybody's words."""
        told = {result.tool for one in rounds for result in one.results if result.ok}
        return any(self._toolbox[name].untrusted for name in told if name in self._toolbox)

    def _groups(self, offer: OfferedTools, calls: Sequence[ToolCall], known: Mapping[int, Result]) -> list[list[int]]:
        """The places of *calls* that are still to be run, in order; those of one group run at the same time."""
        groups: list[list[int]] = []
        joins = False
        for place, call in enumerate(calls):
            if place in known:
                continue
            tool = offer.tools.get(call.name)
            together = tool is None or tool.together
            if joins and together:
                groups[-1].append(place)
            else:
                groups.append([place])
            joins = together
        return groups

    async def _run(
        self, turn: ToolContext, offer: OfferedTools, place: int, call: ToolCall, most: int, *, begun: bool
    ) -> Result:
        tool = offer.tools.get(call.name)
        if place >= MAX_CALLS:
            result = self._wrong("", "too_many", f"only {MAX_CALLS} calls at a time are made. Call it again", most)
        elif tool is None or not self._is_permitted(tool.name, self.sigil(turn.question)):
            known = call.name if call.name in self._toolbox else ""
            result = self._wrong(known, "refused", self._refused(offer, call.name, turn.question), most)
        else:
            result = await self._permitted(turn, tool, place, call, most, begun=begun)
            _log.info("tool.called", tool=tool.name, round=turn.number, duration_ms=result.duration_ms, ok=result.ok)
        await retry_until_stored(lambda: self._checkpoints.save_tool_result(turn.batch, turn.number, place, result))
        return result

    async def _permitted(
        self, turn: ToolContext, tool: Tool[Any], place: int, call: ToolCall, most: int, *, begun: bool
    ) -> Result:
        censors = of_call(turn.context.censors, call)
        blocking = next((one for one in censors if one.severity == "block"), None)
        if blocking is not None:
            said = f"it was stopped, and nothing was done: {because(blocking)}. Do not try another way round this rule"
            return self._wrong(tool.name, CENSORED, said, most)
        try:
            arguments = tool.read(call.arguments)
        except ToolRefused as error:
            return self._wrong(tool.name, "arguments", str(error), most)
        if not tool.repeatable and (begun or not await self._checkpoints.begin_tool(turn.batch, turn.number, place)):
            said = "it was interrupted, and nobody knows whether it was done. Do not claim that it was"
            return self._wrong(tool.name, "interrupted", said, most)
        made = turn.call(place, has_read_untrusted=self.has_read_untrusted(turn.before))
        result = await self._called(tool, made, arguments, most)
        return self._warned(result, censors, most) if censors else result

    def _warned(self, result: Result, censors: Sequence[Censor], most: int) -> Result:
        """*result* behind what the call set off, for the model to heed in its next word."""
        warning = "\n".join(f"Warning: {because(one)}." for one in censors)
        text = clip(f"{warning}\n{result.text}", self._tokens, most) or NO_ROOM
        return replace(result, text=text, tokens=self._tokens.count(text))

    async def _called(self, tool: Tool[Any], call: Call, arguments: Arguments, most: int) -> Result:
        """What *tool* says, or how it failed."""
        started = time.perf_counter()
        evidence, failed, said = Evidence(""), "", ""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await tool.run(call, arguments)
            evidence = answer if isinstance(answer, Evidence) else Evidence(answer)
        except ToolRefused as error:
            failed, said = "refused_by_tool", str(error)
        except TimeoutError:
            failed, said = "timeout", f"it took longer than {self._timeout_seconds:g} s. Answer without it, and say so"
        except AgentRuntimeError as error:
            failed = why(error)
            said = f"it failed ({failed.replace('_', ' ')}). Answer without it, and say so"
        except Exception as error:  # noqa: BLE001 - a broken tool costs its result, not the turn; it is logged whole
            _log.exception("tool.failed", tool=tool.name)
            failed, said = why(error), "it broke. Answer without it, and say so"
        elapsed_ms = round((time.perf_counter() - started) * 1000)
        if failed:
            return self._wrong(tool.name, failed, said, most, elapsed_ms)
        shown = await self._shown(evidence.text, most)
        passages = tuple(one for one in evidence.passages if label(one.source, one.heading) in shown)
        return Result(tool.name, shown, True, "", self._tokens.count(shown), elapsed_ms, passages)

    def _wrong(self, tool: str, failed: str, said: str, most: int, elapsed_ms: int = 0) -> Result:
        text = clip(as_data(f"Error: {said[:MAX_ERROR_CHARACTERS]}."), self._tokens, most) or NO_ROOM
        return Result(tool, text, False, failed, self._tokens.count(text), elapsed_ms)

    async def _shown(self, text: str, most: int) -> str:
        if len(text) > most * USUAL_TOKEN_CHARACTERS:  # it is to be cut
            return await asyncio.to_thread(tool_results_rendered, text, self._tokens, most)
        return tool_results_rendered(text, self._tokens, most)

    def _is_permitted(self, name: str, sigil: Sigil) -> bool:
        return all(sigil.allows(scope) for scope in self._toolbox[name].scopes)

    def _refused(self, offer: OfferedTools, name: str, question: Question) -> str:
        """Tell of a call of a tool that is not offered; what the model is told. Names that the model made up are in no
        event."""
        exists = name in self._toolbox
        permitted = exists and self._is_permitted(name, self.sigil(question))
        reason = "unknown" if not exists else "not_offered" if permitted else "scope"
        _log.warning("tool.refused", tool=name if exists else "unknown", why=reason)
        there = f"You may call: {', '.join(offer.names)}" if offer.tools else "No tool can be called here"
        return f"this tool is not yours to call. {there}"


async def _beside_each_other(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all of *calls*. The first that fails ends the others, and its error is raised."""
    if len(calls) == 1:
        await calls[0]
        return
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
