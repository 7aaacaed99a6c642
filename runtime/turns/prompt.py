"""Builds the prompt for a question: grounding and behaviour side by side, then one strict input, then the bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import structlog

from config.settings import Settings
from connectors.message import AgentRuntimeError, ConversationKey, Role, Scope, StoreUnavailable
from grounding.memory.frames import SHIPPED, Frames, InvalidFrames, frames_of
from grounding.pipeline import Deciding, Grounds, Pipeline, true_error, why
from grounding.prompt import (
    LONGEST_TOKEN_CHARACTERS,
    UNKNOWN,
    Condensed,
    ContextTooLarge,
    Request,
    Shown,
    after,
    build_prompt,
    compared,
    condensed,
    session,
    stood,
    tells_all,
)
from grounding.prompt_input import (
    Budgets,
    DegradedBlock,
    LineByLine,
    ModelMemory,
    RunContext,
    SigilInput,
    TailEntry,
    Tokens,
)
from grounding.strategy import ENGLISH, Choice, Cues, InvalidCues, Strategy, cues_of
from promptpolicy import policy
from promptpolicy.directives import Directives
from promptpolicy.policy import Composer, Directive, Kind, Policy, PolicyTooLarge
from runtime.formatters import Formatters, Made
from runtime.llm import Model
from runtime.machine import Surroundings
from runtime.turns.material import ChosenMaterial, MaterialChooser, MaterialRequest, merged
from runtime.turns.tools import NO_TOOLS, Tooling
from runtime.turns.turn_state import BuiltPrompt, Question

LONG_TEXT_CHARACTERS = 20_000
"""Beyond this a prompt is put together off the event loop."""
BUDGETS_KNOWN = 64
"""Of so many windows and tools."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Guides:
    """What decides how a message is taken."""

    cues: Cues
    frames: Frames


def _guides(held: Sequence[Directive]) -> _Guides:
    return _Guides(cues_in(held), frames_in(held))


def _request(question: Question) -> Request:
    return Request(question.key.workspace_id, question.key.context_id, question.text)


class CensorsUnknown(AgentRuntimeError):
    """Records are kept that cannot be read, so that nobody knows what must not be said."""

    retryable = True


class PromptBuilder:
    """Builds prompts. Holds what that needs; between them it keeps only what is the same for the same input."""

    def __init__(
        self,
        settings: Settings,
        *,
        deciding: Deciding,
        pipeline: Pipeline,
        directives: Directives,
        model: Model,
        tooling: Tooling,
        formatters: Formatters,
        attaching: MaterialChooser,
        tokens: Tokens,
        surroundings: Surroundings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
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
        self._composer = Composer(self._tokens.count, settings.policy_max_tokens)
        self._known_budgets: dict[tuple[int, int], Budgets] = {}

    async def build(
        self,
        question: Question,
        turn_id: str,
        history: Sequence[TailEntry] | None = None,
        *,
        first: str | None = None,
    ) -> BuiltPrompt:
        """The prompt for *question*. Without a *turn_id* nothing is stored, else the numbers that the lines of the
        global context were given. Raises `grounding.prompt.assemble.ContextTooLarge`; if nobody can tell what
        censors hold,
        `connectors.message.StoreUnavailable` while the store is away and else `CensorsUnknown`.

        *history* stands in for the stored conversation if it is given; *first* is the model that will be asked
        first, if not the one of the settings.
        """
        window = await self._model.window_tokens(first)  # the first time it may wait for LiteLLM's import
        offer = await self._tooling.offer(question, window_tokens=window, first=first)
        started = time.perf_counter()
        budgets = self._budgets(window, offer.tokens)
        scope = question.key.scope
        today = self._now().astimezone(UTC).date().isoformat()
        guessed = _guides(self._directives.last_loaded(scope) or ())
        try:
            async with asyncio.TaskGroup() as parts:
                holding = parts.create_task(self._held(scope))
                looking = parts.create_task(self._attaching.look(scope, window))
                injecting = parts.create_task(self._formatters.inject(_request(question)))
                choice, grounds = await self._ground(question, turn_id, history, budgets, guessed, today)
        except BaseExceptionGroup as several:
            raise true_error(several) from several
        held, degraded = holding.result()
        guides = _guides(held)
        if guides.cues is not guessed.cues or guides.frames is not guessed.frames:
            # They were changed since this process looked last: rare enough to ask all layers again.
            choice, grounds = await self._ground(question, turn_id, history, budgets, guides, today)
        if grounds.censors is None:
            raise _unbound(grounds.degraded)
        if choice.small_talk:
            offer, budgets = NO_TOOLS, self._budgets(window)
        identity = self._identity(question.role, held, degraded)
        told, inject = identity[0].text, injecting.result() + await self._of_session(question, turn_id, grounds.before)
        size, memory = self._tokens.count(told), self._memory(first)
        turn = MaterialRequest(
            question, first, budgets, told, size, offer, inject.texts, choice.small_talk, bool(turn_id), memory
        )

        async def finished(attached: ChosenMaterial) -> BuiltPrompt:
            left = self._budgets(window, attached.offer.tokens)
            context = self._context(question, turn_id, choice, left, grounds, identity, attached, inject, today)
            whole = self._on_this_machine(context, memory, grounds.before)
            return await self._built(whole, question, grounds, started)

        attached = await self._attaching.attach(looking.result(), turn)
        try:
            return await finished(attached)
        except ContextTooLarge:
            if attached.input is None or attached.input.mode != "whole":
                raise
            # Material is the only one of what is never cut that there is another way to give.
            return await finished(await self._attaching.attach(looking.result(), turn, crowded=True))

    def _budgets(self, window: int, tools_tokens: int = 0) -> Budgets:
        """Those of the settings for a window, of which tools take some; mostly the same as for the turn before."""
        known = self._known_budgets.get((window, tools_tokens))
        if known is None:
            if len(self._known_budgets) >= BUDGETS_KNOWN:
                self._known_budgets.clear()
            known = Budgets.from_settings(self._settings, window, tools_tokens)
            self._known_budgets[window, tools_tokens] = known
        return known

    async def _built(self, context: RunContext, question: Question, grounds: Grounds, started: float) -> BuiltPrompt:
        """The prompt of *context*, and what it has in common with the one before. *started* is when it was begun."""
        made = await self._made(context, question)
        if grounds.going and not tells_all(made.context, made.prompt):
            # There is no room to say what has changed: the blocks are shown as they are now.
            there = grounds.going.settled.afresh(grounds.going.there)
            now = {"global_context": there.global_context, "summary": there.summary, "deltas": there.deltas}
            made = await self._made(context.model_copy(update=now), question)
        _tell(made)
        stands = stood(made.prompt)
        return BuiltPrompt(
            made.context,
            made.prompt,
            (time.perf_counter() - started) * 1000,
            compared(grounds.before.blocks, made.prompt, stands) if grounds.before else UNKNOWN,
            after(made.context, made.prompt, grounds.before, question.audience, made.whole, stands),
            _is_renewed(made.context, grounds),
        )

    async def _of_session(self, question: Question, turn_id: str, before: Shown | None) -> Made:
        """What formatters make for the session; if a turn came before, what that was given."""
        id_of_session, given = (before.id, before.injected) if before else (turn_id, ())
        return await self._formatters.of_session(_request(question), id_of_session, given)

    async def _made(self, context: RunContext, question: Question) -> Condensed:
        """The prompt of *context*, and what it is made of."""
        context = await self._formatters.render(context, self._tokens)
        if question.characters > LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(condensed, context, self._tokens)
        return condensed(context, self._tokens)

    def _memory(self, first: str | None) -> ModelMemory | None:
        """What there is for the cache of the model that is asked *first*."""
        if self._surroundings is None:
            return None
        return self._surroundings.memory(first if first in self._model.names else self._model.name)

    def _on_this_machine(self, context: RunContext, memory: ModelMemory | None, before: Shown | None) -> RunContext:
        """*context* with what is known of the machine, as the turn *before* was told as long as nothing that matters
        has changed, and of the *memory* of the model."""
        if self._surroundings is None:
            return context
        told = self._surroundings.environment(before.environment if before else None)
        return context.model_copy(update={"environment": told, "memory": memory})

    async def save_session(self, key: ConversationKey, built: BuiltPrompt) -> None:
        """Keep what the prompt showed for the next one. Never raises: without it the next one is read anew."""
        try:
            async with asyncio.timeout(self._settings.redis_timeout_seconds):
                await self._pipeline.continuing.keep(key, built.shown)
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("store.degraded", store="sessions", why=why(error), workspace_id=key.workspace_id)

    async def _ground(
        self,
        question: Question,
        turn_id: str,
        history: Sequence[TailEntry] | None,
        budgets: Budgets,
        guides: _Guides,
        today: str,
    ) -> tuple[Choice, Grounds]:
        key, text, cues = question.key, question.text, guides.cues
        first = self._deciding.by_cues(text, cues)
        ground = partial(
            self._pipeline.ground,
            key, text, first, budgets, turn_id, history, question.audience, cues, guides.frames, today,
        )  # fmt: skip
        if not first.open:
            return first, await ground()
        await self._deciding.awake(first, key)
        grounds = await ground(deciding=partial(self._deciding.decide, first, key, text, cues))
        return grounds.choice or first, grounds

    async def _held(self, scope: Scope) -> tuple[tuple[Directive, ...], tuple[DegradedBlock, ...]]:
        """The directives that hold. Without the store those that held a moment ago: better than no rules at all."""
        try:
            async with asyncio.timeout(self._settings.redis_timeout_seconds):
                return await self._directives.load(scope), ()
        except (AgentRuntimeError, TimeoutError) as error:
            return self._directives.last_loaded(scope) or (), (DegradedBlock(block="identity", why=why(error)),)

    def _identity(
        self, role: Role, held: tuple[Directive, ...], degraded: tuple[DegradedBlock, ...]
    ) -> tuple[Policy, tuple[DegradedBlock, ...]]:
        """How the model must behave. Without the store the baseline and the action policy still hold."""
        if degraded:
            return policy.measure(role, held, self._tokens.count), degraded
        try:
            return self._composer.compose(role, held), ()
        except PolicyTooLarge as error:
            return error.policy, (DegradedBlock(block="identity", why="over_policy_max_tokens"),)

    def _context(
        self,
        question: Question,
        turn_id: str,
        choice: Choice,
        budgets: Budgets,
        grounds: Grounds,
        identity: tuple[Policy, tuple[DegradedBlock, ...]],
        attached: ChosenMaterial,
        injected: Made,
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
            identity_versions=tuple(
                f"{one.scope}/{one.kind}{'/' + one.name if one.name else ''}@{one.version}" for one in composed.used
            ),
            query=question.query.model_copy(
                # What is beyond can never be shown, and would be kept with every turn.
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
            codex=codex,
            frame=grounds.remembered.frame,
            records=grounds.remembered.records,
            selection=grounds.remembered.selection,
            calibration=grounds.remembered.calibration,
            censors=grounds.censors or (),
            sigil=SigilInput(name=sigil.name, scopes=sigil.scopes),
            karma_floor=grounds.karma_floor,
            karma=grounds.karma,
            session=session(grounds.before, turn_id, today),
            today=today,
            deltas=grounds.deltas,
            # The acknowledgement is for replies that people wait for because something is looked up.
            hint=question.hint if choice.strategy is not Strategy.NONE else "",
            injected=injected.texts,
            degraded=(*degraded, *grounds.degraded, *attached.degraded, *question.degraded, *injected.lost),
            layout=self._settings.llm_grounding_layout,
            tools=attached.offer.names,
            budgets=budgets,
        )

    async def rebuild(self, context: RunContext) -> BuiltPrompt:
        """The prompt of *context* again, byte for byte."""
        started = time.perf_counter()
        prompt = await asyncio.to_thread(build_prompt, context, self._tokens)
        return BuiltPrompt(context, prompt, (time.perf_counter() - started) * 1000)


def _unbound(degraded: Sequence[DegradedBlock]) -> AgentRuntimeError:
    """Why nothing may be said yet: without its censors a workspace's bot is silent."""
    cause = next((one.why for one in degraded if one.block == "censors"), "")
    if cause in ("timeout", "store_unavailable"):
        return StoreUnavailable("which censors hold could not be read yet")
    return CensorsUnknown(f"which censors hold cannot be read: {cause}")


def _tell(made: Condensed) -> None:
    """``prompt.condensed``: if something was taken out to save memory, or should have been and could not."""
    memory = made.context.memory
    if memory is None or not (made.taken or made.is_over):
        return
    _log.warning(
        "prompt.condensed",
        blocks=list(made.taken),
        needed_mib=made.needed_mib,
        free_mib=memory.free_mib,
        buffer_mib=memory.buffer_mib,
        where=memory.where,
        is_over=made.is_over,
    )


def _is_renewed(context: RunContext, grounds: Grounds) -> bool:
    """If a session begins: whether the document was made after the last turn, which then did not use it."""
    summary = context.summary
    if summary is None or grounds.before is not None:
        return summary is not None and grounds.before is not None and summary.id != grounds.before.document
    return not context.tail or summary.newest_turn_id >= context.tail[-1].turn_id


log = structlog.get_logger()


def cues_in(held: Sequence[Directive]) -> Cues:
    """The cues that the directives *held* make, the least specific first; always the same object for the same ones."""
    changing = sorted((one for one in held if one.slot.kind is Kind.CUES), key=lambda one: one.slot.place.level.rank)
    try:
        return cues_of(tuple(one.text for one in changing))
    except InvalidCues as error:
        # They were checked when they were published: by a release that knew more than this one.
        log.warning("cues.unreadable", why=str(error), **changing[-1].slot.place.ids)
        return ENGLISH


log = structlog.get_logger()


def frames_in(held: Sequence[Directive]) -> Frames:
    """The frames that the directives *held* make, the least specific first; the same object for the same ones."""
    changing = sorted((one for one in held if one.slot.kind is Kind.FRAMES), key=lambda one: one.slot.place.level.rank)
    try:
        return frames_of(tuple(one.text for one in changing))
    except InvalidFrames as error:
        # They were checked when they were published: by a release that knew more than this one.
        log.warning("frames.unreadable", why=str(error), **changing[-1].slot.place.ids)
        return SHIPPED
