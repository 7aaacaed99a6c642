"""LiteLLM is loaded beside everything else."""

from __future__ import annotations

import subprocess
import sys

_ENDS_WHILE_IT_LOADS = """
import asyncio, contextlib, threading
from runtime.loading import beside_the_process

async def main():
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await beside_the_process(threading.Event().wait)

asyncio.run(main())
"""


def test_a_process_that_ends_does_not_wait_for_what_it_was_loading() -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDS_WHILE_IT_LOADS], timeout=60, check=False)
    assert ended.returncode == 0
