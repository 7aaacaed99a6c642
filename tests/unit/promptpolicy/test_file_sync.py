"""What is done about a directive and its file: one step, after which both agree."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from promptpolicy.directives import Version
from promptpolicy.file_sync import Step, decide, find_reverted_version
from promptpolicy.file_tree import SlotFile, SyncedCopy
from promptpolicy.policy import Kind, Place, Slot, digest

SLOT = Slot(Place(Scope("acme")), Kind.SYSTEM)
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def file(text: str, ending: str = "\n", seconds: float = 0) -> SlotFile:
    """A file that was changed *seconds* after `NOW`, when versions are published here."""
    sha256 = hashlib.sha256(f"{text}{ending}".encode()).hexdigest()
    return SlotFile(SLOT, "SYSTEM_PROMPT.md", sha256, text, changed_at=NOW + timedelta(seconds=seconds))


def stored(number: int, text: str | None, origin: str = "command") -> Version:
    sha256 = "-" if text is None else digest(text)
    return Version(SLOT, number, text, "telegram:7", NOW, origin, sha256, len(text or ""))


def copied(text: str, version: int) -> SyncedCopy:
    return SyncedCopy(file(text).sha256, version)


@pytest.mark.parametrize(
    ("origins", "undone"),
    [
        (["command", "command"], 1),  # an editor that was opened at version 1 and saved after version 2
        (["file", "api"], 1),
        (["command", "file"], None),  # who wrote the file takes it back
        (["command", "command", "file"], 1),
    ],
)
def test_a_file_does_not_undo_what_was_published_elsewhere(origins: list[str], undone: int | None) -> None:
    history = [stored(number, f"text {number}", origin) for number, origin in enumerate(origins, 1)][::-1]
    found = find_reverted_version("text 1", history)
    assert (found.version if found else None) == undone
    assert find_reverted_version("something else", history) is None


texts = st.sampled_from(["a", "b", "c"])
files = st.none() | st.builds(file, texts, st.sampled_from(["\n", ""]), st.sampled_from([-60, 0, 60]))
records = st.none() | st.builds(copied, texts, st.integers(1, 4))
versions = st.none() | st.builds(stored, st.integers(1, 4), st.none() | texts, st.sampled_from(["command", "file"]))


@given(files, records, versions)
def test_one_step_is_enough_and_no_published_text_is_lost(
    found: SlotFile | None, last: SyncedCopy | None, newest: Version | None
) -> None:
    step = decide(found, last, newest)
    number = newest.version if newest else 0
    if step is Step.IMPORT:
        assert found is not None
        newest = stored(number + 1, found.text)
        last = SyncedCopy(found.sha256, number + 1)
    elif step is Step.CLEAR:
        newest, last = stored(number + 1, None), None
    elif step in (Step.COPY, Step.CONFLICT):
        assert newest is not None
        found = None if newest.text is None else file(newest.text)
        last = None if newest.text is None else copied(newest.text, newest.version)
    elif step is Step.NOTE:
        last = None if found is None else SyncedCopy(found.sha256, number)
    assert decide(found, last, newest) is Step.NOTHING
    assert (found.text if found else None) == (newest.text if newest else None)


@given(versions)
def test_a_file_that_is_missing_without_a_record_clears_nothing(newest: Version | None) -> None:
    assert decide(None, None, newest) is not Step.CLEAR
