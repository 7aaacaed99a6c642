"""Answers many conversations at a time, each conversation's messages in order. Any number of workers may run."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from config.settings import Settings
from connectors.message import PARTITIONS, ConversationKey, StoreUnavailable, Superseded
from runtime.coordination import Hub, News, reclaim_interval
from runtime.delivery import notify_unanswered
from runtime.observability import event_context
from runtime.turns.batch import Batch, BatchGrown, Lane, Lease, WorkItem
from runtime.turns.lease import HAND_BACK_SECONDS, hand_back_lease, hold_lease
from runtime.turns.mailbox import Mailbox
from runtime.turns.replies import superseded

MAX_CONCURRENT_TURNS = 64
"""The turns of each connector that run at the same time."""
MAX_HELD = 128
"""The conversations of one connector that a worker holds at a time: twice those that it answers at a time. The others
wait for a worker with room."""
_EACH = 16
"""The conversations of one partition that are taken by one command."""
_RECLAIM_BATCH = 256
COLLECT_SECONDS = 1.5
"""How long to wait for the rest of a message that looks unfinished, if TURN_COLLECT_MILLISECONDS is 0."""
PAUSE_AFTER_CRASHES = 3
"""After this many crashes, a turn is tried again only after a pause."""
WORK = "work"
"""The hub's topic for news of waiting messages."""
_log = structlog.get_logger()


class Answers(Protocol):
    """Answers batches for a worker. Both methods raise `connectors.message.StoreUnavailable` and
    `connectors.message.Superseded`, and `answer` also `runtime.turns.batch.BatchGrown`; anything else is a bug."""

    async def answer(self, batch: Batch) -> None: ...

    async def apologise(self, batch: Batch) -> None: ...


class DeadLetterStore(Protocol):
    """Stores turns that failed for good."""

    async def add(self, batch: Batch, why: str, lane: Lane) -> None: ...


async def notify_worker(hub: Hub, lane: Lane, key: ConversationKey) -> None:
    """Announce that messages of *key* wait in *lane*. Cheap, and harmless if none do."""
    await hub.tell(WORK, {"lane": lane.value, "partition": key.partition})


class Worker:
    """Takes turns from the mailbox and has them answered, one at a time per conversation.

    *alone* says that no other process uses the store: then every lease at the start is abandoned.
    *sweep_seconds* is how often the worker looks for conversations whose announcement was lost, for example by an
    outage or a restart. *retry_seconds* are the first and the longest pause between two attempts; *crash_pause_seconds*
    those before a turn that has crashed many processes. *max_concurrent_turns* and *max_held* are per connector.
    """

    def __init__(
        self,
        settings: Settings,
        mailbox: Mailbox,
        answers: Answers,
        hub: Hub,
        dead_letters: DeadLetterStore,
        *,
        lane: Lane = Lane.TURNS,
        alone: bool = False,
        sweep_seconds: float = 2.0,
        retry_seconds: tuple[float, float] = (0.5, 5.0),
        crash_pause_seconds: tuple[float, float] = (1.0, 60.0),
        max_concurrent_turns: int = MAX_CONCURRENT_TURNS,
        max_held: int = MAX_HELD,
    ) -> None:
        self._collect_seconds = settings.turn_collect_milliseconds / 1000 or COLLECT_SECONDS
        self._grace_seconds = settings.shutdown_grace_seconds
        self._lease_seconds = float(settings.turn_lease_seconds)
        self._max_attempts = settings.turn_max_attempts
        self._max_crashes = settings.turn_max_crashes
        self._sweep_seconds = sweep_seconds
        self._retry_seconds = retry_seconds
        self._crash_pause_seconds = crash_pause_seconds
        self._stop_by: float | None = None
        self._mailbox = mailbox
        self._hub = hub
        self._answers = answers
        self._dead_letters = dead_letters
        self._lane = lane
        self._alone = alone
        self._silent_seconds = 0.0 if alone else self._lease_seconds
        self._prepared = False
        self._reclaims = True
        """Whether to look for abandoned conversations. They come before new ones: they have waited for longer."""
        self._rung: set[int] = set()
        self._bell = asyncio.Event()
        self._held = TaskLimiter(self._bell.set, max_held)
        self._serving: dict[asyncio.Task[None], WorkItem] = {}
        self._queued: set[asyncio.Task[None]] = set()
        """Those of the serving tasks that wait for a slot."""
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(max_concurrent_turns))
        """The turns that may run, by connector: many messages on one platform must not delay the others."""
        self._stopping = False
        hub.hear(WORK, self._hear)

    def _hear(self, news: News) -> None:
        if news["lane"] == self._lane.value:
            self._rung.add(news["partition"])
            self._bell.set()

    def begin_grace_period(self) -> None:
        """Begin the grace period: the process is stopping. Answers go on until `run` is cancelled."""
        self._stop_by = asyncio.get_running_loop().time() + self._grace_seconds

    async def run(self) -> None:
        """Answer until cancelled. Then wait for running turns, at most until the grace period ends."""
        async with asyncio.TaskGroup() as group:
            sweeper = group.create_task(self._sweep())
            try:
                while True:
                    await self._bell.wait()
                    self._bell.clear()
                    await self._take_work()
            finally:
                # Shielded and bounded: a running turn ends, or is handed back for another worker.
                sweeper.cancel()
                self._stopping = True
                for task in self._queued:
                    task.cancel()
                await asyncio.shield(_finish(self._held.tasks, self._rest_of_grace()))

    def _hold(self, offer: WorkItem) -> None:
        # Not in the group: that would cancel the task when `run` ends, and give it no time.
        task = asyncio.create_task(self._serve(offer), name=f"turns: {offer.key.context_id}")
        self._serving[task] = offer
        task.add_done_callback(self._serving.__delitem__)
        self._held.add(offer.key.connector, task)

    def _rest_of_grace(self) -> float:
        left = None if self._stop_by is None else self._stop_by - asyncio.get_running_loop().time()
        return self._grace_seconds if left is None else max(0.0, left)

    async def _take_work(self) -> None:
        """Take abandoned conversations, then waiting ones of announced partitions, as many as there is room for."""
        try:
            while True:
                if self._reclaims:
                    await self._reclaim()
                elif self._rung:
                    await self._take_rung()
                elif (connector := self._held.connector_with_room()) is not None:
                    await self._take_more(connector)
                else:
                    return
        except StoreUnavailable as error:
            self._prepared = False  # another server may have come up in its place
            _log.warning("store.degraded", store="redis", why=str(error))  # the sweep will announce all partitions

    async def _reclaim(self) -> None:
        if not self._prepared:
            await self._mailbox.prepare()
        offers = await self._mailbox.abandoned(self._silent_seconds, _RECLAIM_BATCH, spares=not self._alone)
        self._prepared, self._silent_seconds = True, self._lease_seconds  # from now on leases may be this worker's own
        served = set(self._serving.values())  # after an outage they seem abandoned, but this worker will renew them
        for offer in (abandoned := [offer for offer in offers if offer not in served]):
            _log.info("turn.reclaimed", workspace_id=offer.key.workspace_id, context_id=offer.key.context_id)
        await self._hold_all(abandoned)
        self._reclaims = len(offers) >= _RECLAIM_BATCH  # there may be more

    async def _take_rung(self) -> None:
        partitions, self._rung = self._rung, set()
        offers = await self._mailbox.offers(partitions, _EACH)
        passed_on = await self._hold_all(offers)
        counts = Counter(offer.key.partition for offer in offers)
        # A full partition may have more. But if some of it was passed on, the same conversations would come again.
        self._rung |= {partition for partition, count in counts.items() if count >= _EACH} - passed_on

    async def _take_more(self, connector: str) -> None:
        """Take more conversations of *connector*, only as many as there is room for: passing on is wasted work."""
        partitions = self._held.take_partitions(connector)
        each = max(1, self._held.room(connector) // len(partitions))
        offers = await self._mailbox.offers(partitions, each)
        counts = Counter(offer.key.partition for offer in offers)
        self._held.note_more(connector, (partition for partition in partitions if counts[partition] >= each))
        await self._hold_all(offers)

    async def _hold_all(self, offers: Sequence[WorkItem]) -> set[int]:
        """Hold the *offers* that there is room for, first those that have waited longest, and pass the others on.
        Return the partitions of those that were passed on."""
        beyond: list[WorkItem] = []
        for offer in sorted(offers, key=lambda offer: offer.rank):
            if self._held.room(offer.key.connector):
                self._hold(offer)
            else:
                beyond.append(offer)
                self._held.note_more(offer.key.connector, [offer.key.partition])
        if beyond:
            await self._mailbox.pass_on(beyond)
        return {offer.key.partition for offer in beyond}

    async def _sweep(self) -> None:
        while True:
            self._reclaims = True
            self._rung |= set(range(PARTITIONS))
            self._bell.set()
            await asyncio.sleep(min(self._sweep_seconds, reclaim_interval(self._lease_seconds)))

    async def _serve(self, offer: WorkItem) -> None:
        """Answer everything that waits in the mailbox of *offer*.

        Take no turn until there is a slot. So one turn answers all messages that come meanwhile, and if this process
        ends, no turn counts an attempt that did not begin.
        """
        key = offer.key
        with event_context(workspace_id=key.workspace_id, context_id=key.context_id, connector=key.connector):
            try:
                lease = await self._mailbox.claim(offer)
                if lease is None:
                    return
                async with hold_lease(self._mailbox, lease, self._lease_seconds):
                    slot = self._slots[key.connector]
                    await self._queue(slot)
                    try:
                        await self._answer_all(lease)
                    finally:
                        slot.release()
            except Superseded:
                _log.warning("turn.superseded")
            except StoreUnavailable as error:
                # The messages are safe in the mailbox. If this worker has claimed them, they are reclaimed later.
                _log.warning("store.degraded", store="redis", why=str(error))
            except Exception:  # noqa: BLE001 - this mailbox cannot be read now; the other conversations go on
                _log.exception("turn.failed", why="unreadable")

    async def _queue(self, slot: asyncio.Semaphore) -> None:
        """Wait for *slot*; cancelled as soon as the worker stops."""
        queueing = asyncio.current_task()
        assert queueing is not None
        self._queued.add(queueing)
        try:
            await slot.acquire()
        finally:
            self._queued.discard(queueing)

    async def _answer_all(self, lease: Lease) -> None:
        """Answer everything in the mailbox; then the lease ends."""
        over: Batch | None = None
        again = False
        wait, longest = self._retry_seconds
        while True:
            try:
                if self._stopping:
                    if over is not None:
                        await self._mailbox.done(over)
                    break
                batch = await self._mailbox.take(lease, over=over, again=again)
                if batch is None:
                    return
                over, again, wait = None, False, self._retry_seconds[0]
                over = await self._answer_batch(batch)
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
                again = True
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)
        await hand_back_lease(self._mailbox, lease)

    async def _answer_batch(self, batch: Batch) -> Batch | None:
        """Answer *batch* and return it with all messages that were answered; None if its turn must be tried again."""
        if batch.envelopes[-1].message.looks_unfinished and not batch.resumed:
            batch = await self._collect(batch)
        with event_context(turn_id=batch.turn_id):
            if batch.crashes >= self._max_crashes:
                # The message itself may crash the processes.
                await self._give_up(replace(batch, attempt=batch.crashes), "interrupted")
                return batch
            if batch.crashes >= PAUSE_AFTER_CRASHES:
                await self._pause_after_crashes(batch)
            return await self._answer(batch)

    async def _pause_after_crashes(self, batch: Batch) -> None:
        """Wait, so that other turns end before one begins that may crash the process again. The pause is random, else
        turns that were only interrupted would begin together with the one that crashes."""
        shortest, longest = self._crash_pause_seconds
        seconds = min(shortest * 2 ** (batch.crashes - PAUSE_AFTER_CRASHES), longest)
        _log.warning("turn.paused", why="crashes", crashes=batch.crashes, seconds=seconds)
        await asyncio.sleep(seconds * random.uniform(0.5, 1.0))  # noqa: S311

    async def _answer(self, batch: Batch) -> Batch | None:
        """Answer *batch*, with the messages that join it meanwhile, and return it. Return None if the turn failed and
        has another attempt; after the last one it is given up."""
        try:
            while True:
                await notify_unanswered(self._hub, batch.key, superseded(batch))
                try:
                    await self._answers.answer(batch)
                    break
                except BatchGrown as growth:
                    batch = growth.batch
                    _log.info("turn.interrupted", merged=len(batch.envelopes))
        except (StoreUnavailable, Superseded):
            raise
        except Exception as error:  # noqa: BLE001 - one broken turn must not stop the conversation; it is logged with its traceback
            _log.exception("turn.failed", why="internal", attempts=batch.attempt)
            if batch.attempt < self._max_attempts:
                await asyncio.sleep(self._retry_seconds[0] * 2 ** (batch.attempt - 1))
                return None
            await self._give_up(batch, type(error).__name__)
        return batch

    async def _give_up(self, batch: Batch, why: str) -> None:
        _log.error("turn.failed", why="given_up", detail=why, attempts=batch.attempt)
        await self._dead_letters.add(batch, why, self._lane)
        try:
            await self._answers.apologise(batch)
        except (StoreUnavailable, Superseded):
            raise
        except Exception:  # noqa: BLE001 - the dead letter has the messages, and those after them want an answer
            _log.exception("turn.failed", why="no_apology")

    async def _collect(self, batch: Batch) -> Batch:
        """Give the rest of an unfinished message time to arrive."""
        rest = batch.envelopes[-1].accepted_at + self._collect_seconds - time.time()
        await asyncio.sleep(min(max(0.0, rest), self._collect_seconds))  # the gateway's clock may be far ahead
        return await self._mailbox.extend(batch)


async def _finish(tasks: set[asyncio.Task[None]], grace_seconds: float) -> None:
    if not tasks:
        return
    _, unfinished = await asyncio.wait(set(tasks), timeout=grace_seconds)
    for task in unfinished:
        task.cancel()
    if unfinished:
        _log.warning("worker.unfinished", turns=len(unfinished))
        await asyncio.wait(unfinished, timeout=HAND_BACK_SECONDS + 0.5)


class TaskLimiter:
    """Limits the tasks of each connector to *most*; calls *on_room* when one with more waiting work has much room."""

    def __init__(self, on_room: Callable[[], None], most: int) -> None:
        self._on_room = on_room
        self._most = most
        self._held: dict[str, set[asyncio.Task[None]]] = {}
        self._more: dict[str, dict[int, None]] = {}
        """By connector: partitions in which more of it may wait, the least recently read first."""

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        return {task for held in self._held.values() for task in held}

    def room(self, connector: str) -> int:
        """Return how many more conversations of *connector* may be held."""
        return max(0, self._most - len(self._held.get(connector, ())))

    def add(self, connector: str, task: asyncio.Task[None]) -> None:
        """Count *task* until it ends."""
        self._held.setdefault(connector, set()).add(task)

        def remove(ended: asyncio.Task[None]) -> None:
            held = self._held[connector]
            held.discard(ended)
            if not held:
                del self._held[connector]
            if self._has_room(connector):
                self._on_room()

        task.add_done_callback(remove)

    def note_more(self, connector: str, partitions: Iterable[int]) -> None:
        """Note that more of *connector* may wait in *partitions*."""
        more = dict.fromkeys(partitions)
        if more:
            self._more.setdefault(connector, {}).update(more)

    def connector_with_room(self) -> str | None:
        """Return a connector that has much room and of which more may wait; None if there is none."""
        return next((connector for connector in self._more if self._has_room(connector)), None)

    def take_partitions(self, connector: str) -> list[int]:
        """Return the partitions to read for more of *connector*: at most as many as it has room for conversations."""
        more = list(self._more.pop(connector, ()))
        room = self.room(connector)
        self.note_more(connector, more[room:])
        return more[:room]

    def _has_room(self, connector: str) -> bool:
        return connector in self._more and self.room(connector) >= self._most // 4
