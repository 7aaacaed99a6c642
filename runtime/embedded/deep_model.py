"""The deeper embedding model, in one child process beside this one: so no turn waits for its start, and this process
does not grow by its weights. Questions and documents have a connection each, and a thread each in the child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO

from connectors.connector import Health, State
from grounding.documents.deeper import LATE, NotYet
from grounding.documents.embedding import EmbedderUnavailable, Vector
from grounding.documents.minilm import DIMENSIONS, NAME
from runtime.embedded.child import ChildFailed, SupervisedChild, beside, die_with_parent
from runtime.embedded.vector_lane import VectorLane

READY_SECONDS = 60.0
STOP_SECONDS = 2.0
QUESTION_SECONDS = 0.05
"""How long a search in a turn waits for its question's vector. That takes 2.5 ms of a processor."""
COMMAND_SECONDS = 10.0
"""The same of a command that no `serve` answers: it starts the child for this one question."""
DOCUMENTS_SECONDS = 300.0
"""The same for a few documents, of which each takes 30 ms of a processor that does nothing else."""
REMEMBERED = 64
"""Questions whose vectors are kept: people ask again, and what was said before is a part of the next question."""
LOG_TAIL_BYTES = 800


class DeepModel:
    """A `grounding.documents.deeper.Deeper`, whose child is started when it is first wanted, and then kept running.
    Made by `deep_model`."""

    name = NAME
    dimensions = DIMENSIONS

    def __init__(self, data_dir: Path, question_seconds: float) -> None:
        self._question_seconds = question_seconds
        self._program = _Program(data_dir / "model" / "vectors.log")
        self._child: SupervisedChild | None = None
        self._wanted = asyncio.Event()
        self._asked: OrderedDict[str, asyncio.Future[Vector | None]] = OrderedDict()

    @property
    def health(self) -> Health:
        """How it is; stopped while nobody has wanted it yet."""
        if self._child is not None:
            return self._child.health
        return Health(State.CONNECTING if self._wanted.is_set() else State.STOPPED)

    @property
    def pid(self) -> int | None:
        """Of the child; None while there is none."""
        return self._child.pid if self._child else None

    def begin(self) -> None:
        """Start the child in the background; returns at once, and does nothing the second time."""
        self._wanted.set()

    def prepare(self, texts: Sequence[str]) -> None:
        """Begin to embed *texts*, which will be asked for in a moment."""
        self.begin()
        for text in texts:
            self._question(text)

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Unit vectors. Raises `EmbedderUnavailable` where they are not there in time, `NotYet` before the child was
        ready for the first time."""
        self.begin()
        if not self._program.was_ready:
            await self._program.first_ready(self._question_seconds)
        futures = [self._question(text) for text in texts]
        if not all(future.done() for future in futures):
            await asyncio.wait(futures, timeout=self._question_seconds)
        vectors = [future.result() if future.done() else None for future in futures]
        found = [vector for vector in vectors if vector is not None]
        if len(found) < len(texts) and not self._program.was_ready:
            raise NotYet(self.name)
        if len(found) < len(texts):
            raise EmbedderUnavailable(LATE, retryable=True)
        return found

    def _question(self, text: str) -> asyncio.Future[Vector | None]:
        """Its vector, which may be on the way already."""
        known = self._asked.get(text)
        if known is not None and not (known.done() and known.result() is None):
            self._asked.move_to_end(text)
            return known
        future = self._program.questions.ask(text) if self._program.questions else _nothing()
        self._asked[text] = future
        self._asked.move_to_end(text)
        if len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        return future

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """One unit vector per text, zeros for text without words. Waits for the child to start. Raises
        `EmbedderUnavailable` where it ends, or cannot be started."""
        self.begin()
        try:
            async with asyncio.timeout(DOCUMENTS_SECONDS):
                lane = await self._program.documents_lane()
                vectors = [await future for future in [lane.ask(text) for text in texts]]
        except TimeoutError:
            raise EmbedderUnavailable(f"{self.name}: no answer in {DOCUMENTS_SECONDS:g} s", retryable=True) from None
        found = [vector for vector in vectors if vector is not None]
        if len(found) < len(texts):
            # While the child is there it is a text that it cannot embed, and will not be able to.
            raise EmbedderUnavailable(f"{self.name}: the child gave no vector", retryable=not lane.is_open)
        return found

    async def _run(self) -> None:
        await self._wanted.wait()
        self._child = SupervisedChild(self._program)
        with contextlib.suppress(ChildFailed):  # it is in `health`, and it is tried again
            await self._child.start()
        await self._child.watch()

    async def _stop(self) -> None:
        if self._child is not None:
            await self._child.stop()
        self._program.hang_up()


@contextlib.asynccontextmanager
async def deep_model(data_dir: Path, question_seconds: float = QUESTION_SECONDS) -> AsyncIterator[DeepModel]:
    """A model whose child starts when it is wanted and ends with the block. A search waits *question_seconds* for its
    question's vector."""
    model = DeepModel(data_dir, question_seconds)
    try:
        async with beside(model._run(), "deep-model"):
            yield model
    finally:
        await asyncio.shield(model._stop())


class _Program:
    """The program that `SupervisedChild` runs."""

    name = "vectors"
    ready_seconds = READY_SECONDS
    stop_seconds = STOP_SECONDS

    def __init__(self, log: Path) -> None:
        self._log = log
        self._open = asyncio.Event()
        self.was_ready = False
        self.questions: VectorLane | None = None
        self._documents: VectorLane | None = None

    async def first_ready(self, seconds: float) -> None:
        """Return once the child is ready, or after *seconds*."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._open.wait()

    async def documents_lane(self) -> VectorLane:
        """The connection for documents, once the child is ready."""
        while self._documents is None or not self._documents.is_open or not self._open.is_set():
            self._open.clear()
            await self._open.wait()
        return self._documents

    async def spawn(self) -> Process:
        self.hang_up()
        ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        log = await asyncio.to_thread(self._open_log)
        try:
            process = await self._execute([one.fileno() for one in theirs], log)
        except BaseException:
            for one in ours:
                one.close()
            raise
        finally:
            log.close()
            for one in theirs:
                one.close()
        loop = asyncio.get_running_loop()
        _, self.questions = await loop.create_connection(VectorLane, sock=ours[0])
        _, self._documents = await loop.create_connection(VectorLane, sock=ours[1])
        return process

    async def _execute(self, sockets: list[int], log: IO[bytes]) -> Process:
        search = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "runtime.embedded.serve_vectors", *map(str, sockets)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
            pass_fds=sockets,
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),  # it has nothing to save
            process_group=0,
        )

    async def until_ready(self, process: Process) -> None:
        assert self.questions is not None
        if await self.questions.ready:
            self.was_ready = True
            self._open.set()
        else:
            await process.wait()  # it hung up, so it will end; its end is what is reported

    async def explain(self) -> str:
        return await asyncio.to_thread(self._log_tail)

    def hang_up(self) -> None:
        for lane in (self.questions, self._documents):
            if lane is not None:
                lane.close()
        self.questions = self._documents = None
        self._open.clear()

    def _open_log(self) -> IO[bytes]:
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._log.open("wb")

    def _log_tail(self) -> str:
        try:
            return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        except OSError:
            return ""


def _nothing() -> asyncio.Future[Vector | None]:
    future: asyncio.Future[Vector | None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
