"""The embedded engine itself: its shards, opened in their folder, and where it is asked.

Its calls run one after the other, so that a replacement is atomic for our readers: on one thread of their own, but for
looks into few passages (`SHORT_PASSAGES`). ``optimize()`` is never called (docs/decisions/0030).
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import structlog

from grounding.documents.edge_damage import opened_whole
from grounding.documents.edge_errors import unavailable
from grounding.documents.edge_held import MOST_OF_ONE, Held, Tenant
from grounding.documents.edge_kept import Kept
from grounding.documents.edge_own import Own
from grounding.documents.edge_queries import count_of, filter_of
from grounding.documents.edge_search import SHORT_PASSAGES
from grounding.documents.edge_shard import (
    LEAST_FREE_BYTES,
    deep_dimensions_at,
    ensure_fields,
    ensure_room,
    is_there,
    opened,
)
from grounding.documents.index import IndexUnavailable
from grounding.documents.stored import Where

T = TypeVar("T")
Call = Callable[[Any], T]
Here = Callable[[Tenant], T]
log = structlog.get_logger()

LIGHTER = 10
"""A look into a shard of its own costs little more than one among so many times fewer passages of the shared one: both
arms 2.1 ms of processor time among 100,000, and 1.3 among 11,400."""

OPENING_SECONDS = 300.0
"""How long opening may take: 1.6 s of processor time for 100,000 passages. With a search's limit a large index, or one
on a busy machine, was given up when it was nearly open, and begun again."""


def _few() -> int:
    return SHORT_PASSAGES


class EdgeEngine:
    """The shards of one collection at *path*, and what is held in memory of their passages."""

    def __init__(
        self, path: Path, dimensions: int, deep_dimensions: int | None, timeout_seconds: float, *, holds: bool = True
    ) -> None:
        self._path = path
        self._dimensions = dimensions
        self._deep_dimensions = deep_dimensions
        self._timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qdrant-edge")
        self._shard: Any = None
        self._closed = False
        self._kept = Kept()
        self._held_whole = Held(dimensions) if holds else Held(dimensions, most=0, most_of_one=0)
        self._own = Own(path / "own", self._opened_own)
        self._engine = threading.Lock()

    async def _look(
        self, seen: Where, call: Call[T], here: Here[T] | None = None, most: Callable[[], int] | None = _few
    ) -> T:
        """*call*, which only reads what meets *seen*: at once where that is at most about *most()* passages (None for
        any number), and the engine has nothing else to do. Without the engine, by *here*, where *seen* is one tenant
        that is held whole."""
        tenant = _tenant_of(seen)
        if self._shard is not None and not self._closed and self._engine.acquire(blocking=False):
            try:
                if self._own.is_due():
                    self._go_on()
                if here is not None and (held := self._held_whole.of(str(tenant))) is not None:
                    return here(held)
                if most is None:
                    return self._held(call, False, tenant)
                is_own = self._own.of(tenant) is not None
                count = self._held(partial(self._size_of, tenant=tenant, seen=seen), False, tenant)
                if tenant is not None and self._own.may_move(tenant, count):
                    self._move(tenant)
                if (count // LIGHTER if is_own else count) <= most():
                    if here is not None and tenant is not None and not (is_own and count > MOST_OF_ONE):
                        wanted = filter_of(seen)
                        self._held(partial(self._held_whole.ask, tenant, seen=wanted, count=count), False, tenant)
                    return self._held(call, False, tenant)
            finally:
                self._engine.release()
        return await self._run(call, tenant)

    def _size_of(self, shard: Any, tenant: str | None, seen: Where) -> int:
        """About how many passages of *shard* meet *seen*; of a shard of its own, all that *tenant* has there."""
        size = self._own.size_of(tenant)
        return count_of(shard, filter_of(seen)) if size is None else size

    async def _run(self, call: Callable[[Any], T], tenant: str | None = None, *, opens: bool = True) -> T:
        """*call* with the open shard in which *tenant* is, on the engine's thread; nothing at all where it is not open
        and may not be."""
        if self._closed:
            raise IndexUnavailable("the search index is closed")
        limit = OPENING_SECONDS if opens and self._shard is None else self._timeout_seconds
        try:
            # No wait_for: before Python 3.12 it loses a cancellation that comes as the work ends.
            async with asyncio.timeout(limit):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, call, opens, tenant)
        except TimeoutError as error:
            raise IndexUnavailable(f"the search index took longer than {limit} s") from error

    def _call(self, call: Callable[[Any], T], opens: bool, tenant: str | None) -> T:
        with self._engine:
            return self._held(call, opens, tenant)

    def _held(self, call: Callable[[Any], T], opens: bool, tenant: str | None) -> T:
        """*call*, while nobody else uses the engine."""
        try:
            if self._shard is None:
                if not opens:
                    return cast("T", None)
                self._open()
            return call(self._own.of(tenant) or self._shard)
        except (IndexUnavailable, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # The engine has no classes of errors; all of them go through the table. Where it panics over damaged
            # files, what it raises is not even an Exception, and would end the process.
            raise unavailable(error, self._path) from error

    def _open(self) -> None:
        ensure_room(self._path, LEAST_FREE_BYTES)  # what the log has may be stored again
        shard = opened_whole(self._path, lambda path: opened(path, self._dimensions, self._deep_dimensions))
        try:
            self._own.open(shard)
        except BaseException:
            with closing(shard):
                self._own.close()
            raise
        self._shard = shard
        self._go_on()

    def _shut(self, shard: Any) -> None:
        """The shared shard last: without it nothing is opened again."""
        with ExitStack() as leaving:
            leaving.callback(shard.close)
            leaving.callback(shard.flush)
            self._own.close()

    def _opened_own(self, path: Path) -> Any:
        deep = self._deep_dimensions or deep_dimensions_at(self._path)
        shard = opened(path, self._dimensions, deep)
        ensure_fields(shard)
        return shard

    def _move(self, tenant: str) -> None:
        """Begin to move *tenant* into a shard of its own, on the engine's thread, in steps between which others have
        their turn."""
        self._thread.submit(self._step, lambda _: self._own.begin(tenant))

    def _go_on(self) -> None:
        if self._own.is_busy and not self._closed:
            with suppress(RuntimeError):  # closed a moment ago
                self._thread.submit(self._step, self._own.step)

    @property
    def is_moving(self) -> bool:
        """Whether a tenant is on its way into a shard of its own, so that the engine computes in the background."""
        return self._own.is_busy

    def _step(self, step: Callable[[Any], object]) -> None:
        with self._engine:
            if self._shard is None or self._closed:
                return
            try:
                self._held(step, False, None)
            except IndexUnavailable as error:  # the rest is tried again later: see `Own.is_due`
                log.warning("store.degraded", store="qdrant", why=str(error))
                return
        self._go_on()

    async def until_free(self) -> None:
        """Wait, however long that takes, until all is done that the engine's thread was given before. Opens nothing."""
        with suppress(RuntimeError):  # closed: it is given nothing more
            await asyncio.get_running_loop().run_in_executor(self._thread, int)

    async def exists(self) -> bool:
        return self._shard is not None or await asyncio.to_thread(is_there, self._path)

    async def drop(self) -> None:
        await self.close()
        try:
            await asyncio.to_thread(self._remove)
        except OSError as error:
            raise unavailable(error, self._path) from error

    def _remove(self) -> None:
        """The folder first gets a name that nobody opens: half of a shard would be a damaged one."""
        leaving = self._path.with_name(f"{self._path.name}.dropped")
        for folder in (leaving, self._path):  # the first is what an interrupted removal left
            if folder.exists():
                folder.rename(leaving)
                shutil.rmtree(leaving)

    async def close(self) -> None:
        """Flush and close within the time-out; later calls raise `IndexUnavailable`. What was never opened is not
        opened for that."""
        if self._closed:
            return
        try:
            await self._run(self._shut, opens=False)
        except IndexUnavailable as error:
            # Everything is in the write-ahead log already: the next start replays it.
            log.warning("store.degraded", store="qdrant", why=str(error))
        finally:
            self._closed, self._shard = True, None
            self._kept.clear()
            self._held_whole.clear()
            self._thread.shutdown(wait=False)


def _tenant_of(seen: Where) -> str | None:
    """The one tenant that *seen* is about."""
    first = seen.must[0]
    return str(first.values[0]) if first.key == "tenant" and len(first.values) == 1 else None
