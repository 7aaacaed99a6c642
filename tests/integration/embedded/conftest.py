"""What the tests of child processes have in common."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def runs(pid: int) -> bool:
    """Whether there is that process, and it has not ended: one whose parent is gone may not be reaped by anybody."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
