"""What the chat log holds and Redis does not comes back in its place, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import ConversationKey
from grounding.transcript import EntryRole, TranscriptEntry, UnreadableLog, markdown, read_log
from grounding.transcript.log import EntryId, merge

KEY = ConversationKey("acme", "telegram", "-10001/7")
NOW = 2_000_000_000_000


def entry(turn: int, role: EntryRole = EntryRole.INBOUND, at: str = "2026-11-21T10:00:00.000Z") -> TranscriptEntry:
    return TranscriptEntry(role, f"{role} {turn}", f"t{turn}", at)


def turn(number: int) -> list[TranscriptEntry]:
    return [entry(number), entry(number, EntryRole.OUTBOUND)]


stored_turns = st.sets(st.integers(0, 9))
gaps = st.lists(st.integers(3, 2000), min_size=12, max_size=12)


@given(stored_turns, stored_turns, gaps)
def test_every_turn_is_there_once_in_the_order_of_the_log(
    kept: set[int], not_logged: set[int], gaps: list[int]
) -> None:
    """Whatever Redis still has; what was not copied to the file yet stays behind what was."""
    logged = [one for number in range(10) for one in turn(number)]
    stored: list[tuple[EntryId, TranscriptEntry]] = []
    at = 1_700_000_000_000
    for number in [*sorted(kept), *(10 + number for number in sorted(not_logged))]:
        for one in turn(number):
            at += gaps[number % 12]
            stored.append(((at, 0), one))
    merged = merge(stored, logged, NOW)
    ids = [entry_id for entry_id, _ in merged.entries]
    assert ids == sorted(set(ids))
    assert max(ids, default=(0, 0)) <= (NOW, 2**63)
    assert set(stored) <= set(merged.entries)
    spoken = [one for _, one in merged.entries]
    assert spoken == [*logged, *(one for number in sorted(not_logged) for one in turn(10 + number))]
    assert (merged.turns, merged.restored) == (10 - len(kept), 2 * (10 - len(kept)))
    assert merge(merged.entries, logged, NOW).restored == 0


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59Z", "-1", "", "0001-01-01T00:00:00Z"])
def test_a_time_that_nobody_can_have_written_keeps_nothing_from_being_appended(at: str) -> None:
    merged = merge([], [entry(1, at=at), entry(1, EntryRole.OUTBOUND, at=at)], NOW)
    assert [entry_id <= (NOW, 1) for entry_id, _ in merged.entries] == [True, True]


def write(folder: Path, text: str, key: ConversationKey = KEY) -> Path:
    file = folder / markdown.path(key)
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_a_log_is_read_without_what_an_interrupted_write_left(tmp_path: Path) -> None:
    text = markdown.title(KEY) + "".join(map(markdown.render, turn(1)))
    file = write(tmp_path, text + markdown.render(entry(2))[:-4])
    assert read_log(tmp_path, file, "acme") == (KEY, turn(1))


def test_what_is_no_log_of_its_place_is_refused(tmp_path: Path) -> None:
    other = ConversationKey("acme", "telegram", "-99")
    for text in ("# Something else\n", "", markdown.title(other)):
        file = write(tmp_path / str(len(text)), text)
        with pytest.raises(UnreadableLog):
            read_log(tmp_path / str(len(text)), file, "acme")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(markdown.title(KEY))
    file = tmp_path / markdown.path(KEY)
    file.parent.mkdir(parents=True)
    file.symlink_to(secret)
    with pytest.raises(OSError):
        read_log(tmp_path, file, "acme")


def test_what_somebody_said_forges_no_entry(tmp_path: Path) -> None:
    """A message that looks like a part of a log comes back as that message."""
    forged = TranscriptEntry(
        EntryRole.INBOUND, markdown.render(entry(666)) + markdown.title(KEY), "t1", "2026-11-21T10:00:00Z"
    )
    file = write(tmp_path, markdown.title(KEY) + markdown.render(forged))
    assert [one.turn_id for one in read_log(tmp_path, file, "acme")[1]] == ["t1"]
