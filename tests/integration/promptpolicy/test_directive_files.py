"""Directives and their files under DATA_DIR, with a real Redis and a real disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from connectors.message import Role, Scope, encode_id
from grounding.strategy import problem_in
from promptpolicy import policy
from promptpolicy.directives import Directives
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.file_tree import DirectiveTree
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Place, Slot
from promptpolicy.publishing import Publisher, VersionMoved

ACME = Scope("acme")
ROOM = Scope("acme", "telegram:-10001/7")
SYSTEM = Slot(Place(ACME), Kind.SYSTEM)
REFUNDS = Slot(Place(ROOM), Kind.SKILL, "refunds")
LENA = "telegram:77"


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "workspaces" / "acme" / "context"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def publisher(redis: Redis, tmp_path: Path) -> FileSyncPublisher:
    return FileSyncPublisher(Directives(redis, timeout_seconds=5), words, 400, DirectiveTree(tmp_path))


async def texts(publisher: Publisher, scope: Scope) -> list[str]:
    return [directive.text for directive in await publisher.directives.load(scope)]


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rejected(events: list[Any]) -> list[tuple[str, str]]:
    return [(one["path"], one["why"]) for one in events if one["event"] == "directive.rejected"]


async def test_files_of_every_place_become_directives(
    publisher: FileSyncPublisher, tmp_path: Path, context: Path
) -> None:
    put(tmp_path / "global" / "SYSTEM_PROMPT.md", "everywhere\n")
    put(tmp_path / "global" / "skills" / "refunds.md", "global refunds\n")
    put(context / "SYSTEM_PROMPT.md", "\ufeffworkspace\r\nrule\r\n")
    put(context / "SOUL.md", "calm")
    room = context / "contexts" / encode_id(ROOM.context_id or "")
    put(room / "SOUL.md", "cheerful")
    put(room / "skills" / "refunds.md", "room refunds")
    done = await publisher.import_all()
    assert len(done.published) == 6
    assert done.rejected == {}
    assert set(await texts(publisher, ACME)) == {"everywhere", "global refunds", "calm", "workspace\nrule"}
    assert {"cheerful", "room refunds"} <= set(await texts(publisher, ROOM))
    version = await publisher.directives.version(SYSTEM, 1)
    assert (version.author, version.origin) == ("file", "file")


async def test_a_second_import_changes_nothing(publisher: FileSyncPublisher, context: Path) -> None:
    put(context / "SOUL.md", "calm\n")
    await publisher.import_all()
    before = {path: path.stat().st_mtime_ns for path in context.rglob("*")}
    with capture_logs() as events:
        done = await publisher.import_all()
    assert (done.published, done.copied, done.cleared, events) == ([], [], [], [])
    assert {path: path.stat().st_mtime_ns for path in context.rglob("*")} == before


async def test_what_is_published_is_written_to_its_file_and_not_imported_again(
    publisher: FileSyncPublisher, context: Path
) -> None:
    await publisher.publish(SYSTEM, "by command", author=LENA, origin="command")
    await publisher.publish(REFUNDS, "the way", author=LENA, origin="api")
    assert (context / "SYSTEM_PROMPT.md").read_text() == "by command\n"
    assert (context / "contexts" / "telegram%3A-10001%2F7" / "skills" / "refunds.md").read_text() == "the way\n"
    done = await publisher.import_all()
    assert (done.published, done.copied) == ([], [])
    await publisher.rollback(SYSTEM, 1, author=LENA, origin="command")
    assert [one.version for one in await publisher.directives.history(SYSTEM)] == [1]


async def test_a_rollback_and_a_clearing_keep_the_file_in_step(publisher: FileSyncPublisher, context: Path) -> None:
    for text in ("one", "two"):
        await publisher.publish(SYSTEM, text, author=LENA, origin="command")
    await publisher.rollback(SYSTEM, 1, author=LENA, origin="command")
    assert (context / "SYSTEM_PROMPT.md").read_text() == "one\n"
    await publisher.clear(SYSTEM, author=LENA, origin="command")
    assert not (context / "SYSTEM_PROMPT.md").exists()
    await publisher.import_all()
    assert [one.text for one in await publisher.directives.history(SYSTEM)] == [None, "one", "two", "one"]


async def test_a_deleted_file_is_a_clearing_in_the_history(publisher: FileSyncPublisher, context: Path) -> None:
    path = put(context / "SYSTEM_PROMPT.md", "rule")
    await publisher.import_all()
    path.unlink()
    with capture_logs() as events:
        done = await publisher.import_all()
    assert done.cleared == [SYSTEM]
    assert [(one["event"], one["cleared"], one["author"]) for one in events] == [("directive.changed", True, "file")]
    assert await texts(publisher, ACME) == []
    assert (await publisher.rollback(SYSTEM, 1, author=LENA, origin="command")).text == "rule"
    assert path.read_text() == "rule\n"


async def test_an_empty_disk_clears_nothing_and_is_filled(
    redis: Redis, publisher: FileSyncPublisher, tmp_path: Path
) -> None:
    await publisher.publish(SYSTEM, "rule", author=LENA, origin="command")
    elsewhere = tmp_path / "new disk"
    elsewhere.mkdir()
    moved = FileSyncPublisher(publisher.directives, words, 400, DirectiveTree(elsewhere))
    done = await moved.import_all()
    assert (done.cleared, done.copied) == ([], [SYSTEM])
    assert (elsewhere / "workspaces" / "acme" / "context" / "SYSTEM_PROMPT.md").read_text() == "rule\n"


async def test_a_lost_store_is_filled_from_the_files(redis: Redis, publisher: FileSyncPublisher, context: Path) -> None:
    for text in ("one", "two"):
        await publisher.publish(SYSTEM, text, author=LENA, origin="command")
    await redis.flushall()
    done = await publisher.import_all()
    assert done.published == [SYSTEM]
    assert await texts(publisher, ACME) == ["two"]
    assert (await publisher.import_all()).published == []


async def test_what_another_process_published_is_copied_by_the_next_import(
    redis: Redis, publisher: FileSyncPublisher, context: Path
) -> None:
    await publisher.publish(SYSTEM, "mine", author=LENA, origin="command")
    other = Publisher(Directives(redis, timeout_seconds=5), words, 400)
    await other.publish(SYSTEM, "theirs", author=LENA, origin="api")
    done = await publisher.import_all()
    assert (done.published, done.copied) == ([], [SYSTEM])
    assert (context / "SYSTEM_PROMPT.md").read_text() == "theirs\n"
    await other.clear(SYSTEM, author=LENA, origin="api")
    await publisher.import_all()
    assert not (context / "SYSTEM_PROMPT.md").exists()


async def test_an_edit_that_was_not_imported_yet_is_a_version_before_the_command(
    publisher: FileSyncPublisher, context: Path
) -> None:
    await publisher.publish(SYSTEM, "one", author=LENA, origin="command")
    (context / "SYSTEM_PROMPT.md").write_text("edited by hand\n")
    with pytest.raises(VersionMoved):
        await publisher.publish(SYSTEM, "two", author=LENA, origin="api", expected_version=1)
    (context / "SYSTEM_PROMPT.md").write_text("edited again\n")
    await publisher.publish(SYSTEM, "three", author=LENA, origin="command")
    history = await publisher.directives.history(SYSTEM)
    assert [one.text for one in history] == ["three", "edited again", "edited by hand", "one"]
    assert (context / "SYSTEM_PROMPT.md").read_text() == "three\n"


def link(path: Path) -> None:
    target = put(path.with_name("target.txt"), "from afar")
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


BAD_FILES: list[tuple[Any, str]] = [
    (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not UTF-8"),
    (lambda path: path.write_bytes(b"PK\x03\x04\x00"), "control character U+0003"),
    (lambda path: path.write_bytes(b""), "empty"),
    (lambda path: path.write_bytes(b"x" * 300_000), "more than 262144 bytes"),
    (lambda path: path.write_text("word " * 400), "more than POLICY_MAX_TOKENS 400"),
    (link, "links are not followed"),
    (pipe, "no plain file"),
    (folder, "no plain file"),
]


@pytest.mark.parametrize(("spoil", "why"), BAD_FILES)
async def test_a_bad_file_is_named_once_and_the_last_good_version_stays_until_a_command_sets_the_file_aside(
    publisher: FileSyncPublisher, context: Path, spoil: Any, why: str
) -> None:
    path = put(context / "SYSTEM_PROMPT.md", "good")
    put(context / "SOUL.md", "calm")
    await publisher.import_all()
    spoil(path)
    with capture_logs() as events:
        done = await publisher.import_all()
        await publisher.import_all()
    [(where, said)] = rejected(events)
    assert where == "workspaces/acme/context/SYSTEM_PROMPT.md"
    assert why in said
    assert list(done.rejected) == [where]
    assert await texts(publisher, ACME) == ["calm", "good"]

    await publisher.publish(SYSTEM, "better", author=LENA, origin="command")
    assert path.read_text() == "better\n"
    assert not path.is_symlink()
    assert os.path.lexists(context / "SYSTEM_PROMPT.md.rejected")
    done = await publisher.import_all()
    assert (done.published, done.rejected) == ([], {})


async def test_beside_a_bad_file_lies_a_note_until_it_is_mended(
    publisher: FileSyncPublisher, context: Path, tmp_path: Path
) -> None:
    """Whoever looks at the folder learns why the text does not hold and what to do; commands find it, too."""
    bad = [put(context / "SYSTEM_PROMPT.md", b"\xff\xfe"), put(context / "soul.md", "calm")]
    bad.append(put(context / "skills" / "My Skill.md", "text"))
    put(context / "README.md", "about this folder")
    await publisher.import_all()
    notes = [path.with_name(f"{path.name}.refused.txt") for path in bad]
    assert [note.is_file() for note in notes] == [True, True, True]
    assert "Why: the file is not UTF-8 text\nWhat to do: correct or remove it" in notes[0].read_text()
    refused = {note.path: note.why for note in await publisher.refused(Place(ACME))}
    assert set(refused) == {str(path.relative_to(tmp_path)) for path in bad}
    assert "there are SYSTEM_PROMPT.md, SOUL.md" in refused["workspaces/acme/context/soul.md"]

    bad[0].write_text("better")
    bad[1].rename(context / "SOUL.md")
    bad[2].unlink()
    await publisher.import_all()
    assert [note.exists() for note in notes] == [False, False, False]
    assert await publisher.refused(Place(ACME)) == []


async def test_a_stale_file_does_not_overwrite_what_was_published_since(
    publisher: FileSyncPublisher, redis: Redis, context: Path
) -> None:
    """While nobody watched the files, a chat published and a person edited: the newer version stays, and the person's
    text is kept beside it with a note, until they are done with it."""
    path = put(context / "SYSTEM_PROMPT.md", "one")
    await publisher.import_all()
    elsewhere = Publisher(Directives(redis, timeout_seconds=5), words, 400)
    await elsewhere.publish(SYSTEM, "two", author=LENA, origin="command")
    path.write_text("mine")
    with capture_logs() as events:
        done = await publisher.import_all()
        await publisher.import_all()
    assert await texts(publisher, ACME) == ["two"]
    assert done.published == []
    [(_, why)] = rejected(events)
    assert why.startswith(f"version 2 was published by {LENA} at ")
    kept = context / "SYSTEM_PROMPT.md.rejected"
    assert (path.read_text(), kept.read_text()) == ("two\n", "mine")
    [note] = await publisher.refused(Place(ACME))
    assert "SYSTEM_PROMPT.md.rejected" in note.advice

    path.write_text("two and mine")
    kept.unlink()
    await publisher.import_all()
    assert await texts(publisher, ACME) == ["two and mine"]
    assert await publisher.refused(Place(ACME)) == []


async def test_a_file_that_is_older_than_the_version_does_not_replace_it(
    publisher: FileSyncPublisher, context: Path
) -> None:
    """A file from a backup or an archive comes with the time at which it was written."""
    for text in ("one", "two"):
        await publisher.publish(SYSTEM, text, author=LENA, origin="command")
    path = put(context / "SYSTEM_PROMPT.md", "from a backup\n")
    os.utime(path, (1577836800, 1577836800))
    done = await publisher.import_all()
    assert done.published == []
    assert [one.text for one in await publisher.directives.history(SYSTEM)] == ["two", "one"]
    assert path.read_text() == "two\n"
    assert (context / "SYSTEM_PROMPT.md.rejected").read_text() == "from a backup\n"
    [note] = await publisher.refused(Place(ACME))
    assert note.why.startswith(f"version 2 was published by {LENA} at ")
    assert note.why.endswith("after the file was changed last (2020-01-01 00:00 UTC)")
    assert "put what you want of it into SYSTEM_PROMPT.md" in note.advice

    path.write_text("from a backup\n")  # as the note says
    assert (await publisher.import_all()).published == [SYSTEM]


@pytest.mark.parametrize("slot", [SYSTEM, REFUNDS, Slot(EVERYWHERE, Kind.SOUL)], ids=lambda slot: slot.encoded)
async def test_an_editor_that_still_has_an_earlier_version_does_not_undo_a_later_one(
    publisher: FileSyncPublisher, tmp_path: Path, slot: Slot
) -> None:
    for text in ("one", "two", "three"):
        await publisher.publish(slot, text, author=LENA, origin="command")
    [path] = [one for one in tmp_path.rglob("*.md") if one.is_file()]
    path.write_text("two\n")
    await publisher.import_all()
    assert path.read_text() == "three\n"
    assert path.with_name(f"{path.name}.rejected").read_text() == "two\n"
    [note] = await publisher.refused(slot.place.home)
    assert note.why.startswith(f"the file says what version 2 said, and version 3 was published by {LENA} at ")
    command = {
        SYSTEM: "rollback --workspace acme system 2",
        REFUNDS: "rollback --scope context --workspace acme --context telegram:-10001/7 skill refunds 2",
    }.get(slot, "rollback --scope global soul 2")
    assert note.advice.startswith(f"if you want it back, run `./agent-runtime prompt {command}`; then delete ")


async def test_what_the_file_said_may_be_taken_back_in_the_file(publisher: FileSyncPublisher, context: Path) -> None:
    """Who edits a file and undoes it, or moves it away and back, is understood."""
    path = put(context / "SYSTEM_PROMPT.md", "one\n")
    await publisher.import_all()
    path.write_text("two\n")
    await publisher.import_all()
    path.write_text("one\n")
    await publisher.import_all()
    aside = path.rename(context.parent / "aside")
    os.utime(aside, (1577836800, 1577836800))
    await publisher.import_all()
    aside.rename(path)
    await publisher.import_all()
    history = await publisher.directives.history(SYSTEM)
    assert [one.text for one in history] == ["one", None, "one", "two", "one"]
    assert await publisher.refused(Place(ACME)) == []


async def test_names_that_fill_no_slot_are_named_and_others_ignored(
    publisher: FileSyncPublisher, context: Path
) -> None:
    for name in ("Refunds.md", "a b.md", "notes.txt", ".refunds.md.swp", "..md"):
        put(context / "skills" / name, "text")
    put(context / "README.md", "about this folder")
    put(context / "contexts" / "telegram:1" / "SOUL.md", "colon in a folder's name")
    put(context / "contexts" / "general" / "SOUL.md", "no context id")
    done = await publisher.import_all()
    assert sorted(done.rejected) == [
        "workspaces/acme/context/contexts/general",
        "workspaces/acme/context/contexts/telegram:1",
        "workspaces/acme/context/skills/Refunds.md",
        "workspaces/acme/context/skills/a b.md",
    ]
    assert done.published == []


@pytest.mark.parametrize("part", ["skills", "contexts", "contexts/telegram%3A1", "."])
async def test_folders_that_are_links_are_not_entered(
    publisher: FileSyncPublisher, context: Path, tmp_path: Path, part: str
) -> None:
    outside = tmp_path / "outside"
    for path in ("SOUL.md", "skills/s.md", "s.md", "telegram%3A1/SOUL.md"):
        put(outside / path, "not ours")
    if part == ".":
        context.rmdir()
    (context / part).parent.mkdir(parents=True, exist_ok=True)
    (context / part).symlink_to(outside)
    done = await publisher.import_all()
    assert done.published == []
    assert [why for why in done.rejected.values() if "link" in why]


@pytest.mark.parametrize("swap", ["link", "file", "gone"])
async def test_a_folder_that_can_no_longer_be_read_clears_nothing_and_one_that_is_gone_does(
    publisher: FileSyncPublisher, context: Path, tmp_path: Path, swap: str
) -> None:
    await publisher.publish(REFUNDS, "the way", author=LENA, origin="command")
    skills = context / "contexts" / "telegram%3A-10001%2F7" / "skills"
    skills.rename(tmp_path / "aside")
    if swap == "link":
        skills.symlink_to(tmp_path / "aside")
    if swap == "file":
        skills.write_text("no folder")
    done = await publisher.import_all()
    assert await texts(publisher, ROOM) == ([] if swap == "gone" else ["the way"])
    assert done.cleared == ([REFUNDS] if swap == "gone" else [])
    assert bool(done.rejected) == (swap != "gone")


async def test_nothing_is_written_through_a_link(publisher: FileSyncPublisher, context: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (context / "skills").symlink_to(outside)
    with capture_logs() as events:
        version = await publisher.publish(
            Slot(Place(ACME), Kind.SKILL, "refunds"), "the way", author=LENA, origin="command"
        )
    assert version.version == 1
    assert list(outside.iterdir()) == []
    assert "directive.copy_failed" in [one["event"] for one in events]


async def test_a_file_name_that_is_not_utf8_is_named_as_well_as_can_be(
    publisher: FileSyncPublisher, context: Path
) -> None:
    put(context / "skills" / os.fsdecode(b"caf\xe9.md"), "text")
    with capture_logs() as events:
        done = await publisher.import_all()
    assert list(done.rejected) == ["workspaces/acme/context/skills/caf?.md"]
    json.dumps(events).encode()


async def test_a_copy_that_could_not_be_written_is_made_up_for(
    publisher: FileSyncPublisher, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    await publisher.publish(SYSTEM, "one", author=LENA, origin="command")
    with monkeypatch.context() as patch, capture_logs() as events:
        patch.setattr(DirectiveTree, "write", full)
        await publisher.publish(SYSTEM, "two", author=LENA, origin="command")
    assert [one["event"] for one in events] == ["directive.changed", "directive.copy_failed"]
    assert (context / "SYSTEM_PROMPT.md").read_text() == "one\n"
    done = await publisher.import_all()
    assert (done.published, done.copied) == ([], [SYSTEM])
    assert (context / "SYSTEM_PROMPT.md").read_text() == "two\n"


async def test_a_deletion_that_would_burst_the_cap_is_refused_and_named(
    publisher: FileSyncPublisher, tmp_path: Path, context: Path
) -> None:
    path = put(context / "skills" / "refunds.md", "short")
    put(tmp_path / "global" / "skills" / "refunds.md", "word " * 150)
    put(context / "SYSTEM_PROMPT.md", "word " * 100)
    await publisher.import_all()
    path.unlink()
    smaller = FileSyncPublisher(publisher.directives, words, 270, DirectiveTree(tmp_path))
    done = await smaller.import_workspace(ACME)
    assert list(done.rejected) == ["workspaces/acme/context/skills/refunds.md"]
    assert "short" in await texts(publisher, ACME)


@pytest.mark.parametrize("record", ["{", '{"v": 2, "copies": {}}', '{"v": 1, "copies": {"a": 1}}'])
async def test_a_damaged_or_newer_record_stops_only_the_copying(
    publisher: FileSyncPublisher, context: Path, record: str
) -> None:
    put(context / "SYSTEM_PROMPT.md", "rule")
    put(context / ".directives.json", record)
    done = await publisher.import_all()
    assert list(done.rejected) == ["workspaces/acme/context"]
    await publisher.publish(SYSTEM, "by command", author=LENA, origin="command")
    assert await texts(publisher, ACME) == ["by command"]
    assert (context / ".directives.json").read_text() == record


async def test_the_record_holds_digests_and_versions_only(publisher: FileSyncPublisher, context: Path) -> None:
    await publisher.publish(SYSTEM, "secret sauce", author=LENA, origin="command")
    record = json.loads((context / ".directives.json").read_text())
    assert record["v"] == 1
    assert record["copies"]["workspace/system"]["version"] == 1
    assert "sauce" not in json.dumps(record)


CUES = Slot(Place(ACME), Kind.CUES)
GOOD = '[add]\ndocuments = ["netlist"]'
BAD = '[add]\ndocumentz = ["netlist"]'
CHECKS = {Kind.CUES: problem_in}


@pytest.fixture
def cue_publisher(redis: Redis, tmp_path: Path) -> FileSyncPublisher:
    return FileSyncPublisher(Directives(redis, timeout_seconds=5), words, 400, DirectiveTree(tmp_path), CHECKS)


async def held(publisher: Publisher) -> list[str]:
    return [one.text for one in await publisher.directives.load(ACME) if one.slot.kind is Kind.CUES]


async def test_a_bad_file_of_cues_is_named_and_the_last_good_ones_stay(
    cue_publisher: FileSyncPublisher, context: Path
) -> None:
    file = put(context / "CUES.toml", GOOD)
    await cue_publisher.import_workspace(ACME)
    file.write_text(BAD)
    with capture_logs() as events:
        done = await cue_publisher.import_workspace(ACME)

    assert await held(cue_publisher) == [GOOD]
    assert "documentz is no kind of cue" in done.rejected["workspaces/acme/context/CUES.toml"]
    assert [event["event"] for event in events] == ["directive.rejected"]
    assert file.read_text() == BAD


async def test_bad_cues_are_not_published(cue_publisher: FileSyncPublisher) -> None:
    with pytest.raises(InvalidDirective, match="documentz is no kind of cue"):
        await cue_publisher.publish(CUES, BAD, author="a:1", origin="api")

    assert await held(cue_publisher) == []


async def test_cues_are_no_part_of_how_the_model_must_behave(cue_publisher: FileSyncPublisher) -> None:
    await cue_publisher.publish(CUES, GOOD, author="a:1", origin="api")
    directives = await cue_publisher.directives.load(ACME)

    assert policy.measure(Role.MEMBER, directives, words) == policy.measure(Role.MEMBER, (), words)
