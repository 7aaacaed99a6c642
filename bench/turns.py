"""Overhead per turn by stage, with a model that answers at once. ``python -m bench.turns [TURNS]``

A whole runtime in this process (embedded Redis with ``appendfsync always``, embedded Qdrant), messages over
its HTTP face, and a provider on loopback in a process of its own. ``model`` is LiteLLM's call with the
provider's answer; everything else is ours. Printed are milliseconds: median, 95th percentile, and the
median's share of the whole.
"""

from __future__ import annotations

import asyncio
import functools
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from config.settings import Settings
from connectors.message import Scope
from grounding import assemble
from grounding.pipeline import Pipeline
from grounding.transcript.log import Transcript
from runtime import events
from runtime.bootstrap import open_runtime
from runtime.delivery import Delivery
from runtime.embedded.child import beside
from runtime.event_stream import EventStream
from runtime.gateway import Gateway
from runtime.jobs import Jobs
from runtime.journal import Journal
from runtime.mailbox import Mailbox
from runtime.manifests import Manifests
from runtime.model import Model
from runtime.outbox import Outbox
from runtime.prompting import Prompting
from runtime.redaction import Redaction
from runtime.usage import Usage

STAGES: tuple[tuple[str, Any, str], ...] = (
    ("accept", Gateway, "accept"),
    ("take", Mailbox, "take"),
    ("ground", Pipeline, "ground"),
    ("identity", Prompting, "_identity"),
    ("assemble", assemble, "prompt"),
    ("model", Model, "complete"),
    ("journal", Journal, "completed"),
    ("store reply", Outbox, "put"),
    ("deliver", Delivery, "deliver"),
    ("record", Transcript, "append"),
    ("manifest", Manifests, "keep"),
    ("outcome", Manifests, "finish"),
    ("usage", Usage, "record"),
    ("enqueue jobs", Jobs, "enqueue"),
    ("done", Mailbox, "done"),
)
MESSAGES = {
    "small talk": "thanks!",
    "none": "what is the tallest lighthouse in the world?",
    "tail": "as we discussed, what was it again?",
    "qmd": "what does the refund policy say about windows?",
}
WARM_UP = 10

_times: dict[str, list[float]] = defaultdict(list)


def timed(stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """*call*, with how long each call took noted under *stage*."""
    if asyncio.iscoroutinefunction(call):

        @functools.wraps(call)
        async def wait(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return await call(*args, **options)
            finally:
                _times[stage].append((time.perf_counter() - started) * 1000)

        return wait

    @functools.wraps(call)
    def run(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            _times[stage].append((time.perf_counter() - started) * 1000)

    return run


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """The base URL of a provider in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.emulators.openai", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    try:
        yield next(word for word in line.split() if word.startswith("http"))
    finally:
        process.terminate()
        await process.wait()


async def measure(ask: Callable[[str], Awaitable[None]], text: str, turns: int) -> tuple[list[float], float]:
    """Wall milliseconds of each turn, and CPU milliseconds of this process per turn."""
    for _ in range(WARM_UP):
        await ask(text)
    _times.clear()
    walls = []
    cpu = time.process_time()
    for _ in range(turns):
        started = time.perf_counter()
        await ask(text)
        walls.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(0)
    return walls, (time.process_time() - cpu) * 1000 / turns


def report(kind: str, walls: list[float], cpu_ms: float) -> None:
    whole = statistics.median(walls)
    model = statistics.median(_times["model"])
    print(f"\n{kind}: {len(walls)} turns, {cpu_ms:.1f} ms CPU a turn in this process (LiteLLM's included)")
    print(f"  {'stage':<14}{'p50':>8}{'p95':>8}{'share':>8}")
    for stage, _, _ in STAGES:
        row(stage, _times[stage], whole)
    row("whole turn", walls, whole)
    overheads = sorted(wall - taken for wall, taken in zip(walls, _times["model"], strict=False))
    row("without model", overheads, whole)
    print(f"  ratio of everything else to the model call: {(whole - model) / model:.2f}")


def row(name: str, times: list[float], whole: float) -> None:
    if times:
        p95 = sorted(times)[min(len(times) - 1, int(len(times) * 0.95))]
        middle = statistics.median(times)
        print(f"  {name:<14}{middle:>8.2f}{p95:>8.2f}{middle / whole:>8.0%}")


async def main(turns: int) -> None:
    for stage, owner, name in STAGES:
        setattr(owner, name, timed(stage, getattr(owner, name)))
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with tempfile.TemporaryDirectory(prefix="ar-bench-") as folder:
        async with provider() as base_url:
            settings = Settings.model_validate(
                {
                    "data_dir": folder,
                    "llm_model": "openai/bench",
                    "llm_api_base": base_url,
                    "llm_api_key": "none",
                    "access_policy": "open",
                }
            )
            stream = EventStream()
            events.configure(Redaction.of(settings), keep=stream.put, silent=True)
            async with (
                open_runtime(settings, stream) as runtime,
                beside(runtime.supervisor.run(runtime.accept), "connectors"),
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(Starlette(routes=list(runtime.http.routes()))),
                    base_url="http://localhost",
                    headers={"Authorization": f"Bearer {runtime.admin_token}"},
                    timeout=60,
                ) as http,
            ):
                await runtime.knowledge.opened()
                await runtime.knowledge.sync(Scope("sample"))
                await runtime.model.warm()
                chunks = await runtime.knowledge.status(Scope("sample"))
                print(
                    f"{Path(folder).name}: {chunks.documents} documents, {chunks.chunks} chunks, {os.cpu_count()} cores"
                )
                for kind, text in MESSAGES.items():

                    async def ask(text: str, kind: str = kind) -> None:
                        body = {"text": text, "context": kind}
                        response = await http.post("/v1/workspaces/sample/messages", json=body)
                        assert response.status_code == 200, response.text

                    walls, cpu_ms = await measure(ask, text, turns)
                    report(kind, walls, cpu_ms)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
