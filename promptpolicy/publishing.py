"""Publish directives: check them, write versions, and log an event for each change."""

from __future__ import annotations

import asyncio
import difflib
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from connectors.message import AgentRuntimeError, Role, Scope
from promptpolicy.directives import Change, Directives, Origin, Snapshot, Version
from promptpolicy.drafts import ApprovalNeeded, Draft, DraftMoved, DraftState
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
    digest,
    measure,
    places_of,
)

ATTEMPTS = 20
"""How often a change is checked before giving up, if other processes publish in between."""

ID_DIGITS = 12
"""The length of a draft's id."""

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
    """Somebody published in between. Nothing was changed.

    ``current`` is the number of the newest version, ``newest`` that version with its text, author and time (None if
    there is none); the caller expected the version ``expected``, and wanted to publish ``text``.
    """

    user_text = "Somebody has changed this meanwhile. Look at the newest version and try again."

    def __init__(self, slot: Slot, expected: int, newest: Version | None, text: str | None = None) -> None:
        self.current = newest.version if newest else 0
        by = f", which {newest.author} published at {newest.at:%Y-%m-%d %H:%M} UTC" if newest else ""
        super().__init__(f"{slot.label} is at version {self.current}{by}, not {expected}")
        self.expected = expected
        self.newest = newest
        self.text = text


@dataclass(frozen=True, slots=True)
class Published:
    """A published draft: its version, the version that it replaces (None: there was none), and their difference."""

    version: Version
    replaced: Version | None
    diff: str


class PublishContended(AgentRuntimeError):
    """Others published faster than this change could be checked. Nothing was changed."""

    retryable = True
    user_text = "Others are changing the instructions right now. Please try again."


class Publisher:
    """Publishes directives to Redis.

    *count* counts tokens, as for `policy.compose`; *max_tokens* is ``POLICY_MAX_TOKENS``. *checks* finds problems in
    texts of kinds that the runtime itself reads (cues, frames); a problem raises `InvalidDirective`.

    All methods that change something raise `InvalidDirective`, `PolicyTooLarge`, `VersionMoved` (409 over HTTP) or
    `PublishContended`, after which nothing was changed; `ApprovalNeeded`, after which a draft waits for a second
    person; or `StoreUnavailable`, after which only the history shows whether something was changed.

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
        self, slot: Slot, text: str, *, author: str, origin: Origin, expected_version: int | None = None, note: str = ""
    ) -> Version:
        """Publish *text* as the newest version of *slot* and return it. It applies from the next turn on.

        *author* is ``connector:user_id`` or another name of the caller. *expected_version* is the version that the
        author saw, 0 for none. *note* says why. An unchanged text creates no new version.
        """
        return await self._put(slot, Change(canonical(text), _author(author), origin, note=note), expected_version)

    async def clear(
        self, slot: Slot, *, author: str, origin: Origin, expected_version: int | None = None, note: str = ""
    ) -> Version | None:
        """Clear *slot* with a new version and return it, or None if the slot never had a version."""
        if await self.directives.latest(slot) is None:
            if expected_version:
                raise VersionMoved(slot, expected_version, None)
            return None
        return await self._put(slot, Change(None, _author(author), origin, note=note), expected_version)

    async def rollback(
        self,
        slot: Slot,
        to_version: int,
        *,
        author: str,
        origin: Origin,
        expected_version: int | None = None,
        note: str = "",
    ) -> Version:
        """Publish the text of version *to_version* as a new version. Also raises `NoSuchVersion`."""
        old = await self.directives.version(slot, to_version)
        change = Change(old.text, _author(author), origin, restores=to_version, note=note)
        return await self._put(slot, change, expected_version)

    async def create_draft(
        self, slot: Slot, text: str | None, *, author: str, origin: Origin, base: int | None = None, note: str = ""
    ) -> Draft:
        """Store *text* (None clears the slot) as a draft that was made from version *base*, by default the newest.

        Raises `VersionMoved` if *base* is not the newest version. The limit of tokens is checked when it is published.
        """
        text = await self._checked(slot, text)
        newest = await self.directives.latest(slot)
        current = newest.version if newest else 0
        if base is not None and base != current:
            raise VersionMoved(slot, base, newest, text)
        return await self.directives.save_draft(
            self._new_draft(slot, Change(text, _author(author), origin, note=note), current)
        )

    async def change_draft(
        self,
        home: Place,
        draft_id: str,
        text: str | None,
        *,
        author: str,
        expected_revision: int,
        note: str | None = None,
        base: int | None = None,
    ) -> Draft:
        """Replace the text of a draft of *home*. It is open again, so an approval must be asked for anew.

        With *base*, the draft counts as made from that version: for an author who has merged a newer one. *note* of
        None keeps the note. Raises `DraftMoved` and `NoSuchDraft`, and `VersionMoved` if *base* is not the newest.
        """
        draft = await self._draft(home, draft_id, expected_revision, text)
        text = await self._checked(draft.slot, text)
        if base is not None:
            newest = await self.directives.latest(draft.slot)
            if base != (newest.version if newest else 0):
                raise VersionMoved(draft.slot, base, newest, text)
        wrote = _author(author) if text != draft.text else draft.author
        changed = draft.changed(
            self.directives.now(),
            text=text,
            author=wrote,
            note=draft.note if note is None else note,
            base=draft.base if base is None else base,
            state=DraftState.OPEN,
            asked_by="",
        )
        return await self.directives.save_draft(changed, text)

    async def discard_draft(
        self, home: Place, draft_id: str, *, author: str, expected_revision: int, reason: str = ""
    ) -> Draft:
        """Discard a draft of *home*; for one that waits, this rejects it, with the *reason*.

        Raises `DraftMoved` and `NoSuchDraft`.
        """
        draft = await self._draft(home, draft_id, expected_revision)
        closed = draft.changed(
            self.directives.now(), state=DraftState.DISCARDED, closed_by=_author(author), reason=reason
        )
        return await self.directives.save_draft(closed)

    async def publish_draft(
        self, home: Place, draft_id: str, *, author: str, expected_revision: int, note: str | None = None
    ) -> Published:
        """Publish a draft of *home*. *author* approves it, if it is not the one who wrote it.

        Where a second person is needed, the draft waits after its author's call, which raises `ApprovalNeeded`.
        Persons are compared by *author*: pass the same name for a person on every face.

        Raises `DraftMoved` if the draft has another revision, `VersionMoved` if another version than its base is live,
        `NoSuchDraft`, `InvalidDirective` if that version says the same, and what `publish` raises.
        """
        draft = await self._draft(home, draft_id, expected_revision)
        replaced = await self.directives.latest(draft.slot)
        if (replaced.text if replaced else None) == draft.text:
            raise InvalidDirective(f"{draft.slot.label} says the same already: discard draft {draft.id}")
        closes = draft.changed(
            self.directives.now(),
            state=DraftState.PUBLISHED,
            closed_by=_author(author),
            version=draft.base + 1,
            note=draft.note if note is None else note,
        )
        change = Change(
            draft.text,
            draft.author,
            draft.origin,
            restores=draft.restores,
            note=closes.note,
            approver=author if author != draft.author else "",
            closes=closes,
        )
        version = await self._put(draft.slot, change, draft.base)
        return Published(
            version, replaced, _difference(replaced, draft.slot, version.text, f"version {version.version}")
        )

    async def draft_diff(self, draft: Draft) -> str:
        """Return the changes from the version that is live to *draft* as a unified diff."""
        live = await self.directives.latest(draft.slot)
        return _difference(live, draft.slot, draft.text, f"draft {draft.id}")

    async def diff(self, slot: Slot, a: int, b: int) -> str:
        """Return the changes from version *a* to *b* as a unified diff, which is empty if there are none.

        A cleared version counts as an empty text. Raises `NoSuchVersion`.
        """
        old, new = [await self.directives.version(slot, number) for number in (a, b)]
        return _difference(old, slot, new.text, f"version {b}")

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

    async def _put(self, slot: Slot, change: Change, expected_version: int | None = None) -> Version:
        await self._checked(slot, change.text)
        for _ in range(ATTEMPTS):
            snapshot = await self.directives.snapshot(slot.place.home, _only(slot))
            newest = snapshot.versions.get(slot)
            current = newest.version if newest else 0
            if expected_version is not None and current != expected_version:
                raise VersionMoved(slot, expected_version, newest, change.text)
            await self._check(slot, change, snapshot)
            is_same = (newest.text if newest else None) == change.text
            if snapshot.two_person and not change.approver and not is_same:
                raise ApprovalNeeded(await self._wait(slot, change, current))
            outcome, number = await self.directives.append(slot, change, snapshot.stamp, expected_version)
            if outcome == "draft" and change.closes:
                theirs = await self.directives.draft(slot.place.home, change.closes.id)
                raise DraftMoved(theirs, change.closes.revision - 1, change.text)
            if outcome == "moved":
                raise VersionMoved(slot, expected_version or 0, await self.directives.latest(slot), change.text)
            if outcome != "overtaken":
                version = await self.directives.version(slot, number)
                if outcome == "appended":
                    _log_change(version)
                return version
        raise PublishContended(f"{slot.label} was overtaken {ATTEMPTS} times")

    async def _wait(self, slot: Slot, change: Change, current: int) -> Draft:
        """Store *change* as a draft that waits for a second person.

        The same text of a file is one draft, however often the file is read. If it was discarded, raises
        `InvalidDirective` with the reason.
        """
        if change.closes is not None:
            asked_by = change.closes.closed_by
            waits = replace(change.closes, state=DraftState.WAITS, asked_by=asked_by, closed_by="", version=0)
            return await self.directives.save_draft(waits, change.text)
        draft = replace(self._new_draft(slot, change, current), state=DraftState.WAITS, asked_by=change.author)
        if change.origin == "file":
            draft = replace(draft, id=digest(f"{slot.encoded}/{current}/{change.sha256}")[:ID_DIGITS])
        try:
            return await self.directives.save_draft(draft)
        except DraftMoved as known:
            if not known.theirs.is_closed:
                return known.theirs
            reason = known.theirs.reason or "no reason given"
            raise InvalidDirective(f"{known.theirs.closed_by} discarded this text of {slot.label}: {reason}") from None

    def _new_draft(self, slot: Slot, change: Change, base: int) -> Draft:
        now, draft_id = self.directives.now(), uuid.uuid4().hex[:ID_DIGITS]
        return Draft(
            draft_id,
            slot,
            change.text,
            base,
            change.author,
            change.origin,
            change.note,
            now,
            now,
            restores=change.restores,
        )

    async def _draft(self, home: Place, draft_id: str, expected_revision: int, text: str | None = None) -> Draft:
        """Return a draft at *expected_revision* that is not closed. Raises `DraftMoved` with the caller's *text*."""
        draft = await self.directives.draft(home, draft_id)
        if draft.revision != expected_revision or draft.is_closed:
            raise DraftMoved(draft, expected_revision, text)
        return draft

    async def _checked(self, slot: Slot, text: str | None) -> str | None:
        """Return *text* in its stored form. Raises `InvalidDirective`."""
        if text is None:
            return None
        text = canonical(text)
        check = self._checks.get(slot.kind)
        if check is not None and (problem := await asyncio.to_thread(check, text)):
            raise InvalidDirective(f"{slot.label}: {problem}")
        return text

    async def _check(self, slot: Slot, change: Change, snapshot: Snapshot) -> None:
        others = [EVERYWHERE] if slot.place.scope is not None else await self.directives.workspaces()
        snapshots = [snapshot, *[await self.directives.snapshot(home) for home in others]]
        current: list[Directive] = [directive for part in snapshots for directive in part.directives()]
        await asyncio.to_thread(check_fits, slot, change.text, current, self._count, self._max_tokens)


def _only(slot: Slot) -> Place | None:
    return slot.place if slot.place.level is Level.CONTEXT else None


def _difference(old: Version | None, slot: Slot, text: str | None, name: str) -> str:
    """Return the changes from *old* to *text*, called *name*, as a unified diff. A cleared slot has an empty text."""
    lines = difflib.unified_diff(
        ((old.text if old else None) or "").splitlines(),
        (text or "").splitlines(),
        f"{slot.label} version {old.version if old else 0}",
        f"{slot.label} {name}",
        lineterm="",
    )
    return "\n".join(lines)


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
