"""Hears what was said while no process listened, on platforms that keep it and do not deliver it again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from connectors.connector import Accept, Connector, FetchesMissed, State
from connectors.message import AgentRuntimeError, ConversationKey
from runtime.mailbox import Mailbox

T = TypeVar("T")
_LOOK_SECONDS = 0.2
_RETRY_SECONDS = (1.0, 60.0)
_AT_ONCE = 4
_log = structlog.get_logger()


async def hear_missed(connector: Connector, mailbox: Mailbox, accept: Accept) -> None:
    """Once *connector* is connected, accept what came after the newest stored message of each conversation.

    Does nothing for platforms without `FetchesMissed`. What was heard already is a duplicate to *accept*.
    """
    if not isinstance(connector, FetchesMissed):
        return
    while connector.health.state is not State.CONNECTED:  # noqa: ASYNC110 - a connector has no event to wait for
        await asyncio.sleep(_LOOK_SECONDS)
    slots = asyncio.Semaphore(_AT_ONCE)
    newest = await _until_it_works(lambda: mailbox.last_seen(connector.name))
    async with asyncio.TaskGroup() as group:
        for key, message_id in newest.items():
            group.create_task(_hear(connector, key, message_id, accept, slots))


async def _hear(
    connector: FetchesMissed, key: ConversationKey, message_id: str, accept: Accept, slots: asyncio.Semaphore
) -> None:
    async def once() -> int:
        heard = 0
        async for message in connector.missed(key, message_id):
            await accept(message)
            heard += 1
        return heard

    async with slots:
        try:
            heard = await _until_it_works(once)
        except AgentRuntimeError as error:
            _log.warning("message.ignored", why="missed", context_id=key.context_id, detail=str(error))
            return
        except Exception:  # noqa: BLE001 - one place that cannot be read keeps no other from being heard
            _log.exception("message.ignored", why="missed", context_id=key.context_id)
            return
    if heard:
        _log.info("message.missed", context_id=key.context_id, workspace_id=key.workspace_id, heard=heard)


async def _until_it_works(call: Callable[[], Awaitable[T]]) -> T:
    """What *call* gives, tried again with backoff while its error may pass. Raises `AgentRuntimeError` else."""
    wait, longest = _RETRY_SECONDS
    while True:
        try:
            return await call()
        except AgentRuntimeError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(random.uniform(wait / 2, wait))  # noqa: S311 - jitter, no secret
        wait = min(wait * 2, longest)
