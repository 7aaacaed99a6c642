"""Takes a workspace away with all that it holds."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from connectors.message import EVERYONE, PLACE_PREFIX, ConversationKey, Scope, place_audience
from grounding.memory.global_context import GlobalContexts
from grounding.memory.karma import MarkStore
from grounding.memory.records import RecordStore
from grounding.memory.records import records as records_records
from grounding.prompt_input import audience_of
from runtime.delivery import PartStates
from runtime.turns import Lane, Mailbox, Manifests
from runtime.workspaces import WorkspaceInSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from runtime.process import Runtime


_PAGE = 1000
_TRIES = 10
"""Of taking a folder away into which somebody is still writing: each such file is written once."""
_ENDING_SECONDS = 10.0
"""How long answers that are being written may take to end."""
_LOOK_SECONDS = 0.1
_log = structlog.get_logger()


async def remove_workspace(runtime: Runtime, scope: Scope) -> None:
    """Delete the workspace of *scope*: passages, roles, tokens, directives, conversations, counters, files.

    The index goes before all else: while it is away nothing is deleted, and answers go on. Those that are being written
    then end where they are, and people see their last form: with what is stored goes the trace of what was shown of
    them. The index goes once more when the files are gone, because whoever follows the disk may have read them in
    between. The record is last, so that an interrupted removal can be repeated. Raises `IndexUnavailable`,
    `StoreUnavailable`, `runtime.workspaces.workspaces.WorkspaceInSettings`, and `OSError` for files that stay.
    """
    workspace_id = scope.workspace_id
    settings = runtime.settings
    if workspace_id in {settings.default_workspace, *settings.routes.values()}:
        raise WorkspaceInSettings(
            f"the configuration names workspace {workspace_id!r} as the default or in a route; remove it there first"
        )
    await runtime.knowledge.forget_workspace(scope)
    await _end_answers(runtime, workspace_id)
    await runtime.copy.flush()  # or the chat log of what was just said would come back after its folder
    await runtime.api_tokens.forget_workspace(workspace_id)
    await runtime.access.forget_workspace(workspace_id)
    await runtime.places.forget_workspace(scope)
    await runtime.directives.forget_workspace(scope)
    await forget_keys(runtime.store.client, scope)
    for lane in Lane:
        await Mailbox(runtime.store.client, lane).forget_workspace(workspace_id)
    await asyncio.to_thread(remove_folder, settings.data_dir / "workspaces" / workspace_id)
    await runtime.knowledge.forget_workspace(scope)
    await runtime.workspaces.delete(workspace_id)
    _log.info("workspace.deleted", workspace_id=workspace_id)


async def _end_answers(runtime: Runtime, workspace_id: str) -> None:
    """Stop what is being answered in a workspace, drop what waits, and wait until what was said of it is delivered."""
    states, talking = PartStates(runtime.store.client), set[ConversationKey]()
    try:
        async with asyncio.timeout(_ENDING_SECONDS):
            while True:
                busy = {key for key in await runtime.mailbox.ready() if key.workspace_id == workspace_id}
                for key in busy:
                    await runtime.stops.stop(key, all_else=True)
                talking |= busy
                if not busy and not any([await states.is_waiting(key) for key in talking]):
                    return
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        _log.warning("workspace.answers_left", workspace_id=workspace_id, conversations=len(talking))


async def forget_keys(redis: Redis, scope: Scope) -> None:
    """Drop what is left under the workspace's tag, and its conversations, whichever partition holds them.

    There is no list of them: the names of all keys are looked through once, a page at a time, which for something so
    rare costs less than a list that every message would have to keep (0.4 µs of Redis's time a key).
    """
    page: list[str] = []
    # One pattern that both kinds of names match, because each pattern is a pass of its own.
    async for key in redis.scan_iter(match=f"ar:*{scope.workspace_id}*", count=_PAGE):
        if not _is_of(key, scope):
            continue
        page.append(key)
        if len(page) == _PAGE:
            await _drop(redis, page)
            page = []
    await _drop(redis, page)


def _is_of(name: str, scope: Scope) -> bool:
    """Whether a key belongs to the workspace. No id in a key holds a raw ``:`` or ``/``
    (`connectors.message.encode_id`), so that ``:<workspace>/`` stands only where a conversation's key begins."""
    tag, *parts = name.split(":")[2:] or [""]
    if tag == scope.tag:
        return True
    return tag.startswith("{p") and any(part.startswith(f"{scope.workspace_id}/") for part in parts)


async def _drop(redis: Redis, keys: Sequence[str]) -> None:
    async with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.unlink(key)
        await pipe.execute()


def remove_folder(folder: Path, take_away: Callable[[Path], None] = shutil.rmtree) -> None:
    """Delete *folder* with all that is in it, also what work begun before (a copy of a summary, a chat log) writes or
    takes away in the meantime. Raises `OSError` for files that stay."""
    if folder.is_symlink():
        folder.unlink()
        return
    for left in reversed(range(_TRIES)):
        if not folder.is_dir():
            return
        try:
            take_away(folder)
        except OSError as error:
            if not left or error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
                raise


# ---- audiences ----
#
# Gives what earlier versions kept an audience: all that was said in groups belonged to the whole workspace then.
#
# Where it came from decides. What was said in a conversation is its place's, or the person's of a direct message, since
# nothing says any more that a place was public. What has an author only is theirs. What programs and administrators
# wrote
# stays the workspace's. Until this is done such records and lines are shown to nobody.


_THREADED = frozenset({"slack", "telegram"})
"""Their external ids are the place and, behind a slash, the thread."""


@dataclass(frozen=True, slots=True)
class Private:
    """How many records and lines of a workspace were everybody's in an earlier version, and are private now."""

    records: int
    lines: int


class Audiences:
    """Settles what is kept of all workspaces. Raises `connectors.message.StoreUnavailable`."""

    def __init__(self, records: RecordStore, lines: GlobalContexts, marks: MarkStore, manifests: Manifests) -> None:
        self._records = records
        self._lines = lines
        self._marks = marks
        self._manifests = manifests

    async def settle(self, scope: Scope) -> None:
        """Give what has no audience yet one. Done again it does no harm."""
        records = lines = marked = 0
        for record in await self._records.unsettled(scope):
            came = record.provenance
            audience = _place(came.context_id) if came.context_id else came.author
            fields = {"v": 2, "audience": audience, "version": record.version + 1}
            after = record.model_copy(update=fields)
            if await self._records.move(scope, record, after, records_records.digest(after)):
                await self._records.settle(scope, after)
                records += 1
        if records:
            await self._records.is_behind(scope)  # the index follows
        for line in await self._lines.unsettled(scope):
            known = await self._manifests.contexts(scope, [line.turn_id]) if line.turn_id else {}
            context = known.get(line.turn_id)
            said_to = audience_of(context) if context is not None else None
            whose = _of_thread(said_to) if said_to is not None else line.author
            lines += await self._lines.settle(Scope(scope.workspace_id, None, whose), line)
        for one in await self._marks.unsettled(scope):
            place = _place(one.key.context_id)  # without the thread
            if one.exchange and one.exchange.audience.startswith(PLACE_PREFIX) and one.exchange.audience != place:
                marked += await self._marks.settle(scope, one, place)
        if records or lines or marked:
            _log.info("audiences.settled", workspace_id=scope.workspace_id, records=records, lines=lines, marked=marked)

    async def private(self, scope: Scope) -> Private:
        """What `settle` made private, and nobody has shared, or taken away, since."""
        ids = await self._records.settled(scope)
        found = await self._records.read(Scope(scope.workspace_id, None, EVERYONE), ids)
        return Private(sum(bool(one.audience) for one in found), await self._lines.settled(scope))


def _place(context_id: str) -> str:
    connector, _, external_id = context_id.partition(":")
    external_id = external_id.partition("/")[0] if connector in _THREADED else external_id
    return place_audience(f"{connector}:{external_id}")


def _of_thread(audience: str) -> str:
    is_place = audience.startswith(PLACE_PREFIX)
    return _place(audience.removeprefix(PLACE_PREFIX)) if is_place else audience
