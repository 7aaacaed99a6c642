"""The configuration file that setup writes."""

from __future__ import annotations

import stat
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.load import ConfigurationError, load
from runtime.cli.commands import setup
from runtime.cli.commands.setup import dumps

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    st.one_of(SCALARS, st.lists(SCALARS, max_size=3)),
    lambda inner: st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_written_reads_back_as_it_was(values: dict[str, object]) -> None:
    assert tomllib.loads(dumps(values)) == values


def test_settings_that_setup_does_not_know_are_kept_and_unset_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "agent-runtime.toml"
    path.write_text('llm_model = "old/model"\nllm_api_key = "k"\nhttp_port = 9000\n[routes]\n"slack:T1" = "acme"\n')
    changed = setup.merge_settings(setup.read_config(path), {"llm_model": "openai/new", "llm_api_key": None})
    setup.write_config(path, changed, NOW)
    settings = load({}, path).settings
    assert (settings.llm_model, settings.llm_api_key, settings.http_port) == ("openai/new", None, 9000)
    assert settings.routes == {"slack:T1": "acme"}


def test_the_file_and_the_copy_of_the_old_one_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "agent-runtime.toml"
    path.write_text("# mine\nhttp_port = 9000\n")
    path.chmod(0o644)
    backup = setup.write_config(path, {"http_port": 9001}, NOW)
    assert backup is not None
    assert backup.read_text() == "# mine\nhttp_port = 9000\n"
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert sorted(tmp_path.iterdir()) == sorted([path, backup])


def test_a_first_file_has_no_copy(tmp_path: Path) -> None:
    assert setup.write_config(tmp_path / "new" / "agent-runtime.toml", {"http_port": 1}, NOW) is None


def test_a_file_that_is_no_toml_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent-runtime.toml"
    path.write_text("llm_model = ")
    with pytest.raises(ConfigurationError, match=r"agent-runtime\.toml: is not valid TOML"):
        setup.read_config(path)
