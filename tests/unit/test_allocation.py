"""Memory that threads set aside, counted by the C library in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.allocation import ARENAS

USE = """
import ctypes, sys, threading
from runtime.allocation import share_arenas
share_arenas()
together = threading.Barrier(16)
def work():
    kept = [bytes(2000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or sys.implementation.name != "cpython", reason="only glibc can be asked and told"
)
def test_threads_share_the_pools_of_memory() -> None:
    root = Path(__file__).parents[2]
    counted = subprocess.run([sys.executable, "-c", USE], cwd=root, capture_output=True, text=True, timeout=60)
    if "<heap" not in counted.stdout:
        pytest.skip("not glibc")
    assert counted.stdout.count("<heap nr=") <= ARENAS
