"""How soon a saved file is searchable:
``python -m bench.freshness [--burst N] [--import N] [--shared] [--who] [--in-process]``.

The index is followed as in ``serve``, with a Redis of its own, the search engine in a process of its own (but not with
``--in-process``) and the bundled static model; another process writes the files, of about 400 words each. ``saved at
once``: *N* files in one go (500). ``one by one``: single files, one a second, while nothing else goes on. ``beside an
import``: the same while *N* files (5,000) of the same workspace are copied in and indexed; ``the import`` are those.
Each is the time from when a file was written to when a search finds it, p50, p95 and the longest, in seconds; of files
that are deleted, to when none does. ``late`` is how late the event loop came round meanwhile, in milliseconds at p99
and at worst: processor time that other programs took counts, too. ``own`` does not: the most processor time that one
callback of the loop took. ``--who`` names what other threads were doing when it was late.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog

from bench.retrieval import passages
from config.settings import Settings
from connectors.message import Scope
from grounding.evaluation.metrics import percentile
from grounding.prompt_input import load_tokens
from grounding.retrieval import Source
from promptpolicy.directives import Directives
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.file_tree import DirectiveTree
from runtime import stores
from runtime.embedded.index_client import index_process
from runtime.search import Knowledge
from runtime.workspaces import Workspaces
from tests.emulators.own_redis import OwnRedis

SCOPE = Scope("acme")
TICK_SECONDS = 0.002
LATE_MS = 8.0
ONE_BY_ONE = 20
WRITER = """
import os, sys, time
folder, prefix, names = sys.argv[1], sys.argv[2], sys.stdin.read().split()
os.makedirs(folder, exist_ok=True)
for name in names:
    source, target = name.split(">")
    text = open(source, encoding="utf-8").read()
    with open(os.path.join(folder, prefix + target), "w", encoding="utf-8") as file:
        file.write(text)
    print(prefix + target, time.time(), flush=True)
"""


@dataclass
class Loop:
    """How late the event loop comes round."""

    late: list[float] = field(default_factory=list)
    own: float = 0.0
    who: Counter[str] = field(default_factory=Counter)
    _due: float = 0.0

    async def tick(self) -> None:
        while True:
            self._due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.late.append((time.perf_counter() - self._due) * 1000)

    def look(self, thread: int) -> None:
        """On a thread of its own: what the others do once the loop is late."""
        while True:
            time.sleep(0.001)
            if (time.perf_counter() - self._due) * 1000 < LATE_MS:
                continue
            for ident, frame in sys._current_frames().items():
                if ident != threading.get_ident():
                    stack = traceback.extract_stack(frame)[-3:]
                    names = " < ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(stack))
                    if "threading.py" not in names and "thread.py" not in stack[-1].filename:
                        self.who[("LOOP " if ident == thread else "") + names] += 1

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Everything of the block is counted."""
        run_as_it_is = asyncio.Handle._run

        def run(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run_as_it_is(handle)
            self.own = max(self.own, (time.thread_time() - began) * 1000)

        ticking = asyncio.create_task(self.tick())
        with patch.object(asyncio.Handle, "_run", run):
            try:
                yield
            finally:
                ticking.cancel()

    def take(self) -> str:
        """What was seen since it was last asked."""
        told = f"late p99 {percentile(self.late, 0.99):.1f} ms, worst {max(self.late):.1f} ms, own {self.own:.1f} ms"
        self.late, self.own = [], 0.0
        return told


class Watched:
    """When the index had which document."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self.at: dict[str, float] = {}
        self.gone: dict[str, float] = {}

    def begin(self, index: Any) -> None:
        replace: Callable[..., Any] = index.replace

        async def timed(sources: Sequence[Source], **more: Any) -> None:
            await replace(sources, **more)
            now = time.time()
            for one in sources:
                (self.at if one.entries else self.gone)[one.name] = now

        index.replace = timed

    async def until(self, written: dict[str, float], what: str, *, gone: bool = False) -> None:
        seen = self.gone if gone else self.at
        while not all(seen.get(path, 0.0) >= at for path, at in written.items()):
            await asyncio.sleep(0.05)
        lags = [seen[path] - at for path, at in written.items()]
        print(
            f"{what:<18} {len(lags):>5} files: p50 {percentile(lags, 0.5):5.2f}  p95 {percentile(lags, 0.95):5.2f}"
            f"  longest {max(lags):5.2f} s",
            flush=True,
        )


async def write(docs: Path, prefix: str, sources: Sequence[Path]) -> dict[str, float]:
    """Have another process write them; when each was written."""
    names = "\n".join(f"{source}>{number}.md" for number, source in enumerate(sources))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(docs), prefix, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    printed, _ = await process.communicate(names.encode())
    return {line.split()[0]: float(line.split()[1]) for line in printed.decode().splitlines()}


async def single(docs: Path, prefix: str, sources: Sequence[Path], until: asyncio.Task[Any] | None) -> dict[str, float]:
    """One file a second, until so many or until something is done."""
    written: dict[str, float] = {}
    for number, source in enumerate(sources):
        if until is not None and until.done():
            break
        written |= await write(docs, f"{prefix}{number}-", [source])
        await asyncio.sleep(1.0)
    return written


async def measure(knowledge: Knowledge, docs: Path, texts: Path, burst: int, imported: int, loop: Loop) -> None:
    sources = sorted(texts.iterdir())
    await knowledge.opened()
    while not knowledge.is_followed:
        await asyncio.sleep(0.05)
    watched = Watched(knowledge)
    watched.begin((await knowledge.ready()).index)
    await watched.until(await write(docs, "first-", sources[:1]), "the first")
    gc.freeze()  # as in `serve`, too
    loop.take()
    await watched.until(await single(docs, "one-", sources[:ONE_BY_ONE], None), "one by one")
    print(f"    {loop.take()}")
    if burst:
        await watched.until(await write(docs, "burst-", sources[:burst]), "saved at once")
        print(f"    {loop.take()}")
    if imported:
        told: dict[str, float] = {}

        async def importing() -> None:
            told.update(await write(docs / "import", "", (sources * (imported // len(sources) + 1))[:imported]))
            told_below = {f"import/{path}": at for path, at in told.items()}
            await watched.until(told_below, "the import")

        task = asyncio.create_task(importing())
        await asyncio.sleep(0.5)
        beside = await single(docs, "beside-", sources * 10, task)
        await watched.until(beside, "beside an import")
        await task
        print(f"    {loop.take()}")
    if burst:
        now = time.time()
        gone = {f"burst-{number}.md": now for number in range(burst)}
        for path in gone:
            await asyncio.to_thread((docs / path).unlink)
        await watched.until(gone, "deleted at once", gone=True)
        print(f"    {loop.take()}")


async def main(burst: int, imported: int, is_shared: bool, who: bool, in_process: bool) -> None:
    """Print it all."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ar-")))
        engine = None if in_process else await stack.enter_async_context(index_process(folder / "data"))
        texts, dice = folder / "texts", random.Random(5)
        texts.mkdir()
        for number, text in enumerate(passages(4 * max(burst, 100), dice)):
            with (texts / f"{number // 4}.md").open("a", encoding="utf-8") as file:
                file.write(f"{'#' * (number % 4 + 1)} Part {number}\n\n{text}\n\n")
        redis = OwnRedis(folder / "redis")
        redis.start()
        client = stores.connect(redis.url, 60.0)
        try:
            settings = Settings(data_dir=folder / "data", redis_url=redis.url if is_shared else None)
            tokens = load_tokens()
            workspaces = Workspaces(client, settings)
            await workspaces.create(SCOPE.workspace_id)
            tree = DirectiveTree(settings.data_dir)
            publisher = FileSyncPublisher(Directives(client, 60.0), tokens.count, 3000, tree)
            knowledge = Knowledge(settings, client, tokens, workspaces, publisher, engine=engine)
            docs = knowledge.library.root(SCOPE)
            docs.mkdir(parents=True)
            loop = Loop()
            tasks = [asyncio.create_task(knowledge.open()), asyncio.create_task(knowledge.follow())]
            if who:
                threading.Thread(target=loop.look, args=(threading.get_ident(),), daemon=True).start()
            async with loop.watched():
                await measure(knowledge, docs, texts, burst, imported, loop)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await knowledge.close()
            for names, often in loop.who.most_common(25):
                print(f"{often:>6}  {names}")
        finally:
            await client.aclose()
            redis.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--burst", type=int, default=500)
    parser.add_argument("--import", type=int, default=5000, dest="imported")
    parser.add_argument("--shared", action="store_true", help="documents in Redis, as with REDIS_URL")
    parser.add_argument("--who", action="store_true")
    parser.add_argument("--in-process", action="store_true", help="no process of its own for the search engine")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(main(asked.burst, asked.imported, asked.shared, asked.who, asked.in_process))
