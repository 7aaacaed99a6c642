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


FREE = """
import ctypes
from runtime.allocation import give_back
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
blocks = [libc.malloc(60_000) for _ in range(1000)]
for block in blocks: ctypes.memset(block, 1, 60_000)
for block in blocks[:-1]: libc.free(block)
before = resident()
print(give_back(), before - resident())
"""


@pytest.mark.skipif(
    sys.platform != "linux" or sys.implementation.name != "cpython", reason="only glibc can be asked and told"
)
def test_what_was_freed_is_given_back_to_the_system() -> None:
    """60 MB, below one block that is still in use."""
    root = Path(__file__).parents[2]
    told = subprocess.run([sys.executable, "-c", FREE], cwd=root, capture_output=True, text=True, timeout=60)
    given, freed = told.stdout.split()
    if given == "False":
        pytest.skip("not glibc")
    assert int(freed) > 50_000_000
