"""Keeps directives and their files under DATA_DIR in step, in both directions.

One process at a time may do this: with several, the one that holds the lease on the files; the others
use a plain `Publisher`, and what they publish is copied by the next import here.
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
from promptpolicy.directives import Directives
from promptpolicy.policy import CountTokens, PolicyTooLarge
from promptpolicy.publishing import Check, Publisher
from promptpolicy.slot import EVERYWHERE, InvalidDirective, Kind, Level, Place, Slot, digest
from promptpolicy.tree import RECORD, Copied, DirectiveTree, Found, Note, Refusal, UnreadableRecord
from promptpolicy.versions import Draft, Version

CLOCK_TOLERANCE = timedelta(seconds=1)
"""File systems and the store do not tell the time to the same fraction of a second."""

log = structlog.get_logger()


class Step(Enum):
    """What puts a slot and its file in step."""

    NOTHING = auto()
    NOTE = auto()  # they agree, and the record does not know
    IMPORT = auto()  # a person wrote the file
    CLEAR = auto()  # a person deleted it
    COPY = auto()  # the slot was published (or cleared) since the file was written
    REJECT = auto()  # the file cannot be a directive
    CONFLICT = auto()  # a person wrote the file, and somebody published since it was written or last read


def decide(found: Found | None, last: Copied | None, newest: Version | None) -> Step:
    """What to do about a slot: its file *found*, the copy *last* in step, its *newest* version.

    A file that a person changed becomes the next version, unless somebody published since it was read or written: then
    the newer version stays. A file that is behind is written anew; one that is missing is a deletion only where it was
    in step before, so that an empty disk clears nothing; a store that was lost is filled again from the files. Pure.
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
        return Step.NOTHING if last == Copied(found.sha256, version) else Step.NOTE
    is_edited = last is None or last.sha256 != found.sha256
    if last is not None and last.version < version:
        return Step.CONFLICT if is_edited else Step.COPY
    if text is None or (last is not None and last.version == version and is_edited):
        return Step.CONFLICT if newest is not None and _is_older(found, newest) else Step.IMPORT
    return Step.CONFLICT  # nobody knows that the file is newer


def _is_older(found: Found, newest: Version) -> bool:
    """Whether the file was changed last before *newest* was published. One that was deleted may come back as it was."""
    if found.changed_at is None or (newest.text is None and newest.origin == "file"):
        return False
    return found.changed_at < newest.at - CLOCK_TOLERANCE


def undone_by(text: str, history: Sequence[Version]) -> Version | None:
    """The earlier version that says *text*, if to publish *text* again would undo what was published otherwise than by
    the file; *history* is the newest first. What only the file said may be taken back in the file."""
    elsewhere = False
    for version in history:
        if version.sha256 == digest(text):
            return version if elsewhere else None
        elsewhere = elsewhere or version.origin != "file"
    return None


@dataclass
class Imported:
    """What an import did: slots whose file became a version, was cleared, or was written; and paths
    whose text was not published, with the reason."""

    published: list[Slot] = field(default_factory=list)
    cleared: list[Slot] = field(default_factory=list)
    copied: list[Slot] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)


class FilingPublisher(Publisher):
    """A `Publisher` that also reads and writes the files. Import with `import_all` at start and
    `import_workspace` or `import_all` when the watcher saw a change; both may be repeated at will.

    Events beside ``directive.changed``: ``directive.rejected`` (``path``, ``why``), once for each state
    of a bad file, whose last good version stays, and for each conflict; ``directive.copy_failed`` (``path``, ``why``)
    where the disk would not take a copy, which the next import tries again. Beside a file whose text was not published
    lies a note that says why and what to do.
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
        self._told: dict[str, str] = {}

    async def import_all(self) -> Imported:
        """Put everything in step: everywhere, and all workspaces that have files or directives.

        Raises `StoreUnavailable`; what was done until then stays done.
        """
        done = Imported()
        homes = await self.directives.workspaces()
        try:
            homes = [*await asyncio.to_thread(self._tree.homes), *homes]
        except OSError as error:
            await self._reject(Refusal(EVERYWHERE, "workspaces", str(error)), done)
        for home in dict.fromkeys(homes):
            await self._import(home, done)
        return done

    async def import_workspace(self, scope: Scope) -> Imported:
        """Put the workspace of *scope* and its contexts in step. Raises `StoreUnavailable`."""
        done = Imported()
        await self._import(Place(Scope(scope.workspace_id)), done)
        return done

    async def refused(self, home: Place) -> list[Note]:
        """See `Publisher.refused`."""
        try:
            return await asyncio.to_thread(self._tree.notes, home)
        except OSError as error:
            return [Note(self._tree.relative_folder(home), str(error), "make the folder readable")]

    async def _put(self, slot: Slot, draft: Draft, expected_version: int | None = None) -> Version:
        """An edit of the file that was not seen yet becomes a version first, so that it is in the
        history, and *expected_version* tells the author of *draft* about it."""
        async with self._lock:
            home = slot.place.home
            try:
                record = await asyncio.to_thread(self._tree.read_record, home)
                found = await asyncio.to_thread(self._tree.find, slot)
            except (OSError, UnreadableRecord) as error:
                await self._reject(Refusal(home, self._tree.relative_folder(home), str(error)), Imported())
                return await super()._put(slot, draft, expected_version)
            before = dict(record)
            newest = await self.directives.latest(slot)
            step = decide(found, record.get(slot.encoded), newest)
            try:
                if step is not Step.COPY:
                    await self._settle_all([_Pending(slot, found, newest, step)], record, Imported())
                version = await super()._put(slot, draft, expected_version)
                await self._copy(version, record)
                if step is Step.REJECT and found is not None:
                    await self._note(Refusal(slot.place, found.path, found.problem))  # it was set aside
            finally:
                await self._keep(home, before, record)
            return version

    async def _import(self, home: Place, done: Imported) -> None:
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
                await self._settle_all(pending, record, done)
            finally:
                await self._keep(home, walk.record, record)
            await self._drop_notes(home, done)

    async def _settle_all(self, pending: list[_Pending], record: dict[str, Copied], done: Imported) -> None:
        """Settle each; one that is too large is tried again after the others, of which one may have shrunk."""
        while pending:
            refused: list[tuple[_Pending, PolicyTooLarge | InvalidDirective]] = []
            for one in pending:
                try:
                    await self._settle(one, record, done)
                except (PolicyTooLarge, InvalidDirective) as error:
                    refused.append((one, error))
            if len(refused) == len(pending):
                for one, problem in refused:
                    path = one.found.path if one.found else self._tree.relative_path(one.slot)
                    await self._reject(Refusal(one.slot.place, path, str(problem)), done)
                return
            pending = [one for one, _ in refused]

    async def _settle(self, one: _Pending, record: dict[str, Copied], done: Imported) -> None:
        slot, found, newest = one.slot, one.found, one.newest
        if one.step is Step.REJECT and found is not None:
            await self._reject(Refusal(slot.place, found.path, found.problem), done)
            return
        if one.step in (Step.CONFLICT, Step.IMPORT) and found is not None and newest is not None:
            conflict = await self._conflict(found, newest, is_known=one.step is Step.CONFLICT)
            if conflict is not None:
                await self._copy(newest, record)
                await self._reject(conflict, done)
                return
        if one.step is Step.IMPORT and found is not None:
            version = await super()._put(slot, Draft(found.text, "file", "file"))
            record[slot.encoded] = Copied(found.sha256, version.version)
            done.published.append(slot)
        elif one.step is Step.CLEAR:
            await super()._put(slot, Draft(None, "file", "file"))
            record.pop(slot.encoded, None)
            done.cleared.append(slot)
        elif one.step is Step.COPY and newest is not None:
            await self._copy(newest, record)
            done.copied.append(slot)
        elif one.step is Step.NOTE and found is not None and newest is not None:
            record[slot.encoded] = Copied(found.sha256, newest.version)
        elif one.step is Step.NOTE:
            record.pop(slot.encoded, None)
        if found is not None:
            self._told.pop(found.path, None)

    async def _conflict(self, found: Found, newest: Version, *, is_known: bool) -> Refusal | None:
        """Why the file must not replace *newest*, and what to do; None where it may."""
        slot = found.slot
        what = f"version {newest.version}" if newest.text is not None else "a clearing"
        why = f"{what} was published by {newest.author} at {newest.at:%Y-%m-%d %H:%M} UTC"
        history = await self.directives.history(slot, newest.version)
        undone = undone_by(found.text or "", history)
        if undone is not None:
            why = f"the file says what version {undone.version} said, and {why}"
            return Refusal(slot.place, found.path, why, f"if you want it back, run `{_rollback(slot, undone.version)}`")
        if not is_known:
            return None
        if _is_older(found, newest):
            return Refusal(
                slot.place,
                found.path,
                f"{why}, after the file was changed last ({found.changed_at:%Y-%m-%d %H:%M} UTC)",
            )
        return Refusal(slot.place, found.path, f"{why}, after the file was read")

    async def _copy(self, version: Version, record: dict[str, Copied]) -> None:
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
            record[slot.encoded] = Copied(sha256, version.version)

    async def _keep(self, home: Place, before: dict[str, Copied], record: dict[str, Copied]) -> None:
        if record == before:
            return
        try:
            await asyncio.to_thread(self._tree.write_record, home, record)
        except OSError as error:
            log.warning("directive.copy_failed", path=RECORD, why=error.strerror, **home.ids)

    async def _reject(self, refusal: Refusal, done: Imported) -> None:
        done.rejected[refusal.path] = refusal.why
        await self._note(refusal)
        if self._told.get(refusal.path) == refusal.why:
            return
        self._told[refusal.path] = refusal.why
        log.warning("directive.rejected", path=refusal.path, why=refusal.why, **refusal.place.ids)

    async def _note(self, refusal: Refusal) -> None:
        try:
            await asyncio.to_thread(self._tree.write_note, refusal.path, refusal.why, refusal.advice)
        except OSError as error:
            log.warning("directive.copy_failed", path=refusal.path, why=error.strerror, **refusal.place.ids)

    async def _drop_notes(self, home: Place, done: Imported) -> None:
        """Take the notes of *home* away whose files are mended or gone."""
        try:
            await asyncio.to_thread(self._tree.drop_notes, home, frozenset(done.rejected))
        except OSError as error:
            log.warning("directive.copy_failed", path=self._tree.relative_folder(home), why=error.strerror, **home.ids)


@dataclass(frozen=True, slots=True)
class _Pending:
    slot: Slot
    found: Found | None
    newest: Version | None
    step: Step


def _rollback(slot: Slot, version: int) -> str:
    """The command that publishes *version* of *slot* again."""
    place = slot.place
    where = {Level.GLOBAL: " --scope global", Level.CONTEXT: " --scope context"}.get(place.level, "")
    if place.scope is not None:
        where += f" --workspace {place.scope.workspace_id}"
        where += f" --context {shlex.quote(place.scope.context_id)}" if place.scope.context_id else ""
    name = f" {slot.name}" if slot.name else ""
    return f"./agent-runtime prompt rollback{where} {slot.kind.value}{name} {version}"
