"""Builds the prompt for a question. Read `PromptBuilder.build` top to bottom.

All that the stores have for a turn is read in one round trip; then the strategy is chosen, and what it asks for is
searched. The results become one strict input, a `RunContext`, and that alone decides the bytes of the prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, Role, Scope, StoreUnavailable
from connectors.redis_calls import Answer, RoundTrip
from grounding.memory.frames import SHIPPED, Frames, InvalidFrames, frames_of
from grounding.memory.frames import problem_in as problem_in_frames
from grounding.pipeline import Pipeline, StrategyChooser, TurnLayers, error_word, first_error
from grounding.prompt import (
    LONGEST_TOKEN_CHARACTERS,
    UNKNOWN,
    CondensedPrompt,
    ContextTooLarge,
    Request,
    Shown,
    build_prompt,
    condense_to_memory,
    next_session_state,
    reports_all_changes,
    session_input,
    shared_prefix,
)
from grounding.prompt_input import (
    DegradedBlock,
    LineByLine,
    ModelMemory,
    PromptLimits,
    RunContext,
    SigilInput,
    TailEntry,
    Tokens,
)
from grounding.strategy import ENGLISH, Choice, Cues, FoldedText, InvalidCues, Strategy, cues_of
from grounding.strategy import problem_in as problem_in_cues
from promptpolicy import policy
from promptpolicy.directives import Directives
from promptpolicy.policy import Directive, InvalidDirective, Kind, Policy, PolicyTooLarge, Slot, with_drafts
from runtime.formatters import FormattedTexts, Formatters
from runtime.llm import Model
from runtime.machine import MachineMonitor
from runtime.turns.material import ChosenMaterial, MaterialChooser, MaterialRequest, merged
from runtime.turns.tools import NO_TOOLS, Tooling
from runtime.turns.turn_state import BuiltPrompt, Question

if TYPE_CHECKING:
    from redis.asyncio import Redis

LONG_TEXT_CHARACTERS = 20_000
"""If a question is longer, its prompt is assembled in a thread."""
NO_DRAFTS: Mapping[Slot, str | None] = {}
_PROBLEMS = {Kind.CUES: problem_in_cues, Kind.FRAMES: problem_in_frames}
_log = structlog.get_logger()


def _request(question: Question) -> Request:
    return Request(question.key.workspace_id, question.key.context_id, question.text)


class CensorsUnknown(AgentRuntimeError):
    """The workspace's censors cannot be read. Nothing may be answered, because a censor might forbid it."""

    retryable = True


class PromptBuilder:
    """Builds prompts. Keeps nothing between them but caches of pure functions."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        *,
        deciding: StrategyChooser,
        pipeline: Pipeline,
        directives: Directives,
        model: Model,
        tooling: Tooling,
        formatters: Formatters,
        attaching: MaterialChooser,
        tokens: Tokens,
        surroundings: MachineMonitor | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._surroundings = surroundings
        self._deciding = deciding
        self._pipeline = pipeline
        self._directives = directives
        self._model = model
        self._tooling = tooling
        self._formatters = formatters
        self._attaching = attaching
        self._tokens = LineByLine(tokens)
        self._now = now

    async def build(
        self,
        question: Question,
        turn_id: str,
        history: Sequence[TailEntry] | None = None,
        *,
        first: str | None = None,
        drafts: Mapping[Slot, str | None] = NO_DRAFTS,
    ) -> BuiltPrompt:
        """Return the prompt for *question*.

        A *history* replaces the stored conversation. *first* is the model that will be asked first, if not the one of
        the settings. With a *turn_id* the numbers of the global context's lines are stored; without it nothing is.
        *drafts* are texts in place of those of their slots' directives (None clears a slot), for a dry run only.

        Raises `grounding.prompt.assemble.ContextTooLarge`, and `promptpolicy.policy.InvalidDirective` for a draft that
        could not be published or has no effect in the place. If the censors cannot be read, raises
        `connectors.message.StoreUnavailable` while the store is away, else `CensorsUnknown`.
        """
        if drafts and turn_id:
            raise ValueError("a turn is answered with the directives that are live, never with a draft")
        _check_tables(drafts)
        window = await self._model.window_tokens(first)  # the first time it may wait for LiteLLM's import
        offer = await self._tooling.offer(question, window_tokens=window, first=first)
        started = time.perf_counter()
        budgets = self._budgets(window, offer.tokens)
        key, scope = question.key, question.key.scope
        today = self._now().astimezone(UTC).date().isoformat()
        trip = RoundTrip(self._redis)
        stamps = trip.add(self._directives.stamps_call(scope))
        material = self._attaching.read(trip, scope, window)
        asker = question.authors[0].user if len(question.authors) == 1 else ""
        gathering = self._pipeline.begin(trip, key, budgets, turn_id, history, question.audience, asker)
        try:
            async with asyncio.TaskGroup() as parts:
                injected_task = parts.create_task(self._formatters.inject(_request(question)))
                await trip.send()
                directives, degraded = await self._load_directives(scope, stamps)
                directives = with_drafts(directives, drafts, scope)
                cues, frames = cues_in(directives), frames_in(directives)
                messages = await gathering.last_messages()
                said = FoldedText.of(question.text)
                decision = await self._deciding.choose(key, said, cues, messages or (), top_k=budgets.top_k)
                choice = decision.choice
                grounds = await gathering.gather(said, decision, messages, cues=cues, frames=frames, today=today)
        except BaseExceptionGroup as several:
            raise first_error(several) from several
        if grounds.censors is None:
            raise _censors_error(grounds.degraded)
        if choice.small_talk:
            offer, budgets = NO_TOOLS, self._budgets(window)
        identity = self._identity(question.role, directives, degraded)
        rules = identity[0].text
        injected = injected_task.result() + await self._session_blocks(question, turn_id, grounds.before)
        memory = self._memory(first)
        turn = MaterialRequest(
            question, first, budgets, rules, self._tokens.count(rules), offer, injected.texts, choice.small_talk,
            bool(turn_id), memory,
        )  # fmt: skip

        async def assemble(attached: ChosenMaterial) -> BuiltPrompt:
            rest = self._budgets(window, attached.offer.tokens)
            context = self._context(question, turn_id, choice, rest, grounds, identity, attached, injected, today)
            context = self._with_machine(context, memory, grounds.before)
            return await self._assemble(context, question, grounds, started)

        attached = await self._attaching.attach(material, turn)
        try:
            return await assemble(attached)
        except ContextTooLarge:
            if attached.input is None or attached.input.mode != "whole":
                raise
            # Of the blocks that are never cut, material is the only one that can be searched instead.
            return await assemble(await self._attaching.attach(material, turn, crowded=True))

    def _budgets(self, window: int, tools_tokens: int = 0) -> PromptLimits:
        """Return the budgets for a window of which tool descriptions take *tools_tokens*."""
        return PromptLimits.from_settings(self._settings, window, tools_tokens)

    async def _assemble(
        self, context: RunContext, question: Question, grounds: TurnLayers, started: float
    ) -> BuiltPrompt:
        """Assemble the prompt of *context* and compare it with the conversation's last one. *started* is a
        `time.perf_counter`."""
        condensed_prompt = await self._condense(context, question)
        if grounds.going and not reports_all_changes(condensed_prompt.context, condensed_prompt.prompt):
            # There is no room for the changes since the last prompt: the blocks are shown as they are now.
            latest = grounds.going.settled.without_deltas(grounds.going.there)
            blocks = {"global_context": latest.global_context, "summary": latest.summary, "deltas": latest.deltas}
            condensed_prompt = await self._condense(context.model_copy(update=blocks), question)
        _log_condensed(condensed_prompt)
        context, prompt = condensed_prompt.context, condensed_prompt.prompt
        return BuiltPrompt(
            context,
            prompt,
            (time.perf_counter() - started) * 1000,
            shared_prefix(grounds.before.blocks, prompt) if grounds.before else UNKNOWN,
            next_session_state(context, prompt, grounds.before, question.audience, condensed_prompt.whole),
            _is_renewed(context, grounds),
        )

    async def _session_blocks(self, question: Question, turn_id: str, before: Shown | None) -> FormattedTexts:
        """Return the formatters' blocks of the session: those of the turn *before*, if there was one."""
        session_id, blocks = (before.id, before.injected) if before else (turn_id, ())
        return await self._formatters.session_texts(_request(question), session_id, blocks)

    async def _condense(self, context: RunContext, question: Question) -> CondensedPrompt:
        """Assemble the prompt of *context*, and condense it if the model's cache has no room for it."""
        context = await self._formatters.render(context, self._tokens)
        if question.characters > LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(condense_to_memory, context, self._tokens)
        return condense_to_memory(context, self._tokens)

    def _memory(self, first: str | None) -> ModelMemory | None:
        """Return the memory for the cache of the model that is asked *first*; None if it is not known."""
        if self._surroundings is None:
            return None
        return self._surroundings.memory(first if first in self._model.names else self._model.name)

    def _with_machine(self, context: RunContext, memory: ModelMemory | None, before: Shown | None) -> RunContext:
        """Return *context* with the state of the machine and the model's *memory*. If nothing that matters has changed,
        the state is the one that the turn *before* had, so that the bytes stay the same."""
        if self._surroundings is None:
            return context
        environment = self._surroundings.environment(before.environment if before else None)
        return context.model_copy(update={"environment": environment, "memory": memory})

    async def _load_directives(
        self, scope: Scope, stamps: Answer[list[str]]
    ) -> tuple[tuple[Directive, ...], tuple[DegradedBlock, ...]]:
        """Return the directives of *scope*, whose *stamps* were read. If they cannot be read, return those that were
        loaded last: they are better than no rules at all."""
        try:
            async with asyncio.timeout(self._settings.redis_timeout_seconds):
                return await self._directives.load(scope, stamps.result()), ()
        except Exception as error:  # noqa: BLE001 - a lost layer degrades the turn, whatever broke it
            return self._directives.last_loaded(scope) or (), (DegradedBlock(block="identity", why=error_word(error)),)

    def _identity(
        self, role: Role, directives: tuple[Directive, ...], degraded: tuple[DegradedBlock, ...]
    ) -> tuple[Policy, tuple[DegradedBlock, ...]]:
        """Return the policy: how the model must behave. The baseline and the action policy hold without the store,
        too."""
        if degraded:
            return policy.measure(role, directives, self._tokens.count), degraded
        try:
            return policy.compose(role, directives, self._tokens.count, self._settings.policy_max_tokens), ()
        except PolicyTooLarge as error:
            return error.policy, (DegradedBlock(block="identity", why="over_policy_max_tokens"),)

    def _context(
        self,
        question: Question,
        turn_id: str,
        choice: Choice,
        budgets: PromptLimits,
        grounds: TurnLayers,
        identity: tuple[Policy, tuple[DegradedBlock, ...]],
        attached: ChosenMaterial,
        injected: FormattedTexts,
        today: str,
    ) -> RunContext:
        composed, degraded = identity
        sigil = self._tooling.sigil(question)
        passages, codex = merged(grounds.passages, attached, budgets.top_k)
        return RunContext(
            turn_id=turn_id,
            workspace_id=question.key.workspace_id,
            context_id=question.key.context_id,
            connector=question.key.connector,
            external_id=question.key.external_id,
            direct=question.direct,
            audience=question.audience or "",
            authors=question.authors,
            identity=composed.text,
            identity_versions=tuple(directive.reference for directive in composed.used),
            query=question.query.model_copy(
                # The rest could never be shown, and would be stored with the turn.
                update={"text": question.query.text[: budgets.query_tokens * LONGEST_TOKEN_CHARACTERS]}
            ),
            strategy=choice.strategy.value,
            reason=choice.reason,
            small_talk=choice.small_talk,
            wants_history=choice.wants_history,
            wants_documents=choice.wants_documents,
            global_context=grounds.global_context,
            summary=grounds.summary,
            tail=grounds.tail,
            recalled=grounds.recalled,
            passages=passages,
            translation=grounds.translation,
            codex=codex,
            frame=grounds.remembered.frame,
            records=grounds.remembered.records,
            selection=grounds.remembered.selection,
            calibration=grounds.remembered.calibration,
            censors=grounds.censors or (),
            sigil=SigilInput(name=sigil.name, scopes=sigil.scopes),
            karma_floor=grounds.karma_floor,
            karma=grounds.karma,
            session=session_input(grounds.before, turn_id, today),
            today=today,
            deltas=grounds.deltas,
            # The hint asks for an acknowledgement, which is for replies that need a search.
            hint=question.hint if choice.strategy is not Strategy.NONE else "",
            injected=injected.texts,
            degraded=(*degraded, *grounds.degraded, *attached.degraded, *question.degraded, *injected.lost),
            layout=self._settings.llm_grounding_layout,
            tools=attached.offer.names,
            budgets=budgets,
        )

    async def rebuild(self, context: RunContext) -> BuiltPrompt:
        """Build the prompt of *context* again, byte for byte."""
        started = time.perf_counter()
        prompt = await asyncio.to_thread(build_prompt, context, self._tokens)
        return BuiltPrompt(context, prompt, (time.perf_counter() - started) * 1000)


def _check_tables(drafts: Mapping[Slot, str | None]) -> None:
    """Raise `InvalidDirective` for a draft of cues or frames that cannot be read."""
    for slot, text in drafts.items():
        if text is not None and (check := _PROBLEMS.get(slot.kind)) and (problem := check(text)):
            raise InvalidDirective(f"{slot.label}: {problem}")


def _censors_error(degraded: Sequence[DegradedBlock]) -> AgentRuntimeError:
    """Return the error for censors that could not be read: without them a workspace's bot is silent."""
    cause = next((block.why for block in degraded if block.block == "censors"), "")
    if cause in ("timeout", "store_unavailable"):
        return StoreUnavailable("which censors hold could not be read yet")
    return CensorsUnknown(f"which censors hold cannot be read: {cause}")


def _log_condensed(prompt: CondensedPrompt) -> None:
    """Log ``prompt.condensed`` if blocks were removed to save memory, or if the prompt is too large even so."""
    memory = prompt.context.memory
    if memory is None or not (prompt.taken or prompt.is_over):
        return
    _log.warning(
        "prompt.condensed",
        blocks=list(prompt.taken),
        needed_mib=prompt.needed_mib,
        free_mib=memory.free_mib,
        buffer_mib=memory.buffer_mib,
        where=memory.where,
        is_over=prompt.is_over,
    )


def _is_renewed(context: RunContext, grounds: TurnLayers) -> bool:
    """Whether the summary is newer than the one of the last turn. If a session begins, that turn's is not known: then
    the summary counts as newer if it covers the newest turn of the tail."""
    summary = context.summary
    if summary is None or grounds.before is not None:
        return summary is not None and grounds.before is not None and summary.id != grounds.before.document
    return not context.tail or summary.newest_turn_id >= context.tail[-1].turn_id


def cues_in(directives: Sequence[Directive]) -> Cues:
    """Return the cues that *directives* define; always the same object for the same directives."""
    ordered = _of_kind(directives, Kind.CUES)
    try:
        return cues_of(tuple(directive.text for directive in ordered))
    except InvalidCues as error:
        # They were valid when they were published, but a newer release published them.
        _log.warning("cues.unreadable", why=str(error), **ordered[-1].slot.place.ids)
        return ENGLISH


def frames_in(directives: Sequence[Directive]) -> Frames:
    """Return the frames that *directives* define; always the same object for the same directives."""
    ordered = _of_kind(directives, Kind.FRAMES)
    try:
        return frames_of(tuple(directive.text for directive in ordered))
    except InvalidFrames as error:
        # As in `cues_in`.
        _log.warning("frames.unreadable", why=str(error), **ordered[-1].slot.place.ids)
        return SHIPPED


def _of_kind(directives: Sequence[Directive], kind: Kind) -> list[Directive]:
    """Return the directives of *kind*, the least specific first."""
    matching = (directive for directive in directives if directive.slot.kind is kind)
    return sorted(matching, key=lambda directive: directive.slot.place.level.rank)
