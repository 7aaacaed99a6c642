"""The Markdown log is read back exactly, nothing said forges an entry, and what Redis lost comes back in its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import ConversationKey, encode_id, file_stem
from grounding.transcript import EntryRole, TranscriptEntry, UnreadableLog, markdown, read_log
from grounding.transcript.log import EntryId, merge

WORDS = st.text(st.characters(codec="utf-8"), max_size=120)
ENTRIES = st.builds(
    TranscriptEntry,
    role=st.sampled_from(EntryRole),
    text=WORDS.filter(lambda text: text.strip()),
    turn_id=st.just("t0001"),
    at=st.just("2026-11-21T10:00:00.000Z"),
    author=WORDS,
    user=WORDS,
    message_id=WORDS,
)
KEY = ConversationKey("acme", "telegram", "-10001/7")


def log(entries: list[TranscriptEntry]) -> str:
    return markdown.title(KEY) + "".join(markdown.render(entry) for entry in entries)


@given(st.lists(ENTRIES, max_size=6))
def test_what_is_written_can_be_read_back(entries: list[TranscriptEntry]) -> None:
    assert markdown.read(log(entries)) == entries


@given(st.lists(st.builds(replace, ENTRIES, turn_id=st.sampled_from(["t0001", "t0002", "t00010"])), max_size=8))
def test_a_turn_is_taken_out_and_no_byte_of_the_others_moves(entries: list[TranscriptEntry]) -> None:
    others = [entry for entry in entries if entry.turn_id != "t0001"]

    assert markdown.without_turn(log(entries), "t0001") == log(others)


@given(ENTRIES)
def test_no_message_adds_a_turn(entry: TranscriptEntry) -> None:
    written = log([entry])

    assert sum(line.startswith("## ") for line in written.split("\n")) == 1


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_places_never_share_a_file(one: str, other: str) -> None:
    assert (file_stem(one) == file_stem(other)) == (one == other)
    assert (encode_id(one) == encode_id(other)) == (one == other)


@given(st.text(min_size=1, max_size=300))
def test_a_file_name_is_safe_and_short_enough(place: str) -> None:
    stem = file_stem(place)

    assert len(stem) <= 200
    assert "/" not in stem
    assert not stem.startswith(".")


def test_look_alike_places_lie_apart() -> None:
    places = ["-10001", "10001", "-10001/7", "-10001%2F7", "../../etc/passwd", "a b", "a-b", "A-B", ".hidden"]

    assert len({markdown.path(ConversationKey("acme", "telegram", place)) for place in places}) == len(places)


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_a_conversation_survives_its_encoding(place: str) -> None:
    key = ConversationKey("acme", "http", place)

    assert ConversationKey.decode(key.encoded) == key
    assert not set(":{}") & set(key.encoded)


@given(st.text(st.sampled_from("a> \r\n\v\f\x1c\x85\u2028\u2029#"), min_size=1))
def test_no_line_of_a_message_begins_outside_of_the_quote(said: str) -> None:
    """Wherever Markdown or an editor shows a new line, it begins with the quote's sign, and it is read back."""
    entry = TranscriptEntry(EntryRole.INBOUND, said + ".", "t1", "2026-11-21T10:00:00.000Z")
    written = markdown.render(entry)

    body = written.split("- message: ``\n\n", 1)[1]
    assert all(line.startswith("> ") for line in body.splitlines())
    assert markdown.read(written) == [entry]


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
