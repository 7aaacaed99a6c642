"""Where the unix sockets of a data folder lie, within the length that the kernel allows."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 100
"""``sun_path`` holds 108 bytes on Linux and 104 on macOS, the closing zero included."""


class UnsafeSocketFolder(Exception):
    """The folder for sockets in the temporary directory belongs to, or is open to, somebody else."""


def socket_path(data_dir: Path, name: str) -> Path:
    """The path of the socket *name* of *data_dir*; the folder it lies in exists, mode 0700.

    Under *data_dir* where that fits into `MAX_SOCKET_PATH_BYTES`, else under a folder of this user
    in the temporary directory that is named after a hash of the absolute *data_dir*: every process
    with the same user and the same data folder finds the same path. Touches the disk: call it in a
    thread. Raises `UnsafeSocketFolder`, `OSError`.
    """
    absolute = Path(os.path.abspath(data_dir))
    preferred = absolute / name
    if len(os.fsencode(preferred)) <= MAX_SOCKET_PATH_BYTES:
        preferred.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return preferred
    digest = hashlib.sha256(os.fsencode(absolute)).hexdigest()[:16]
    mine = Path(tempfile.gettempdir()) / f"agent-runtime-{os.getuid()}"
    _make_private(mine)
    folder = mine / digest
    _make_private(folder)
    short = folder / name.replace(os.sep, "-")
    if len(os.fsencode(short)) > MAX_SOCKET_PATH_BYTES:
        raise UnsafeSocketFolder(
            f"{tempfile.gettempdir()} is too long a path for a socket; set TMPDIR to a shorter one, such as /tmp"
        )
    return short


def _make_private(folder: Path) -> None:
    """Make *folder* or, where it exists, make sure that it is a real folder of ours that nobody else may enter."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafeSocketFolder(
            f"{folder} is not a private folder of this user; remove it, or set AGENT_RUNTIME_DATA_DIR to a shorter path"
        )
