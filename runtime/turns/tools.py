"""Offers tools to the model, and runs its calls.

A call of a tool that was not offered is refused. A tool's answer is data for the model, cut to the room that is left.
Each result is stored under its turn, round and place (the call's position in its round, from 0). So a resumed turn runs
no call whose result is stored, and starts no call again that is not `Tool.repeatable`.
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
from grounding.pipeline import error_word
from grounding.prompt import NO_ROOM, USUAL_TOKEN_CHARACTERS, passage_label, render_tool_result
from grounding.prompt_input import Censor, RunContext, Tokens, as_data, clip
from grounding.tools import Arguments, Call, Evidence, Tool, Toolbox, ToolRefused, schema_text
from promptpolicy.sigils import Holder, Sigil, Sigils
from runtime.llm import Model, ToolCall
from runtime.stores import retry_until_stored
from runtime.turns.batch import Batch
from runtime.turns.censors import CENSORED, rule_and_reason, triggered_by_call
from runtime.turns.checkpoint import Checkpoints
from runtime.turns.rounds import Result, Round
from runtime.turns.turn_state import Question

MAX_CALLS = 8
"""The calls of one round that are run; those beyond fail, and the model is told so."""
WINDOW_SHARE = 8
"""The descriptions of all tools take at most this part (an eighth) of the model's window, else the prompt would have
too little room. Tools with a higher `Tool.spare` are left out first."""
MAX_ERROR_CHARACTERS = 1000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one turn, by name in their order; ``tokens`` is the size of their descriptions."""

    tools: Mapping[str, Tool[Any]]
    schemas: tuple[Mapping[str, Any], ...] = ()
    tokens: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tools)


NO_TOOLS = OfferedTools({})


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The turn whose tools are called, its input, and the rounds *before* the one whose calls are run."""

    batch: Batch
    question: Question
    context: RunContext
    before: tuple[Round, ...]

    @property
    def number(self) -> int:
        """The number of the round, from 0."""
        return len(self.before)

    def call(self, place: int, *, has_read_untrusted: bool) -> Call:
        """Return the call at *place* of the round as tools get it."""
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
    """Offers tools and runs calls, if the sigil of the people who ask allows it."""

    def __init__(
        self,
        settings: Settings,
        toolbox: Toolbox,
        model: Model,
        checkpoints: Checkpoints,
        tokens: Tokens,
        *,
        timeout_seconds: float = 20.0,
        result_max_tokens: int = 1200,
    ) -> None:
        """*timeout_seconds* bounds one call; a result of more than *result_max_tokens* is cut, and marked as cut."""
        self._max_rounds = settings.tool_max_rounds
        self._timeout_seconds = timeout_seconds
        self._max_tokens = result_max_tokens
        self._toolbox = toolbox
        self._model = model
        self._checkpoints = checkpoints
        self._tokens = tokens
        self._sigils = Sigils.from_settings(settings)
        self._offers: dict[tuple[str, ...], OfferedTools] = {}

    async def offer(
        self, question: Question, *, window_tokens: int, first: str | None, with_material: bool = False
    ) -> OfferedTools:
        """Return the tools that the model asked *first* is offered for *question*, which is not small talk.

        *with_material* also offers the search of codex material. The first call may wait for LiteLLM's import.
        """
        if not self._max_rounds or not self._toolbox or not await self._model.calls_tools(first):
            return NO_TOOLS
        for spare in sorted({tool.spare for tool in self._toolbox.values()}, reverse=True):
            names = (name for name, tool in self._toolbox.items() if tool.spare <= spare)
            offer = self.offered([name for name in names if with_material or name != SEARCH_CODEX], question)
            if offer.tokens * WINDOW_SHARE <= window_tokens:
                return offer
        return NO_TOOLS

    def sigil(self, question: Question) -> Sigil:
        """Return the sigil of the authors of *question*: what may be done for them."""
        holders = (Holder(author.user, Role(author.role)) for author in question.authors)
        return self._sigils.held_by(holders, question.key.context_id, vouched=question.vouched)

    def unused_scopes(self) -> Mapping[str, tuple[str, ...]]:
        """Return, by the names of sigils, those of their scopes that nothing in this process asks for."""
        return self._sigils.unused_scopes({MARKS, *(scope for tool in self._toolbox.values() for scope in tool.scopes)})

    def offered(self, names: Sequence[str], question: Question) -> OfferedTools:
        """Return the tools among *names* that exist and that may be used for *question*."""
        sigil = self.sigil(question)
        allowed = tuple(name for name in names if name in self._toolbox and self._is_permitted(name, sigil))
        if allowed not in self._offers:
            tools = {name: self._toolbox[name] for name in allowed}
            schemas = tuple(tool.schema for tool in tools.values())
            self._offers[allowed] = OfferedTools(
                tools, schemas, sum(self._tokens.count(schema_text(schema)) for schema in schemas)
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
        """Return the results of *calls* in their order, in at most *room* tokens together.

        *known* has the results of calls that were run before, by their place; None means that a process ended while it
        ran the call. Raises nothing that a tool raises, only `connectors.message.Superseded` and
        `connectors.message.StoreUnavailable`.
        """
        limit = min(self._max_tokens, room // max(len(calls), 1))
        results: dict[int, Result] = {place: result for place, result in known.items() if result is not None}

        async def run_call(place: int) -> None:
            results[place] = await self._run(turn, offer, place, calls[place], limit, begun=place in known)

        for places in self._groups(offer, calls, results):
            await _run_together([run_call(place) for place in places])
        return tuple(results[place] for place in range(len(calls)))

    def refuse(self, question: Question, calls: Sequence[ToolCall]) -> None:
        """Log *calls* that came in a round without tools, and are not run."""
        for call in calls:
            self._refuse_call(NO_TOOLS, call.name, question)

    def has_read_untrusted(self, rounds: Sequence[Round]) -> bool:
        """Whether a tool of *rounds* returned text that anybody may have written."""
        names = {result.tool for past in rounds for result in past.results if result.ok}
        return any(self._toolbox[name].untrusted for name in names if name in self._toolbox)

    def _groups(self, offer: OfferedTools, calls: Sequence[ToolCall], known: Mapping[int, Result]) -> list[list[int]]:
        """Return the places of the calls that are still to run, in order. Those of one group run at the same time."""
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
        self, turn: ToolContext, offer: OfferedTools, place: int, call: ToolCall, limit: int, *, begun: bool
    ) -> Result:
        tool = offer.tools.get(call.name)
        if place >= MAX_CALLS:
            result = self._error("", "too_many", f"only {MAX_CALLS} calls at a time are made. Call it again", limit)
        elif tool is None or not self._is_permitted(tool.name, self.sigil(turn.question)):
            name = call.name if call.name in self._toolbox else ""
            result = self._error(name, "refused", self._refuse_call(offer, call.name, turn.question), limit)
        else:
            result = await self._run_permitted(turn, tool, place, call, limit, begun=begun)
            _log.info("tool.called", tool=tool.name, round=turn.number, duration_ms=result.duration_ms, ok=result.ok)
        await retry_until_stored(lambda: self._checkpoints.save_tool_result(turn.batch, turn.number, place, result))
        return result

    async def _run_permitted(
        self, turn: ToolContext, tool: Tool[Any], place: int, call: ToolCall, limit: int, *, begun: bool
    ) -> Result:
        censors = triggered_by_call(turn.context.censors, call)
        blocking = next((censor for censor in censors if censor.severity == "block"), None)
        if blocking is not None:
            why = rule_and_reason(blocking)
            text = f"it was stopped, and nothing was done: {why}. Do not try another way round this rule"
            return self._error(tool.name, CENSORED, text, limit)
        try:
            arguments = tool.read(call.arguments)
        except ToolRefused as error:
            return self._error(tool.name, "arguments", str(error), limit)
        if not tool.repeatable and (begun or not await self._checkpoints.begin_tool(turn.batch, turn.number, place)):
            text = "it was interrupted, and nobody knows whether it was done. Do not claim that it was"
            return self._error(tool.name, "interrupted", text, limit)
        context = turn.call(place, has_read_untrusted=self.has_read_untrusted(turn.before))
        result = await self._call_tool(tool, context, arguments, limit)
        return self._add_warnings(result, censors, limit) if censors else result

    def _add_warnings(self, result: Result, censors: Sequence[Censor], limit: int) -> Result:
        """Put the warnings of *censors* before the text of *result*."""
        warnings = "\n".join(f"Warning: {rule_and_reason(censor)}." for censor in censors)
        text = clip(f"{warnings}\n{result.text}", self._tokens, limit) or NO_ROOM
        return replace(result, text=text, tokens=self._tokens.count(text))

    async def _call_tool(self, tool: Tool[Any], call: Call, arguments: Arguments, limit: int) -> Result:
        """Run *tool* and return its answer, or its error as text for the model."""
        started = time.perf_counter()
        evidence, failure, text = Evidence(""), "", ""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await tool.run(call, arguments)
            evidence = answer if isinstance(answer, Evidence) else Evidence(answer)
        except ToolRefused as error:
            failure, text = "refused_by_tool", str(error)
        except TimeoutError:
            failure, text = "timeout", f"it took longer than {self._timeout_seconds:g} s. Answer without it, and say so"
        except AgentRuntimeError as error:
            failure = error_word(error)
            text = f"it failed ({failure.replace('_', ' ')}). Answer without it, and say so"
        except Exception as error:  # noqa: BLE001 - a broken tool costs its result, not the turn; it is logged whole
            _log.exception("tool.failed", tool=tool.name)
            failure, text = error_word(error), "it broke. Answer without it, and say so"
        elapsed_ms = round((time.perf_counter() - started) * 1000)
        if failure:
            return self._error(tool.name, failure, text, limit, elapsed_ms)
        text = await self._render(evidence.text, limit)
        passages = tuple(
            passage for passage in evidence.passages if passage_label(passage.source, passage.heading) in text
        )
        return Result(tool.name, text, True, "", self._tokens.count(text), elapsed_ms, passages)

    def _error(self, tool: str, failure: str, text: str, limit: int, elapsed_ms: int = 0) -> Result:
        text = clip(as_data(f"Error: {text[:MAX_ERROR_CHARACTERS]}."), self._tokens, limit) or NO_ROOM
        return Result(tool, text, False, failure, self._tokens.count(text), elapsed_ms)

    async def _render(self, text: str, limit: int) -> str:
        if len(text) > limit * USUAL_TOKEN_CHARACTERS:  # it must be cut, which takes long
            return await asyncio.to_thread(render_tool_result, text, self._tokens, limit)
        return render_tool_result(text, self._tokens, limit)

    def _is_permitted(self, name: str, sigil: Sigil) -> bool:
        return all(sigil.allows(scope) for scope in self._toolbox[name].scopes)

    def _refuse_call(self, offer: OfferedTools, name: str, question: Question) -> str:
        """Log the call of a tool that is not offered, and return the text for the model. The event never has a name
        that the model invented."""
        exists = name in self._toolbox
        permitted = exists and self._is_permitted(name, self.sigil(question))
        reason = "unknown" if not exists else "not_offered" if permitted else "scope"
        _log.warning("tool.refused", tool=name if exists else "unknown", why=reason)
        tools = f"You may call: {', '.join(offer.names)}" if offer.tools else "No tool can be called here"
        return f"this tool is not yours to call. {tools}"


async def _run_together(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of *calls* at the same time. The first that fails cancels the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
