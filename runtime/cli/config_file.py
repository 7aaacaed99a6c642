"""The configuration file as `setup` writes it: what was there is kept, and the old file lies beside."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from config.load import DEFAULT_FILE, FILE_VARIABLE, read_file
from runtime.cli.toml import dumps

_UNITS = {"_seconds": "seconds", "_milliseconds": "milliseconds", "_tokens": "tokens", "_bytes": "bytes"}


def target(option: Path | None, environment: Mapping[str, str]) -> Path:
    """The file that settings are read from, and so are to be written to."""
    return option or Path(environment.get(FILE_VARIABLE) or DEFAULT_FILE)


def read(path: Path) -> dict[str, Any]:
    """What the file says; nothing where there is none. Raises `config.load.ConfigurationError`."""
    return read_file(path) if path.exists() else {}


def merged(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """*old* with *changes*; a change to None takes the setting away. Pure."""
    values = {**old, **changes}
    return {name: values[name] for name in sorted(values) if values[name] is not None}


def write(path: Path, values: Mapping[str, Any], now: datetime) -> Path | None:
    """Write *values* to *path*, readable by this user only; the copy of what was there before, if anything was.

    The file is replaced as a whole or not at all. Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "# Settings of agent-runtime. Environment variables (AGENT_RUNTIME_…) win over them.\n\n"
    text += dumps(values, {name: unit for name in values for ending, unit in _UNITS.items() if name.endswith(ending)})
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        backup = _back_up(path, now)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return backup


def _back_up(path: Path, now: datetime) -> Path | None:
    if not path.exists():
        return None
    backup = path.with_name(f"{path.name}.{now:%Y%m%d-%H%M%S}.bak")
    descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(path.read_bytes())
    return backup
