"""The guard that every test runs under: our code must not block the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from blockbuster import BlockingError

from runtime.embedded import socket_path


def _as_if_ours(source: str) -> object:
    """A function defined in *source*, compiled as a file of our rooms."""
    import runtime

    namespace: dict[str, object] = {"socket_path": socket_path}
    exec(compile(source, str(Path(runtime.__file__).with_name("imaginary.py")), "exec"), namespace)
    return namespace["work"]


async def test_a_blocking_call_in_a_coroutine_of_ours_is_an_error(tmp_path: Path) -> None:
    work = _as_if_ours("async def work(folder):\n    socket_path(folder, 's')\n")
    with pytest.raises(BlockingError):
        await work(tmp_path)  # type: ignore[operator]


async def test_the_same_call_in_a_thread_is_none(tmp_path: Path) -> None:
    assert (await asyncio.to_thread(socket_path, tmp_path, "s")).name == "s"


async def test_a_test_may_call_a_blocking_function_itself(tmp_path: Path) -> None:
    assert socket_path(tmp_path, "s").name == "s"
