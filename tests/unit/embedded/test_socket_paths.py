"""Where the sockets of a data folder lie."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.embedded import UnsafeSocketFolder, socket_path
from runtime.embedded.child import MAX_SOCKET_PATH_BYTES


@pytest.fixture
def temp_root(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of this test's own."""
    root = data_dir / "t"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    return root


def test_a_short_data_folder_holds_its_socket(data_dir: Path) -> None:
    assert socket_path(data_dir, "redis/redis.sock") == data_dir / "redis" / "redis.sock"


@given(depth=st.integers(0, 30), name=st.sampled_from(["redis/redis.sock", "serve.sock", "ä" * 20]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_a_socket_can_be_bound_however_long_the_data_folder(
    data_dir: Path, temp_root: Path, depth: int, name: str
) -> None:
    path = socket_path(data_dir.joinpath(*["folder-é"] * depth), name)
    assert len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    path.unlink()


def test_different_data_folders_have_different_sockets(data_dir: Path, temp_root: Path) -> None:
    long = "x" * 120
    one, other = socket_path(data_dir / long / "a", "s"), socket_path(data_dir / long / "b", "s")
    assert one != other
    assert socket_path(data_dir / long / "a", "s") == one
    assert stat.S_IMODE(one.parent.stat().st_mode) == 0o700


def test_a_folder_that_others_may_enter_is_refused(data_dir: Path, temp_root: Path) -> None:
    (temp_root / f"agent-runtime-{os.getuid()}").mkdir()
    (temp_root / f"agent-runtime-{os.getuid()}").chmod(0o777)
    with pytest.raises(UnsafeSocketFolder, match="private"):
        socket_path(data_dir / ("x" * 120), "s")


def test_a_link_in_the_place_of_the_folder_is_refused(data_dir: Path, temp_root: Path) -> None:
    elsewhere = data_dir / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (temp_root / f"agent-runtime-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(UnsafeSocketFolder):
        socket_path(data_dir / ("x" * 120), "s")
