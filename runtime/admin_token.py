"""The admin's token: from the settings, else a file under DATA_DIR that is made once."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from pathlib import Path

from config.settings import Settings
from connectors.message import AgentRuntimeError

FILE_NAME = "admin-token"
_MODE = 0o600
_BYTES = 32


class AdminTokenUnreadable(AgentRuntimeError):
    """The token's file is there but holds no token, or is no plain file; the text says what to do."""


async def admin_token(settings: Settings) -> str:
    """``ADMIN_TOKEN``, or the token in ``DATA_DIR/admin-token``, which is generated where it is missing.

    However many processes start at once, all get the same. Raises `AdminTokenUnreadable`, and `OSError`
    when the file can be neither read nor written.
    """
    if settings.admin_token is not None:
        return settings.admin_token.get_secret_value()
    return await asyncio.to_thread(_read_or_make, settings.data_dir / FILE_NAME)


def _read_or_make(path: Path) -> str:
    if not os.path.lexists(path):
        _make(path)
    return _read(path)


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{FILE_NAME}-{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, does not replace the token that another process made meanwhile.
        os.link(partial, path)
    except FileExistsError:
        return
    finally:
        partial.unlink()


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        token = file.read(4096).strip()
        if not stat.S_ISREG(mode) or not token:
            raise AdminTokenUnreadable(f"{path} holds no token; delete it, and a new one is made at the next start")
        if stat.S_IMODE(mode) & 0o077:
            os.fchmod(file.fileno(), _MODE)
    return token
