"""The door through which directives change: checks, versions, and one event for each change."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping

import structlog

from connectors.message import AgentRuntimeError, Scope
from promptpolicy.directives import Directives, Snapshot
from promptpolicy.limits import check_fits
from promptpolicy.policy import CountTokens
from promptpolicy.slot import EVERYWHERE, Directive, InvalidDirective, Kind, Level, Place, Slot, canonical
from promptpolicy.tree import Note
from promptpolicy.versions import Draft, Origin, Version

ATTEMPTS = 20
"""Times that a change is checked again because another process published in between."""

Check = Callable[[str], str]
"""What is wrong with a text; empty where nothing is."""

log = structlog.get_logger()


class VersionMoved(AgentRuntimeError):
    """Somebody published in between: ``current`` is the newest version, ``expected`` was asked for."""

    user_text = "Somebody has changed this meanwhile. Look at the newest version and try again."

    def __init__(self, slot: Slot, expected: int, current: int) -> None:
        super().__init__(f"{slot.label} is at version {current}, not {expected}")
        self.expected = expected
        self.current = current


class PublishContended(AgentRuntimeError):
    """Others published faster than this change could be checked; nothing was changed."""

    retryable = True
    user_text = "Others are changing the instructions right now. Please try again."


class Publisher:
    """Publishes directives to Redis.

    *count* counts tokens as `policy.compose` does; *max_tokens* is ``POLICY_MAX_TOKENS``; *checks* say what is
    wrong with a text of a kind that others read, which raises `InvalidDirective`. All methods that change
    something raise `InvalidDirective`, `PolicyTooLarge`, `VersionMoved` (a 409 over HTTP),
    `PublishContended`, after which nothing was changed, and `StoreUnavailable`, after which only the
    history can tell.

    The cap is checked and the version written in one step against everything under the slot's hash
    tag. Only a directive of everywhere and one of a workspace that are published in the same instant
    by two processes may together exceed it; `policy.compose` then says so in each turn.
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
        """Make *text* the newest version of *slot* and return it; it holds from the next turn on.

        *author* is ``connector:user_id`` or what else the caller goes by. *expected_version* is the
        version that the author saw, 0 for none. A text that holds already makes no new version.
        """
        return await self._put(slot, Draft(canonical(text), _author(author), origin), expected_version)

    async def clear(
        self, slot: Slot, *, author: str, origin: Origin, expected_version: int | None = None
    ) -> Version | None:
        """Take the directive of *slot* away, which is a version too; None where there never was one."""
        if await self.directives.latest(slot) is None:
            if expected_version:
                raise VersionMoved(slot, expected_version, 0)
            return None
        return await self._put(slot, Draft(None, _author(author), origin), expected_version)

    async def rollback(
        self, slot: Slot, to_version: int, *, author: str, origin: Origin, expected_version: int | None = None
    ) -> Version:
        """Publish what version *to_version* said as a new version. Raises `NoSuchVersion` too."""
        old = await self.directives.version(slot, to_version)
        return await self._put(slot, Draft(old.text, _author(author), origin, restores=to_version), expected_version)

    async def diff(self, slot: Slot, a: int, b: int) -> str:
        """What changed from version *a* to *b*, as a unified diff; empty where nothing did.

        A cleared version counts as empty. Raises `NoSuchVersion`.
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
        """What holds in *scope* (a workspace, or one context of it): everywhere, the workspace, the context, in the
        order of kinds and names. What was cleared is left out."""
        home, place = Place(Scope(scope.workspace_id)), Place.of(scope)
        snapshots = [await self.directives.snapshot(EVERYWHERE), await self.directives.snapshot(home, place)]
        versions = [one for snapshot in snapshots for one in snapshot.versions.values() if one.text is not None]
        kinds = list(Kind)
        return sorted(versions, key=lambda one: (one.slot.place.level.rank, kinds.index(one.slot.kind), one.slot.name))

    async def refused(self, home: Place) -> list[Note]:
        """Files of *home* (everywhere, or a workspace) whose text was not published. Who keeps files knows of them."""
        return []

    async def _put(self, slot: Slot, draft: Draft, expected_version: int | None = None) -> Version:
        check = self._checks.get(slot.kind)
        if check is not None and draft.text is not None and (problem := await asyncio.to_thread(check, draft.text)):
            raise InvalidDirective(f"{slot.label}: {problem}")
        for _ in range(ATTEMPTS):
            only = slot.place if slot.place.level is Level.CONTEXT else None
            snapshot = await self.directives.snapshot(slot.place.home, only)
            newest = snapshot.versions.get(slot)
            found = newest.version if newest else 0
            if expected_version is not None and found != expected_version:
                raise VersionMoved(slot, expected_version, found)
            await self._check(slot, draft, snapshot)
            outcome, number = await self.directives.append(slot, draft, snapshot.stamp, expected_version)
            if outcome == "moved":
                raise VersionMoved(slot, expected_version or 0, number)
            if outcome != "overtaken":
                version = await self.directives.version(slot, number)
                if outcome == "appended":
                    _tell(version)
                return version
        raise PublishContended(f"{slot.label} was overtaken {ATTEMPTS} times")

    async def _check(self, slot: Slot, draft: Draft, snapshot: Snapshot) -> None:
        others = [EVERYWHERE] if slot.place.scope is not None else await self.directives.workspaces()
        snapshots = [snapshot, *[await self.directives.snapshot(home) for home in others]]
        current: list[Directive] = [directive for one in snapshots for directive in one.directives()]
        await asyncio.to_thread(check_fits, slot, draft.text, current, self._count, self._max_tokens)


def _author(author: str) -> str:
    if not author.strip() or not author.isprintable():
        raise InvalidDirective("a directive needs an author, in printable characters")
    return author


def _tell(version: Version) -> None:
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
