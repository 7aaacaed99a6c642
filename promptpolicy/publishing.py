"""Publish directives: check them, write versions, and log an event for each change."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Iterable, Mapping

import structlog

from connectors.message import AgentRuntimeError, Role, Scope
from promptpolicy.directives import Directives, Draft, Origin, Snapshot, Version
from promptpolicy.file_tree import Refusal
from promptpolicy.policy import (
    EVERYWHERE,
    CountTokens,
    Directive,
    InvalidDirective,
    Kind,
    Level,
    Place,
    PolicyTooLarge,
    Slot,
    baseline,
    canonical,
    compose,
    measure,
    places_of,
)

ATTEMPTS = 20
"""How often a change is checked before giving up, if other processes publish in between."""

Check = Callable[[str], str]
"""Returns the problem of a text, or an empty text if there is none."""

log = structlog.get_logger()


def check_fits(slot: Slot, text: str | None, current: Iterable[Directive], count: CountTokens, max_tokens: int) -> None:
    """Check that every identity stays within its token limit if *slot* changes to *text* (None clears it). Pure.

    *current* must contain all directives that can be in one identity with the slot. Composes every identity with the
    slot: for a global directive or one of a workspace, that of each workspace and context with its own directives.
    Clearing is checked too, because it may expose a longer skill of the same name.
    Raises `PolicyTooLarge`, with the place in its text, unless the identity was over the limit before and gets
    smaller.
    """
    role = max(Role, key=lambda role: count(baseline(role)))
    by_place: dict[Place, list[Directive]] = {slot.place: []}
    for directive in current:
        by_place.setdefault(directive.slot.place, []).append(directive)
    affected = [place for place in by_place if slot.place in _places_above(place)]
    for place in sorted(affected, key=_by_name):
        before = [directive for part in _places_above(place) for directive in by_place.get(part, ())]
        after = [directive for directive in before if directive.slot != slot]
        if text is not None:
            after.append(Directive(slot, 0, text))
        try:
            compose(role, after, count, max_tokens)
        except PolicyTooLarge as error:
            if measure(role, before, count).tokens <= max(max_tokens, error.policy.tokens):
                raise PolicyTooLarge(f"{_where(place)}: {error}", error.policy) from None


def _places_above(place: Place) -> tuple[Place, ...]:
    """Return the places whose directives apply in *place*, including itself."""
    return (EVERYWHERE,) if place.scope is None else places_of(place.scope)


def _by_name(place: Place) -> tuple[str, str]:
    return ("", "") if place.scope is None else (place.scope.workspace_id, place.scope.context_id or "")


def _where(place: Place) -> str:
    if place.scope is None:
        return "in every workspace"
    if place.level is Level.WORKSPACE:
        return f"in the workspace {place.scope.workspace_id}"
    return f"in the context {place.scope.context_id} of the workspace {place.scope.workspace_id}"


class VersionMoved(AgentRuntimeError):
    """Somebody published in between: the newest version is ``current``, but the caller expected ``expected``."""

    user_text = "Somebody has changed this meanwhile. Look at the newest version and try again."

    def __init__(self, slot: Slot, expected: int, current: int) -> None:
        super().__init__(f"{slot.label} is at version {current}, not {expected}")
        self.expected = expected
        self.current = current


class PublishContended(AgentRuntimeError):
    """Others published faster than this change could be checked. Nothing was changed."""

    retryable = True
    user_text = "Others are changing the instructions right now. Please try again."


class Publisher:
    """Publishes directives to Redis.

    *count* counts tokens, as for `policy.compose`; *max_tokens* is ``POLICY_MAX_TOKENS``. *checks* finds problems in
    texts of kinds that the runtime itself reads (cues, frames); a problem raises `InvalidDirective`.

    All methods that change something raise `InvalidDirective`, `PolicyTooLarge`, `VersionMoved` (409 over HTTP) or
    `PublishContended`, after which nothing was changed, or `StoreUnavailable`, after which only the history shows
    whether something was changed.

    The version is written only if nothing under the slot's hash tag changed since the limit was checked. Only a global
    directive and one of a workspace can exceed the limit together, if two processes publish them at the same moment;
    `policy.compose` then reports it in each turn.
    """

    def __init__(
        self, directives: Directives, count: CountTokens, max_tokens: int, checks: Mapping[Kind, Check] | None = None
    ) -> None:
        self.directives = directives
        self._count = count
        self._max_tokens = max_tokens
        self._checks = checks or {}

    async def publish(
        self, slot: Slot, text: str, *, author: str, origin: Origin, expected_version: int | None = None
    ) -> Version:
        """Publish *text* as the newest version of *slot* and return it. It applies from the next turn on.

        *author* is ``connector:user_id`` or another name of the caller. *expected_version* is the version that the
        author saw, 0 for none. An unchanged text creates no new version.
        """
        return await self._put(slot, Draft(canonical(text), _author(author), origin), expected_version)

    async def clear(
        self, slot: Slot, *, author: str, origin: Origin, expected_version: int | None = None
    ) -> Version | None:
        """Clear *slot* with a new version and return it, or None if the slot never had a version."""
        if await self.directives.latest(slot) is None:
            if expected_version:
                raise VersionMoved(slot, expected_version, 0)
            return None
        return await self._put(slot, Draft(None, _author(author), origin), expected_version)

    async def rollback(
        self, slot: Slot, to_version: int, *, author: str, origin: Origin, expected_version: int | None = None
    ) -> Version:
        """Publish the text of version *to_version* as a new version. Also raises `NoSuchVersion`."""
        old = await self.directives.version(slot, to_version)
        return await self._put(slot, Draft(old.text, _author(author), origin, restores=to_version), expected_version)

    async def diff(self, slot: Slot, a: int, b: int) -> str:
        """Return the changes from version *a* to *b* as a unified diff, which is empty if there are none.

        A cleared version counts as an empty text. Raises `NoSuchVersion`.
        """
        old, new = [await self.directives.version(slot, number) for number in (a, b)]
        lines = difflib.unified_diff(
            (old.text or "").splitlines(),
            (new.text or "").splitlines(),
            f"{slot.label} version {a}",
            f"{slot.label} version {b}",
            lineterm="",
        )
        return "\n".join(lines)

    async def holding(self, scope: Scope) -> list[Version]:
        """Return the current versions that apply in *scope*, a workspace or one of its contexts.

        Sorted by level (global, workspace, context), then kind and name. Leaves out cleared slots.
        """
        home, place = Place(Scope(scope.workspace_id)), Place.of(scope)
        snapshots = [await self.directives.snapshot(EVERYWHERE), await self.directives.snapshot(home, place)]
        kinds = list(Kind)

        def order(version: Version) -> tuple[int, int, str]:
            slot = version.slot
            return slot.place.level.rank, kinds.index(slot.kind), slot.name

        versions = (version for snapshot in snapshots for version in snapshot.versions.values())
        return sorted((version for version in versions if version.text is not None), key=order)

    async def refused(self, home: Place) -> list[Refusal]:
        """Return the notes on files of *home* (global, or a workspace) that were not published.

        This publisher reads no files and returns none; `file_sync.FileSyncPublisher` does.
        """
        return []

    async def _put(self, slot: Slot, draft: Draft, expected_version: int | None = None) -> Version:
        check = self._checks.get(slot.kind)
        if check is not None and draft.text is not None and (problem := await asyncio.to_thread(check, draft.text)):
            raise InvalidDirective(f"{slot.label}: {problem}")
        for _ in range(ATTEMPTS):
            only = slot.place if slot.place.level is Level.CONTEXT else None
            snapshot = await self.directives.snapshot(slot.place.home, only)
            newest = snapshot.versions.get(slot)
            current = newest.version if newest else 0
            if expected_version is not None and current != expected_version:
                raise VersionMoved(slot, expected_version, current)
            await self._check(slot, draft, snapshot)
            outcome, number = await self.directives.append(slot, draft, snapshot.stamp, expected_version)
            if outcome == "moved":
                raise VersionMoved(slot, expected_version or 0, number)
            if outcome != "overtaken":
                version = await self.directives.version(slot, number)
                if outcome == "appended":
                    _log_change(version)
                return version
        raise PublishContended(f"{slot.label} was overtaken {ATTEMPTS} times")

    async def _check(self, slot: Slot, draft: Draft, snapshot: Snapshot) -> None:
        others = [EVERYWHERE] if slot.place.scope is not None else await self.directives.workspaces()
        snapshots = [snapshot, *[await self.directives.snapshot(home) for home in others]]
        current: list[Directive] = [directive for part in snapshots for directive in part.directives()]
        await asyncio.to_thread(check_fits, slot, draft.text, current, self._count, self._max_tokens)


def _author(author: str) -> str:
    if not author.strip() or not author.isprintable():
        raise InvalidDirective("a directive needs an author, in printable characters")
    return author


def _log_change(version: Version) -> None:
    slot = version.slot
    log.info(
        "directive.changed",
        scope=slot.place.level.value,
        kind=slot.kind.value,
        name=slot.name,
        version=version.version,
        author=version.author,
        origin=version.origin,
        cleared=version.text is None,
        **slot.place.ids,
    )
