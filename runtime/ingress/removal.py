"""Deletes a workspace with everything that it holds."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from connectors.message import ConversationKey, Scope
from runtime.coordination import Hub
from runtime.delivery import Outbox
from runtime.turns import Lane, Mailbox
from runtime.workspaces import WorkspaceInSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from runtime.process import Runtime


_PAGE = 1000
_ATTEMPTS = 10
"""Attempts to delete a folder into which files are still written: each such file is written once."""
_ENDING_SECONDS = 10.0
"""How long answers that are being written may take to end."""
_POLL_SECONDS = 0.1
_log = structlog.get_logger()


async def remove_workspace(runtime: Runtime, scope: Scope) -> None:
    """Delete the workspace of *scope*: passages, roles, tokens, directives, conversations, counters, files.

    The index is first: if it is away, nothing is deleted and answers go on. Then answers that are being written end,
    so that people see their last form: the trace of their previews is deleted with the keys. The index is deleted again
    after the files, because a watcher may have read them in between. The record is last, so that an interrupted removal
    can be repeated. Raises `IndexUnavailable`, `StoreUnavailable`, `runtime.workspaces.WorkspaceInSettings`, and
    `OSError` for files that stay.
    """
    workspace_id = scope.workspace_id
    settings = runtime.settings
    if workspace_id in {settings.default_workspace, *settings.routes.values()}:
        raise WorkspaceInSettings(
            f"the configuration names workspace {workspace_id!r} as the default or in a route; remove it there first"
        )
    await runtime.knowledge.forget_workspace(scope)
    await _end_answers(runtime, workspace_id)
    await runtime.copy.flush()  # a later flush would write a chat log into the deleted folder
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
    """Stop the answers of a workspace, drop what waits for one, and wait until stored replies are delivered."""
    redis, conversations = runtime.store.client, set[ConversationKey]()
    outbox = Outbox(redis, Hub(redis, shared=False))
    try:
        async with asyncio.timeout(_ENDING_SECONDS):
            while True:
                busy = {key for key in await runtime.mailbox.ready() if key.workspace_id == workspace_id}
                for key in busy:
                    await runtime.stops.stop(key, all_else=True)
                conversations |= busy
                if not busy and not any([await outbox.is_waiting(key) for key in conversations]):
                    return
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        _log.warning("workspace.answers_left", workspace_id=workspace_id, conversations=len(conversations))


async def forget_keys(redis: Redis, scope: Scope) -> None:
    """Delete the remaining keys under the workspace's tag, and those of its conversations in any partition.

    All key names are scanned once, a page at a time. For something so rare that is cheaper than a list that every
    message would have to keep (0.4 µs of Redis's time a key).
    """
    page: list[str] = []
    # One pattern for both kinds of names: each pattern would be a scan of its own.
    async for key in redis.scan_iter(match=f"ar:*{scope.workspace_id}*", count=_PAGE):
        if not _belongs_to(key, scope):
            continue
        page.append(key)
        if len(page) == _PAGE:
            await _unlink(redis, page)
            page = []
    await _unlink(redis, page)


def _belongs_to(name: str, scope: Scope) -> bool:
    """Return whether a key belongs to the workspace.

    No id in a key holds a raw ``:`` or ``/`` (`connectors.message.encode_id`), so ``:<workspace>/`` can only begin a
    conversation's key.
    """
    tag, *parts = name.split(":")[2:] or [""]
    if tag == scope.tag:
        return True
    return tag.startswith("{p") and any(part.startswith(f"{scope.workspace_id}/") for part in parts)


async def _unlink(redis: Redis, keys: Sequence[str]) -> None:
    async with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.unlink(key)
        await pipe.execute()


def remove_folder(folder: Path, remove: Callable[[Path], None] = shutil.rmtree) -> None:
    """Delete *folder* and its content, also if work in hand still writes or deletes files in it.

    Raises `OSError` for files that stay.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    for attempts_left in reversed(range(_ATTEMPTS)):
        if not folder.is_dir():
            return
        try:
            remove(folder)
        except OSError as error:
            if not attempts_left or error.errno not in {errno.ENOTEMPTY, errno.ENOENT}:
                raise
