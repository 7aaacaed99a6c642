"""Synchronise directives with their files under DATA_DIR, in both directions.

Only one process at a time may do this: the one that holds the lease on the files. The others use a plain `Publisher`,
and the next import here copies what they published.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto

import structlog

from connectors.message import Scope
from promptpolicy.directives import Change, Directives, Version
from promptpolicy.drafts import ApprovalNeeded
from promptpolicy.file_tree import RECORD, DirectiveTree, Refusal, SlotFile, SyncedCopy, UnreadableRecord
from promptpolicy.policy import (
    EVERYWHERE,
    CountTokens,
    InvalidDirective,
    Kind,
    Level,
    Place,
    PolicyTooLarge,
    Slot,
    digest,
)
from promptpolicy.publishing import Check, Publisher

CLOCK_TOLERANCE = timedelta(seconds=1)
"""File systems and the store round times differently, by up to this much."""

log = structlog.get_logger()


class Step(Enum):
    """The action that synchronises a slot with its file."""

    NOTHING = auto()
    NOTE = auto()  # they agree, but the record does not say so yet: update the record
    IMPORT = auto()  # a person edited the file: publish it
    CLEAR = auto()  # a person deleted the file: clear the slot
    COPY = auto()  # the slot was published or cleared since the file was written: write the file
    REJECT = auto()  # the file cannot be a directive
    CONFLICT = auto()  # a person edited the file, and somebody published after it was written or last read


def decide(found: SlotFile | None, last: SyncedCopy | None, newest: Version | None) -> Step:
    """Choose the step for a slot from its file, its last synchronised copy and its newest version. Pure.

    A file that a person edited becomes the next version, unless somebody published since it was read or written; then
    the newer version stays. An outdated file is rewritten. A missing file clears the slot only if it was synchronised
    before, so an empty disk clears nothing. If the store was lost, the files fill it again.
    """
    version = newest.version if newest else 0
    text = newest.text if newest else None
    if found is None:
        if text is None:
            return Step.NOTHING if last is None else Step.NOTE
        return Step.CLEAR if last is not None and last.version == version else Step.COPY
    if found.text is None:
        return Step.REJECT
    if text is not None and digest(found.text) == digest(text):
        return Step.NOTHING if last == SyncedCopy(found.sha256, version) else Step.NOTE
    is_edited = last is None or last.sha256 != found.sha256
    if last is not None and last.version < version:
        return Step.CONFLICT if is_edited else Step.COPY
    if text is None or (last is not None and last.version == version and is_edited):
        return Step.CONFLICT if newest is not None and _is_older(found, newest) else Step.IMPORT
    return Step.CONFLICT  # nothing shows that the file is newer


def _is_older(found: SlotFile, newest: Version) -> bool:
    """Return whether the file's last change is older than *newest*.

    False if *newest* is the deletion of the file, because a person may restore a deleted file unchanged.
    """
    if found.changed_at is None or (newest.text is None and newest.origin == "file"):
        return False
    return found.changed_at < newest.at - CLOCK_TOLERANCE


def find_reverted_version(text: str, history: Sequence[Version]) -> Version | None:
    """Return the earlier version with *text* if publishing it again would undo a change made outside the file.

    *history* is newest first. Returns None if all later versions came from the file: a person may take back in the
    file what they wrote in the file.
    """
    changed_elsewhere = False
    for version in history:
        if version.sha256 == digest(text):
            return version if changed_elsewhere else None
        changed_elsewhere = changed_elsewhere or version.origin != "file"
    return None


@dataclass
class ImportResult:
    """The result of an import: published, cleared and copied slots, and the reason for each rejected path."""

    published: list[Slot] = field(default_factory=list)
    cleared: list[Slot] = field(default_factory=list)
    copied: list[Slot] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)


class FileSyncPublisher(Publisher):
    """A `Publisher` that also reads and writes the files.

    Call `import_all` at start, and `import_workspace` or `import_all` if the watcher saw a change. Both can be
    repeated safely.

    Logs these events in addition to ``directive.changed``: ``directive.rejected`` (``path``, ``why``) once for each
    state of a bad file, whose last good version stays, and for each conflict; ``directive.copy_failed`` (``path``,
    ``why``) if a file could not be written, which the next import tries again. Next to a file that was not published,
    it writes a note with the reason and what to do.
    """

    def __init__(
        self,
        directives: Directives,
        count: CountTokens,
        max_tokens: int,
        tree: DirectiveTree,
        checks: Mapping[Kind, Check] | None = None,
    ) -> None:
        super().__init__(directives, count, max_tokens, checks)
        self._tree = tree
        self._lock = asyncio.Lock()
        self._logged_reasons: dict[str, str] = {}

    async def import_all(self) -> ImportResult:
        """Synchronise the global directives and those of all workspaces that have files or directives.

        Raises `StoreUnavailable`; the steps before that stay applied.
        """
        done = ImportResult()
        homes = await self.directives.workspaces()
        try:
            homes = [*await asyncio.to_thread(self._tree.homes), *homes]
        except OSError as error:
            await self._reject(Refusal(EVERYWHERE, "workspaces", str(error)), done)
        for home in dict.fromkeys(homes):
            await self._import(home, done)
        return done

    async def import_workspace(self, scope: Scope) -> ImportResult:
        """Synchronise the workspace of *scope* and its contexts. Raises `StoreUnavailable`."""
        done = ImportResult()
        await self._import(Place(Scope(scope.workspace_id)), done)
        return done

    async def refused(self, home: Place) -> list[Refusal]:
        """Return the notes on files of *home* that were not published."""
        try:
            return await asyncio.to_thread(self._tree.notes, home)
        except OSError as error:
            return [Refusal(home, self._tree.relative_folder(home), str(error), "make the folder readable")]

    async def _put(self, slot: Slot, change: Change, expected_version: int | None = None) -> Version:
        """Publish *change* and write its file. Publishes an edit of the file that was not imported yet first.

        So the edit is in the history, and *expected_version* no longer matches for the author of *change*.
        """
        async with self._lock:
            home = slot.place.home
            try:
                record = await asyncio.to_thread(self._tree.read_record, home)
                found = await asyncio.to_thread(self._tree.find, slot)
            except (OSError, UnreadableRecord) as error:
                await self._reject(Refusal(home, self._tree.relative_folder(home), str(error)), ImportResult())
                return await super()._put(slot, change, expected_version)
            before = dict(record)
            newest = await self.directives.latest(slot)
            step = decide(found, record.get(slot.encoded), newest)
            try:
                if step is not Step.COPY:
                    await self._apply_all([_Pending(slot, found, newest, step)], record, ImportResult())
                version = await super()._put(slot, change, expected_version)
                await self._copy(version, record)
                if step is Step.REJECT and found is not None:
                    await self._note(
                        Refusal(slot.place, found.path, found.problem)
                    )  # `_copy` has set the bad file aside
            finally:
                await self._write_record(home, before, record)
            return version

    async def _import(self, home: Place, done: ImportResult) -> None:
        async with self._lock:
            newest = (await self.directives.snapshot(home)).versions
            try:
                walk = await asyncio.to_thread(self._tree.walk, home, newest)
            except (OSError, UnreadableRecord) as error:
                await self._reject(Refusal(home, self._tree.relative_folder(home), str(error)), done)
                return
            for refusal in walk.refusals:
                await self._reject(refusal, done)
            record = dict(walk.record)
            pending = []
            for slot in sorted({*walk.files, *newest}, key=lambda slot: slot.encoded):
                found, version = walk.files.get(slot), newest.get(slot)
                pending.append(_Pending(slot, found, version, decide(found, record.get(slot.encoded), version)))
            try:
                await self._apply_all(pending, record, done)
            finally:
                await self._write_record(home, walk.record, record)
            await self._remove_stale_notes(home, done)

    async def _apply_all(self, pending: list[_Pending], record: dict[str, SyncedCopy], done: ImportResult) -> None:
        """Apply all steps. Retries a refused one after the others: another directive may have become shorter."""
        while pending:
            refused: list[tuple[_Pending, PolicyTooLarge | InvalidDirective | ApprovalNeeded]] = []
            for task in pending:
                try:
                    await self._apply(task, record, done)
                except (PolicyTooLarge, InvalidDirective, ApprovalNeeded) as error:
                    refused.append((task, error))
            if len(refused) == len(pending):
                for task, problem in refused:
                    path = task.found.path if task.found else self._tree.relative_path(task.slot)
                    advice = "approve or discard the draft" if isinstance(problem, ApprovalNeeded) else ""
                    await self._reject(Refusal(task.slot.place, path, str(problem), advice), done)
                return
            pending = [task for task, _ in refused]

    async def _apply(self, task: _Pending, record: dict[str, SyncedCopy], done: ImportResult) -> None:
        slot, found, newest, step = task.slot, task.found, task.newest, task.step
        if step is Step.REJECT and found is not None:
            await self._reject(Refusal(slot.place, found.path, found.problem), done)
            return
        if step in (Step.CONFLICT, Step.IMPORT) and found is not None and newest is not None:
            conflict = await self._conflict(found, newest, is_known=step is Step.CONFLICT)
            if conflict is not None:
                await self._copy(newest, record)
                await self._reject(conflict, done)
                return
        if step is Step.IMPORT and found is not None:
            version = await super()._put(slot, Change(found.text, "file", "file"))
            record[slot.encoded] = SyncedCopy(found.sha256, version.version)
            done.published.append(slot)
        elif step is Step.CLEAR:
            await super()._put(slot, Change(None, "file", "file"))
            record.pop(slot.encoded, None)
            done.cleared.append(slot)
        elif step is Step.COPY and newest is not None:
            await self._copy(newest, record)
            done.copied.append(slot)
        elif step is Step.NOTE and found is not None and newest is not None:
            record[slot.encoded] = SyncedCopy(found.sha256, newest.version)
        elif step is Step.NOTE:
            record.pop(slot.encoded, None)
        if found is not None:
            self._logged_reasons.pop(found.path, None)

    async def _conflict(self, found: SlotFile, newest: Version, *, is_known: bool) -> Refusal | None:
        """Return why the file must not replace *newest* and what to do, or None if it may.

        *is_known* is true if `decide` has already found a conflict. Even without one, the file must not undo a change
        that was published elsewhere.
        """
        slot = found.slot
        what = f"version {newest.version}" if newest.text is not None else "a clearing"
        why = f"{what} was published by {newest.author} at {newest.at:%Y-%m-%d %H:%M} UTC"
        history = await self.directives.history(slot, newest.version)
        undone = find_reverted_version(found.text or "", history)
        if undone is not None:
            why = f"the file says what version {undone.version} said, and {why}"
            return Refusal(
                slot.place, found.path, why, f"if you want it back, run `{_rollback_command(slot, undone.version)}`"
            )
        if not is_known:
            return None
        if _is_older(found, newest):
            return Refusal(
                slot.place,
                found.path,
                f"{why}, after the file was changed last ({found.changed_at:%Y-%m-%d %H:%M} UTC)",
            )
        return Refusal(slot.place, found.path, f"{why}, after the file was read")

    async def _copy(self, version: Version, record: dict[str, SyncedCopy]) -> None:
        slot = version.slot
        try:
            sha256 = await asyncio.to_thread(self._tree.write, slot, version.text, record.get(slot.encoded))
        except OSError as error:
            path = self._tree.relative_path(slot)
            log.warning("directive.copy_failed", path=path, why=error.strerror, **slot.place.ids)
            return
        if version.text is None:
            record.pop(slot.encoded, None)
        else:
            record[slot.encoded] = SyncedCopy(sha256, version.version)

    async def _write_record(self, home: Place, before: dict[str, SyncedCopy], record: dict[str, SyncedCopy]) -> None:
        if record == before:
            return
        try:
            await asyncio.to_thread(self._tree.write_record, home, record)
        except OSError as error:
            log.warning("directive.copy_failed", path=RECORD, why=error.strerror, **home.ids)

    async def _reject(self, refusal: Refusal, done: ImportResult) -> None:
        done.rejected[refusal.path] = refusal.why
        await self._note(refusal)
        if self._logged_reasons.get(refusal.path) == refusal.why:
            return
        self._logged_reasons[refusal.path] = refusal.why
        log.warning("directive.rejected", path=refusal.path, why=refusal.why, **refusal.place.ids)

    async def _note(self, refusal: Refusal) -> None:
        try:
            await asyncio.to_thread(self._tree.write_note, refusal)
        except OSError as error:
            log.warning("directive.copy_failed", path=refusal.path, why=error.strerror, **refusal.place.ids)

    async def _remove_stale_notes(self, home: Place, done: ImportResult) -> None:
        """Remove the notes of *home* whose files are corrected or deleted."""
        try:
            await asyncio.to_thread(self._tree.drop_notes, home, frozenset(done.rejected))
        except OSError as error:
            log.warning("directive.copy_failed", path=self._tree.relative_folder(home), why=error.strerror, **home.ids)


@dataclass(frozen=True, slots=True)
class _Pending:
    slot: Slot
    found: SlotFile | None
    newest: Version | None
    step: Step


def _rollback_command(slot: Slot, version: int) -> str:
    """Return the command that publishes *version* of *slot* again."""
    place = slot.place
    options = {Level.GLOBAL: " --scope global", Level.CONTEXT: " --scope context"}.get(place.level, "")
    if place.scope is not None:
        options += f" --workspace {place.scope.workspace_id}"
        options += f" --context {shlex.quote(place.scope.context_id)}" if place.scope.context_id else ""
    name = f" {slot.name}" if slot.name else ""
    return f"./agent-runtime prompt rollback{options} {slot.kind.value}{name} {version}"
