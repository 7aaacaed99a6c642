"""Client of the embedded search index and the second embedding model, which run in a child process.

The engine holds the interpreter's lock in every call, opens for seconds, and ends its process if the disk is full.
None of that may delay or end the bot (docs/decisions/10). The child is `runtime.embedded.index_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import structlog

from config.settings import Settings
from connectors.connector import ConnectionState, Health
from grounding.retrieval import (
    DEEP_VECTOR_LATE,
    MINILM_DIMENSIONS,
    MINILM_NAME,
    PAYLOAD_VERSION,
    EmbedderUnavailable,
    IndexUnavailable,
    ModelLoading,
    PassageIndex,
    Vector,
)
from runtime.embedded.child import (
    PAUSE_SECONDS,
    ChildFailed,
    SupervisedChild,
    background_task,
    read_log_end,
    spawn_python,
)
from runtime.embedded.index_server import DAMAGED, LOGGED, Channel, IndexTarget

READY_SECONDS = 60.0
STOP_SECONDS = 10.0
"""How long the child may take to flush and close its indexes."""
WAIT_SECONDS = 30.0
"""How long a call waits for a child that is being started."""
PING_SECONDS = 10.0
"""Between checks that the child still answers."""
SILENCE_SECONDS = 120.0
"""A child that gives no answer for so long is replaced. It gives none while the engine opens a large index: 1.6 s of a
processor for 100,000 passages."""
QUESTION_SECONDS = 0.5
"""How long a search in a turn waits for the deeper vector of its question, which takes 3 ms of a processor, and .25 s
if the model has to be loaded again."""
QUESTIONS_KEPT = 32
"""The vectors of so many questions are kept, 12 kB each: one message is searched for among documents and among earlier
turns, and once more as what was said before the next one."""
COMMAND_SECONDS = 10.0
"""How long a search in a command without ``serve`` waits: it starts the child for this one question."""
_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(64 * 1024**2), "MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2)}
"""Keeps large blocks of memory between two texts: to get them anew each time doubles the processor time of a vector (29
to 62 ms). The child gives free memory back by itself. Source: ``man 3 mallopt``."""
_LARGE = frozenset(("upsert", "replace", "deepen"))
"""Calls with many passages: they are pickled in a thread."""
_LEAVING = frozenset(("close", "drop"))
"""Calls that do not open the index."""
_log = structlog.get_logger()
F = TypeVar("F", bound=Callable[..., Any])


def has_embedded(settings: Settings) -> bool:
    """Return whether the index is embedded and its engine is installed. Blocking: looks at the disk."""
    return settings.qdrant_url is None and importlib.util.find_spec("qdrant_edge") is not None


class IndexProcess:
    """Starts and supervises the child, and calls its methods. Created by `index_process`."""

    name = "qdrant"
    ready_seconds = READY_SECONDS

    def __init__(
        self,
        data_dir: Path,
        wait_seconds: float,
        ping_seconds: float,
        silence_seconds: float,
        stop_seconds: float,
        pause_seconds: tuple[float, float],
    ) -> None:
        self.stop_seconds = stop_seconds
        self._log_file = data_dir / "qdrant.log"
        self._wait_seconds = wait_seconds
        self._ping_seconds = ping_seconds
        self._silence_seconds = silence_seconds
        self._child = SupervisedChild(self, pause_seconds)
        self._wanted = asyncio.Event()
        self.begun = asyncio.Event()
        """Set once the first child was started, or failed to start."""
        self.found_damaged = asyncio.Event()
        """Set when a child finds damaged files of an index, which is empty then."""
        self._channel: Channel | None = None
        self._channels: asyncio.Queue[Channel] = asyncio.Queue()
        """Channels whose answers are still to be read."""
        self._ready = asyncio.Event()
        self._numbers = itertools.count(DAMAGED + 1)
        self._answers: dict[int, asyncio.Future[Any]] = {}

    @property
    def health(self) -> Health:
        """Return the state of the child; stopped if it was not needed yet."""
        return self._child.health if self._wanted.is_set() else Health(ConnectionState.STOPPED)

    @property
    def pid(self) -> int | None:
        """Return the child's process id; None while there is none."""
        return self._child.pid

    @property
    def is_ready(self) -> bool:
        """Return whether the child answers."""
        return self._ready.is_set()

    def begin(self) -> None:
        """Start the child in the background, unless it was started before."""
        self._wanted.set()

    async def wait_until_ready(self) -> None:
        """Wait until the child answers. Raises `IndexUnavailable` if that takes too long."""
        self.begin()
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._ready.wait()
        except TimeoutError:
            raise IndexUnavailable(f"the process of the search index is not there{self._why()}") from None

    async def call(self, target: IndexTarget | None, method: str, *arguments: Any, **options: Any) -> Any:
        """Call *method* of the index *target*, or of the second embedding model if that is None.

        Raises what the method raises, and `IndexUnavailable` if the child ends before it answers. If the caller is
        cancelled, so is the call in the child.
        """
        await self.wait_until_ready()
        return await self._ask(target, method, arguments, options)

    async def _ask(
        self, target: IndexTarget | None, method: str, arguments: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        channel, number = self._channel, next(self._numbers)
        if channel is None:
            raise IndexUnavailable(self._lost())
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        try:
            await channel.send(number, (target, method, arguments, options), is_large=method in _LARGE)
            return await answer
        except OSError:
            raise IndexUnavailable(self._lost()) from None
        finally:
            del self._answers[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # else asyncio warns that it was never retrieved
            elif method not in _LEAVING:
                channel.cancel(number)

    def _lost(self) -> str:
        return f"the process of the search index ended while it was asked{self._why()}"

    def _why(self) -> str:
        return f": {self.health.why}" if self.health.state is ConnectionState.DEGRADED and self.health.why else ""

    async def _read_answers(self) -> None:
        while True:
            channel = await self._channels.get()
            async for number, raw in channel.messages():
                first, second = await channel.load(raw)
                if number == LOGGED:
                    getattr(_log, first)(second.pop("event"), **second)
                elif number == DAMAGED:
                    self.found_damaged.set()
                elif (answer := self._answers.get(number)) is not None and not answer.done():
                    answer.set_result(second) if first else answer.set_exception(second)
            self._ready.clear()
            self._channel = None
            channel.close()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(IndexUnavailable(self._lost()))
            self._channels.task_done()

    async def _ping(self) -> None:
        """Replace a child that gives no answer for `SILENCE_SECONDS`."""
        while True:
            await asyncio.sleep(self._ping_seconds)
            await self._ready.wait()
            try:
                async with asyncio.timeout(self._silence_seconds):
                    await self._ask(None, "ping", (), {})
            except TimeoutError:
                self._child.give_up(f"gave no answer for {self._silence_seconds:g} s")
            except IndexUnavailable:
                continue  # it ended, and the supervisor starts the next one

    async def _run(self) -> None:
        await self._wanted.wait()
        async with (
            background_task(self._read_answers(), "search-index-answers"),
            background_task(self._ping(), "search-index-pings"),
        ):
            with contextlib.suppress(ChildFailed):  # `health` says why, and the supervisor tries again
                await self._child.start()
            await self._child.watch()

    async def _stop(self) -> None:
        await self._child.stop()
        if self._channel is not None:
            self._channel.close()

    async def spawn(self) -> Process:
        """See `runtime.embedded.child.Program`."""
        try:
            await self._channels.join()  # all answers of the former child are read
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    # To be killed is safe: the engine's log has all that was stored. The next child needs the folder.
                    process = await spawn_python(
                        "runtime.embedded.index_server",
                        str(theirs.fileno()),
                        log_file=self._log_file,
                        environment=_ALLOCATOR,
                        pass_fds=[theirs.fileno()],
                    )
                except BaseException:
                    ours.close()
                    raise
            self._channel = await Channel.open(ours)
            self._channels.put_nowait(self._channel)
            return process
        finally:
            self.begun.set()

    async def until_ready(self, process: Process) -> None:
        """See `runtime.embedded.child.Program`."""
        try:
            await self._ask(None, "ping", (), {})
        except IndexUnavailable:
            await process.wait()  # it hung up, so it ends; the supervisor reports how
        else:
            self._ready.set()

    async def explain(self) -> str:
        """See `runtime.embedded.child.Program`."""
        return await read_log_end(self._log_file)


@contextlib.asynccontextmanager
async def index_process(
    data_dir: Path,
    *,
    wait_seconds: float = WAIT_SECONDS,
    ping_seconds: float = PING_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
    stop_seconds: float = STOP_SECONDS,
    pause_seconds: tuple[float, float] = PAUSE_SECONDS,
) -> AsyncIterator[IndexProcess]:
    """Yield a child that starts in the background when it is first needed, and ends with the block."""
    index = IndexProcess(data_dir, wait_seconds, ping_seconds, silence_seconds, stop_seconds, pause_seconds)
    try:
        async with background_task(index._run(), "search-index"):
            yield index
    finally:
        await asyncio.shield(index._stop())


@contextlib.asynccontextmanager
async def start_index_process(settings: Settings) -> AsyncIterator[IndexProcess | None]:
    """Yield a child that starts while this process imports its own modules; None if there is no embedded index."""
    if not await asyncio.to_thread(has_embedded, settings):
        yield None
        return
    async with index_process(settings.data_dir) as process:
        process.begin()
        await process.begun.wait()
        yield process


def _forwarded(method: F) -> F:
    """Return a method of `RemoteIndex` that calls *method* of the index in the child."""

    async def forward(self: RemoteIndex, *arguments: Any, **options: Any) -> Any:
        return await self._call(method.__name__, *arguments, **options)

    return cast("F", forward)


class RemoteIndex:
    """Implements `PassageIndex` over the index that *process* has in *folder*."""

    def __init__(
        self,
        process: IndexProcess,
        folder: Path,
        model: str,
        dimensions: int,
        *,
        timeout_seconds: float,
        version: int = PAYLOAD_VERSION,
        deep_dimensions: int | None = None,
    ) -> None:
        self.deepens = deep_dimensions is not None
        self._process = process
        self._target = IndexTarget(folder, model, dimensions, timeout_seconds, version, deep_dimensions)
        self._closed = False

    ensure = _forwarded(PassageIndex.ensure)
    upsert = _forwarded(PassageIndex.upsert)
    replace = _forwarded(PassageIndex.replace)
    delete = _forwarded(PassageIndex.delete)
    search = _forwarded(PassageIndex.search)
    read = _forwarded(PassageIndex.read)
    neighbours = _forwarded(PassageIndex.neighbours)
    vectors = _forwarded(PassageIndex.vectors)
    deepen = _forwarded(PassageIndex.deepen)
    shallow = _forwarded(PassageIndex.shallow)
    ids = _forwarded(PassageIndex.ids)
    sources = _forwarded(PassageIndex.sources)
    count = _forwarded(PassageIndex.count)
    drop_workspace = _forwarded(PassageIndex.drop_workspace)
    check = _forwarded(PassageIndex.check)
    exists = _forwarded(PassageIndex.exists)

    async def drop(self) -> None:
        try:
            await self._call("drop")
        finally:
            self._closed = True

    async def close(self) -> None:
        if self._closed:
            return
        try:
            if self._process.is_ready:
                async with asyncio.timeout(self._process.stop_seconds):
                    await self._call("close")
        except (IndexUnavailable, TimeoutError) as error:
            # The engine's log has everything, and the next start reads it.
            why = str(error) or f"the search index was not closed within {self._process.stop_seconds:g} s"
            _log.warning("store.degraded", store="qdrant", why=why)
        finally:
            self._closed = True

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if not self._closed:
            await self._process.wait_until_ready()
        if self._closed:
            raise IndexUnavailable("the search index is closed")
        return await self._process.call(self._target, method, *arguments, **options)


class DeepModel:
    """The second embedding model in the child *process*. A search waits *question_seconds* for a vector."""

    name = MINILM_NAME
    dimensions = MINILM_DIMENSIONS

    def __init__(self, process: IndexProcess, question_seconds: float = QUESTION_SECONDS) -> None:
        self._process = process
        self._question_seconds = question_seconds
        self._is_loaded = False
        self._kept: dict[str, Vector] = {}
        self._why = ""
        """Why documents could not be embedded the last time."""

    @property
    def health(self) -> Health:
        """Return the state of the model."""
        return Health(ConnectionState.DEGRADED, self._why) if self._why else self._process.health

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Return unit vectors. Raises `EmbedderUnavailable` if they take too long, `ModelLoading` before the first
        ones."""
        vectors = {text: self._kept[text] for text in texts if text in self._kept}
        if new := [text for text in dict.fromkeys(texts) if text not in vectors]:
            vectors |= zip(new, await self._embed_questions(new), strict=True)
            self._kept = dict([*(self._kept | vectors).items()][-QUESTIONS_KEPT:])
        return [vectors[text] for text in texts]

    async def _embed_questions(self, texts: list[str]) -> list[Vector]:
        try:
            async with asyncio.timeout(self._question_seconds):
                vectors: list[Vector] = await self._process.call(None, "embed_queries", texts)
        except (TimeoutError, IndexUnavailable):
            if not self._is_loaded:
                raise ModelLoading(self.name) from None
            raise EmbedderUnavailable(DEEP_VECTOR_LATE) from None
        self._is_loaded = True
        return vectors

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Return one unit vector for each text, zeros for a text without words. Raises `EmbedderUnavailable`."""
        return await self._embed_texts("embed_documents", texts)

    async def embed_notes(self, texts: Sequence[str]) -> list[Vector]:
        """Return the same for texts whose language cannot be told. Raises `EmbedderUnavailable`."""
        return await self._embed_texts("embed_notes", texts)

    async def _embed_texts(self, method: str, texts: Sequence[str]) -> list[Vector]:
        try:
            vectors: list[Vector] = await self._process.call(None, method, list(texts))
        except (EmbedderUnavailable, IndexUnavailable) as error:
            self._why = str(error)
            raise EmbedderUnavailable(f"{self.name}: {error}") from error
        self._is_loaded, self._why = True, ""
        return vectors
