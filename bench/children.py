"""Processes of their own that are told what to do by JSON lines, so that their CPU is not counted as the bot's.

Each module that is run as one calls `obey` with what it can do; whoever starts it calls `Child.ask`. One command is
done at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.emulators.valkey import die_with_parent

ROOT = Path(__file__).parents[1]
LONGEST_LINE_BYTES = 64_000_000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Command = Callable[..., Awaitable[Any]]


class ChildFailed(Exception):
    """A command broke in the other process; the text is its traceback, or says that it has ended."""


class Child:
    """A running process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, command: str, **about: Any) -> Any:
        """What *command* gives. Raises `ChildFailed`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, about]).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise ChildFailed(f"the process ended while it was to {command}")
        done, result = json.loads(line)
        if not done:
            raise ChildFailed(result)
        return result


@asynccontextmanager
async def child(module: str) -> AsyncIterator[Child]:
    """``python -m module``, as long as the block lasts."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=pipe, stdout=pipe, cwd=ROOT, limit=LONGEST_LINE_BYTES,
        preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def obey(commands: Mapping[str, Command]) -> None:
    """Do what standard input says until it ends, and answer each command on standard output."""
    reader = asyncio.StreamReader(limit=LONGEST_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command, about = json.loads(line)
        try:
            answer = [True, await commands[command](**about)]
        except Exception:  # noqa: BLE001 - it is told to whoever asked
            answer = [False, traceback.format_exc()]
        print(json.dumps(answer), flush=True)


def cpu_ms(pid: int) -> float:
    """What the threads of a process have computed so far, those that ended included; none of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / TICKS_PER_SECOND


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident memory (RSS) of a process, and its share of it where pages are shared with others (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kb = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return kb["Rss"] / 1024, kb["Pss"] / 1024


def all_children(pid: int) -> list[int]:
    """The processes that *pid* has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(one) for task in tasks for one in (task / "children").read_text().split()]


def children_of(pid: int) -> dict[str, int]:
    """The same, by the name of their program."""
    return {Path(f"/proc/{one}/comm").read_text().strip(): one for one in all_children(pid)}
