"""``serve`` with every stage of a turn timed. ``python -m bench.stages serve`` is what `bench.turns` starts.

Until SIGUSR1 what was timed is thrown away; at SIGUSR2 it is written to the file that the environment names, as
milliseconds by stage. Stages that wait for each other's stores overlap: they do not add up to the whole.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.load import load

REPORT = "BENCH_STAGES_REPORT"
STAGES: dict[str, str] = {
    "accept": "runtime.ingress.gateway:Gateway.accept",
    "claim": "runtime.turns.mailbox:Mailbox.claim",
    "take": "runtime.turns.mailbox:Mailbox.take",
    "turn": "runtime.turns.turn:Turns.answer",
    "ground": "grounding.pipeline:Pipeline.ground",
    "prompt built": "runtime.turns.prompt:PromptBuilder.build",
    "manifest": "runtime.turns.manifest:Manifests.keep",
    "reserve": "runtime.billing.spending:Spending.reserve",
    "model (LiteLLM and provider)": "runtime.llm.client:Model.complete",
    "journal": "runtime.turns.checkpoint:Checkpoints.save_answer",
    "store reply": "runtime.delivery.outbox:Outbox.put",
    "deliver": "runtime.delivery.sender:Delivery.deliver",
    "record": "grounding.transcript.log:Transcript.append",
    "outcome": "runtime.turns.manifest:Manifests.finish",
    "settle": "runtime.billing.spending:Spending.settle_answer",
    "enqueue jobs": "runtime.coordination.jobs:Jobs.enqueue",
    "done": "runtime.turns.mailbox:Mailbox.done",
}
"""Where each is found: a module, and a call in it."""

_times: dict[str, list[float]] = defaultdict(list)


def find(place: str) -> tuple[Any, str]:
    """The owner of a call, and its name there. Raises `AttributeError` where there is none."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    getattr(owner, name)
    return owner, name


def timed(stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """*call*, a coroutine function, with how long each call took noted under *stage*."""

    @functools.wraps(call)
    async def wait(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return await call(*args, **options)
        finally:
            _times[stage].append((time.perf_counter() - started) * 1000)

    return wait


def watch() -> None:
    """Time all stages; one that is no more where it was is left out, and missing in the report."""
    for stage, place in STAGES.items():
        try:
            owner, name = find(place)
        except AttributeError:
            continue
        setattr(owner, name, timed(stage, getattr(owner, name)))


async def _serve() -> None:
    from runtime.process.serve import serve

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _times.clear)
    loop.add_signal_handler(signal.SIGUSR2, _write)
    await serve(load(os.environ).settings)


def _write() -> None:
    path = Path(os.environ[REPORT])
    path.with_suffix(".new").write_text(json.dumps(_times), encoding="utf-8")
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    watch()
    sys.exit(asyncio.run(_serve()))
