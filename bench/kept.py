"""What a long bench has done already, so that one which was broken off goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.caches import Counted
from bench.engine import Timed
from bench.prompts import Sent


class Kept:
    """Results by name in *folder*, one file each; without one nothing is kept. Whoever changes what is measured takes
    another folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    async def prompts(self, name: str, make: Callable[[], Awaitable[list[Sent]]]) -> list[Sent]:
        """Those of *name*, by *make* where there are none yet."""
        if (found := self._read(name)) is not None:
            return [Sent(**one) for one in found]
        made = await make()
        self._write(name, [asdict(one) for one in made])
        return made

    async def timed(self, name: str, make: Callable[[], Awaitable[Timed]]) -> Timed:
        """What was measured under *name*, by *make* where nothing was yet."""
        if (found := self._read(name)) is not None:
            return Timed(Counted(found["tokens"], found["cached"]), found["first_ms"])
        made = await make()
        self._write(name, {**asdict(made.counted), "first_ms": made.first_ms})
        return made

    def _read(self, name: str) -> Any:
        path = self._path(name)
        return json.loads(path.read_text("utf-8")) if path is not None and path.exists() else None

    def _write(self, name: str, found: Any) -> None:
        if (path := self._path(name)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")  # half of a file is none
            new.write_text(json.dumps(found), encoding="utf-8")
            new.replace(path)

    def _path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name.replace(' ', '-')}.json"
