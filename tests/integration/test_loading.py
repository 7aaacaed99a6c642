"""LiteLLM is loaded beside everything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ENDS_WHILE_IT_LOADS = """
import asyncio, contextlib, threading
from runtime.llm.loader import process_loader

async def main():
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await process_loader.run_in_daemon_thread(threading.Event().wait)

asyncio.run(main())
"""


def test_a_process_that_ends_does_not_wait_for_what_it_was_loading() -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDS_WHILE_IT_LOADS], timeout=60, check=False)
    assert ended.returncode == 0


_IMPORTS_AT_ITS_END = """
import asyncio, sys, threading
from runtime.cli import main as cli
from runtime.llm.loader import process_loader

class ImportsWhenItIsTakenApart:
    def __del__(self):
        import held

async def ends_while_it_imports():
    loading = asyncio.create_task(process_loader.run_in_daemon_thread(lambda: __import__("held")))
    while "held" not in sys.modules:
        await asyncio.sleep(0.01)
    loading.cancel()

def invoke(arguments):
    asyncio.run(ends_while_it_imports())
    return 3

# Attributes of sys go first, while modules can still be imported.
cli.invoke, sys.ps1 = invoke, ImportsWhenItIsTakenApart()
print("ends")  # what was printed is not lost
cli.main()
"""


def test_a_process_ends_though_what_it_was_importing_is_wanted_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text("import threading\nthreading.Event().wait()\n")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", _IMPORTS_AT_ITS_END],
        timeout=30,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (ended.returncode, ended.stdout) == (3, "ends\n"), ended.stderr
