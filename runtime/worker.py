"""Answers conversations side by side, and each conversation's messages in order."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Protocol

import structlog

from config.settings import Settings
from connectors.message import ConversationKey, StoreUnavailable
from runtime.mailbox import Batch, Mailbox

SWEEP_SECONDS = 2.0
"""How often waiting conversations are looked for that nobody announced: after an outage or a restart."""
MAX_CONCURRENT_TURNS = 64
"""For each connector."""
_log = structlog.get_logger()


class Answers(Protocol):
    """What a worker has batches answered by. Both methods raise only `connectors.message.StoreUnavailable`
    knowingly."""

    async def answer(self, batch: Batch) -> None: ...

    async def apologise(self, batch: Batch) -> None: ...


class Worker:
    """Takes turns from the mailbox and has them answered, one at a time per conversation."""

    def __init__(self, settings: Settings, mailbox: Mailbox, turns: Answers) -> None:
        self._collect_seconds = settings.turn_collect_milliseconds / 1000
        self._grace_seconds = settings.shutdown_grace_seconds
        self._stop_by: float | None = None
        self._mailbox = mailbox
        self._turns = turns
        self._waiting: asyncio.Queue[ConversationKey] = asyncio.Queue()
        self._busy: dict[ConversationKey, bool] = {}
        """Conversations at work, and whether they were announced again meanwhile."""
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_CONCURRENT_TURNS))
        """By connector: a platform that takes no replies now must not hold up the others."""
        self._stopping = False

    def wake(self, key: ConversationKey) -> None:
        """Say that *key* has something waiting. Cheap, and harmless when it has not."""
        if key in self._busy:
            self._busy[key] = True
        else:
            self._waiting.put_nowait(key)

    def stops_soon(self) -> None:
        """Say that the process is stopping: the grace period begins now, though answers go on for the while."""
        self._stop_by = asyncio.get_running_loop().time() + self._grace_seconds

    async def run(self) -> None:
        """Answer until cancelled; turns that run are then given (the rest of) the grace period to end."""
        finishing: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            sweeper = group.create_task(self._sweep())
            try:
                while True:
                    key = await self._waiting.get()
                    if key in self._busy:
                        self._busy[key] = True
                        continue
                    self._busy[key] = False
                    # Not in the group: the end of this block gives them time, where a group would cancel them.
                    task = asyncio.create_task(self._serve(key), name=f"turns of {key.context_id}")
                    finishing.add(task)
                    task.add_done_callback(finishing.discard)
            finally:
                # Shielded and bounded: a turn in hand ends well, or stays in the mailbox for the next run.
                sweeper.cancel()
                self._stopping = True
                await asyncio.shield(_finish(finishing, self._rest_of_grace()))

    def _rest_of_grace(self) -> float:
        if self._stop_by is None:
            return self._grace_seconds
        return max(0.0, self._stop_by - asyncio.get_running_loop().time())

    async def _sweep(self) -> None:
        while True:
            try:
                for key in await self._mailbox.ready():
                    self.wake(key)
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def _serve(self, key: ConversationKey) -> None:
        """Answer everything that waits in *key*'s mailbox."""
        with structlog.contextvars.bound_contextvars(
            workspace_id=key.workspace_id, context_id=key.context_id, connector=key.connector
        ):
            try:
                async with self._slots[key.connector]:
                    while not self._stopping and await self._answer_next(key):
                        self._busy[key] = False
            except StoreUnavailable as error:
                # What waits is safe in the mailbox; the sweep finds it when the store is back.
                _log.warning("store.degraded", store="redis", why=str(error))
            except Exception:  # noqa: BLE001 - what waits there cannot be read; the other conversations can
                _log.exception("turn.failed", why="unreadable")
            finally:
                if self._busy.pop(key) and not self._stopping:
                    self.wake(key)

    async def _answer_next(self, key: ConversationKey) -> bool:
        """Answer the next batch; False when there is none."""
        batch = await self._mailbox.take(key)
        if batch is None:
            return False
        if self._collect_seconds and batch.envelopes[-1].message.looks_unfinished and batch.attempt == 1:
            batch = await self._collect(batch)
        with structlog.contextvars.bound_contextvars(turn_id=batch.turn_id):
            try:
                await self._turns.answer(batch)
            except StoreUnavailable:
                raise
            except Exception:  # noqa: BLE001 - one broken turn must not stop the conversation; it is logged whole
                _log.exception("turn.failed", why="internal", attempts=batch.attempt)
                await self._turns.apologise(batch)
            await self._mailbox.done(batch)
        return True

    async def _collect(self, batch: Batch) -> Batch:
        """Give the rest of an unfinished message time to arrive."""
        newest = batch.envelopes[-1].accepted_at
        await asyncio.sleep(max(0.0, newest + self._collect_seconds - time.time()))
        return await self._mailbox.extend(batch)


async def _finish(tasks: set[asyncio.Task[None]], grace_seconds: float) -> None:
    if not tasks:
        return
    _, unfinished = await asyncio.wait(set(tasks), timeout=grace_seconds)
    for task in unfinished:
        task.cancel()
    if unfinished:
        _log.warning("worker.unfinished", turns=len(unfinished))
        await asyncio.wait(unfinished, timeout=1.0)
