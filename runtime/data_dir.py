"""The folder under which everything is kept: made where it is missing, and usable."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from connectors.message import AgentRuntimeError


class DataDirUnusable(AgentRuntimeError):
    """DATA_DIR cannot be made, or this user may not write there; the text says what to do."""


async def prepare_data_dir(path: Path) -> None:
    """Make the folder *path*, for this user alone, where it is missing. Raises `DataDirUnusable`."""
    await asyncio.to_thread(_prepare, path)


def _prepare(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, f"cannot be made a folder ({error.strerror})") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unusable(path, "this user may not write there")


def _unusable(path: Path, why: str) -> DataDirUnusable:
    return DataDirUnusable(
        f"AGENT_RUNTIME_DATA_DIR={path}: {why}; let this user write there, or set it to another folder"
    )
