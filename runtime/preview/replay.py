"""What recorded turns would have been asked under a draft of the directives.

Each turn's stored input is taken as it is: summary, tail, passages, records, frame, strategy. Only its identity is
composed anew, once of the directives that are live now and once with the draft in their place, so that the draft makes
the whole difference. What the store can no longer give is named in ``notes`` and `MissingTurn`. Nothing is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config.settings import Settings
from connectors.message import ConversationKey, Role, Scope
from grounding.prompt import ContextTooLarge, build_prompt
from grounding.prompt_input import RunContext, Tokens
from grounding.transcript import Transcript
from promptpolicy import policy
from promptpolicy.directives import Directives
from promptpolicy.policy import Directive, Kind, Policy, Slot, places_of, with_drafts
from runtime.preview.comparison import PromptComparison, compare_prompts
from runtime.stores import NewerFormat
from runtime.turns import Manifest, Manifests, UnknownTurn, lowest_role

MOST_TURNS = 50
"""The most turns that are replayed at once."""
NO_TOOLS = "The turn called tools. In a preview no tools are called, so the answers do without what they returned."
Drafts = Mapping[Slot, str | None]
"""Texts in place of those of their slots' directives; None clears a slot."""
Progress = Callable[[int, int], None]
"""Is told how many of how many steps are done."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """A recorded turn with its prompt under the live directives (before) and under the draft (after).

    ``identity_tokens`` is of both. ``model`` answered it; empty if none did. ``is_as_sent``: the prompt before has the
    bytes that the model was sent; else ``notes`` say why not. ``problem`` says why one of the prompts cannot be built;
    then there is no ``comparison``.
    """

    turn_id: str
    at: str
    context_id: str
    question: str
    model: str
    identity_tokens: tuple[int, int]
    comparison: PromptComparison | None = None
    is_as_sent: bool = False
    notes: tuple[str, ...] = ()
    problem: str = ""

    def row(self) -> dict[str, Any]:
        """Return the turn as JSON values, for people's interfaces."""
        return {
            "turn_id": self.turn_id,
            "at": self.at,
            "context_id": self.context_id,
            "question": self.question,
            "model": self.model,
            "identity_tokens": list(self.identity_tokens),
            "as_sent": self.is_as_sent,
            "notes": list(self.notes),
            "problem": self.problem,
            "comparison": self.comparison.row() if self.comparison else None,
        }


@dataclass(frozen=True, slots=True)
class MissingTurn:
    """A turn that cannot be replayed, and why."""

    turn_id: str
    why: str


@dataclass(frozen=True, slots=True)
class Replay:
    """Replayed turns, in the order in which they were asked for."""

    turns: tuple[ReplayedTurn, ...]
    missing: tuple[MissingTurn, ...] = ()


class TurnReplayer:
    """Replays turns. Every method raises `connectors.message.StoreUnavailable`, and
    `promptpolicy.policy.InvalidDirective` for a draft whose text could not be published."""

    def __init__(
        self, settings: Settings, manifests: Manifests, directives: Directives, transcript: Transcript, tokens: Tokens
    ) -> None:
        self._policy_max_tokens = settings.policy_max_tokens
        self._manifests = manifests
        self._directives = directives
        self._transcript = transcript
        self._tokens = tokens

    async def replay_place(
        self,
        key: ConversationKey,
        count: int,
        drafts: Drafts,
        may_read: Callable[[Manifest], bool],
        progress: Progress = no_progress,
    ) -> Replay:
        """Replay the last *count* turns of the conversation *key*, the newest first; see `replay`."""
        turn_ids = await self._transcript.turn_ids(key, most=min(count, MOST_TURNS))
        return await self.replay(Scope(key.workspace_id), turn_ids, drafts, may_read, progress)

    async def replay(
        self,
        scope: Scope,
        turn_ids: Sequence[str],
        drafts: Drafts,
        may_read: Callable[[Manifest], bool],
        progress: Progress = no_progress,
    ) -> Replay:
        """Replay the first `MOST_TURNS` of *turn_ids* with *drafts*. A turn that the caller may not read is missing as
        an unknown one is."""
        turn_ids = turn_ids[:MOST_TURNS]
        turns: list[ReplayedTurn] = []
        missing: list[MissingTurn] = []
        for done, turn_id in enumerate(turn_ids):
            progress(done, len(turn_ids))
            try:
                manifest = await self._manifest(scope, turn_id, may_read)
            except (UnknownTurn, NewerFormat) as error:
                missing.append(MissingTurn(turn_id, str(error)))
            else:
                turns.append(await self._replay(manifest, drafts))
        progress(len(turn_ids), len(turn_ids))
        return Replay(tuple(turns), tuple(missing))

    async def _manifest(self, scope: Scope, turn_id: str, may_read: Callable[[Manifest], bool]) -> Manifest:
        manifest = await self._manifests.get(scope, turn_id)
        if not may_read(manifest):
            raise UnknownTurn(f"no turn {turn_id!r} is known in workspace {scope.workspace_id!r}")
        return manifest

    async def _replay(self, manifest: Manifest, drafts: Drafts) -> ReplayedTurn:
        scope = Scope(manifest.context.workspace_id, manifest.context.context_id)
        directives = await self._directives.load(scope)
        return await asyncio.to_thread(self._compare, manifest, directives, drafts, scope)

    def _compare(
        self, manifest: Manifest, directives: Sequence[Directive], drafts: Drafts, scope: Scope
    ) -> ReplayedTurn:
        recorded = manifest.context
        applicable = {slot: text for slot, text in drafts.items() if slot.place in places_of(scope)}
        role = lowest_role([Role(author.role) for author in recorded.authors] or [Role.MEMBER])
        live = policy.measure(role, directives, self._tokens.count)
        drafted = policy.measure(role, with_drafts(directives, applicable, scope), self._tokens.count)
        comparison, problem, is_as_sent = None, "", False
        try:
            before = build_prompt(_with_identity(recorded, live), self._tokens)
            after = build_prompt(_with_identity(recorded, drafted), self._tokens)
        except ContextTooLarge as error:
            problem = str(error)
        else:
            comparison = compare_prompts(before, after)
            is_as_sent = before.sha256 == manifest.prompt_sha256
        return ReplayedTurn(
            turn_id=manifest.turn_id,
            at=manifest.at,
            context_id=recorded.context_id,
            question=recorded.query.text,
            model=str(manifest.outcome.get("model", "")),
            identity_tokens=(live.tokens, drafted.tokens),
            comparison=comparison,
            is_as_sent=is_as_sent,
            notes=(*self._draft_notes(drafts, applicable, drafted), *_recorded_notes(manifest, live)),
            problem=problem,
        )

    def _draft_notes(self, drafts: Drafts, applicable: Drafts, drafted: Policy) -> list[str]:
        notes = [f"The draft for {slot.label} has no effect in this place." for slot in drafts.keys() - applicable]
        if any(slot.kind in (Kind.CUES, Kind.FRAMES) for slot in applicable):
            notes.append("Strategy and frame are as recorded; a dry run shows what a draft of cues or frames changes.")
        if drafted.tokens > self._policy_max_tokens:
            over = f"{drafted.tokens} tokens of POLICY_MAX_TOKENS {self._policy_max_tokens}"
            notes.append(f"With the draft the identity is too large to be published: {over}.")
        return notes


def _with_identity(context: RunContext, composed: Policy) -> RunContext:
    versions = tuple(directive.reference for directive in composed.used)
    return context.model_copy(update={"identity": composed.text, "identity_versions": versions})


def _recorded_notes(manifest: Manifest, live: Policy) -> list[str]:
    """Say what is not in the prompts as it was in the turn."""
    recorded, notes = manifest.context, list[str]()
    if live.text != recorded.identity:
        then, now = set(recorded.identity_versions), {directive.reference for directive in live.used}
        changes = ", ".join(
            [*(f"then {name}" for name in sorted(then - now)), *(f"now {name}" for name in sorted(now - then))]
        )
        notes.append(f"The instructions have changed since the turn: {changes or 'their fixed parts'}.")
    if manifest.cut:
        notes.append(f"Records that were forgotten since are in neither prompt: {manifest.cut}.")
    if recorded.query.images:
        notes.append(f"Pictures are not stored, so neither answer sees them: {len(recorded.query.images)}.")
    if any(round_["tools"] for round_ in manifest.outcome.get("rounds", ())):
        notes.append(NO_TOOLS)
    return notes
