"""The admin's token."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from config.settings import Settings
from runtime.access import SecretUnreadable, admin_token


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_token_of_the_settings_is_used_and_no_file_made(settings: Callable[..., Settings]) -> None:
    """A token that was set is the token, and nothing is written."""
    made = settings(admin_token="chosen")
    assert await admin_token(made) == "chosen"
    assert list(made.data_dir.iterdir()) == []


async def test_a_missing_token_is_made_once_for_the_owner_alone(settings: Callable[..., Settings]) -> None:
    """A generated token is long, the same at the next start, and readable by its owner alone."""
    made = settings()
    token = await admin_token(made)
    assert len(token) >= 32
    assert await admin_token(made) == token
    assert mode(made.data_dir / "admin-token") == 0o600
    assert [path.name for path in made.data_dir.iterdir()] == ["admin-token"]


async def test_processes_that_start_at_once_agree(settings: Callable[..., Settings]) -> None:
    """Of many that make the token at the same time all get the same one."""
    made = settings()
    assert len(set(await asyncio.gather(*(admin_token(made) for _ in range(8))))) == 1


async def test_a_loose_mode_is_tightened(settings: Callable[..., Settings]) -> None:
    """A token's file that others could read is closed to them."""
    made = settings()
    path = made.data_dir / "admin-token"
    path.write_text("mine\n")
    path.chmod(0o644)
    assert await admin_token(made) == "mine"
    assert mode(path) == 0o600


async def test_an_empty_file_is_a_clear_error(settings: Callable[..., Settings]) -> None:
    """A file without a token opens nothing, and says what to do."""
    made = settings()
    (made.data_dir / "admin-token").touch()
    with pytest.raises(SecretUnreadable, match="delete it"):
        await admin_token(made)


async def test_a_link_is_not_followed(settings: Callable[..., Settings]) -> None:
    """A link in place of the file is not read."""
    made = settings()
    (made.data_dir / "elsewhere").write_text("planted")
    os.symlink("elsewhere", made.data_dir / "admin-token")
    with pytest.raises(OSError):
        await admin_token(made)
