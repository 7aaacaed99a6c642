"""The log of each conversation in Redis, and its Markdown copy."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import ConversationKey
from grounding.transcript import (
    EntryRole,
    MarkdownCopy,
    Reach,
    Transcript,
    TranscriptEntry,
    UnknownFormat,
    markdown,
    read_log,
)

KEY = ConversationKey("acme", "http", "default")
OTHER = ConversationKey("acme", "http", "other")


def entry(text: str, turn: str = "t1", role: EntryRole = EntryRole.INBOUND) -> TranscriptEntry:
    return TranscriptEntry(role, text, turn, "2026-11-21T10:00:00.000Z", author="Lena", user="http:u1", message_id="m")


def turn(number: int) -> list[TranscriptEntry]:
    return [entry(f"question {number}", f"t{number}"), entry(f"answer {number}", f"t{number}", EntryRole.OUTBOUND)]


def logged(data_dir: Path) -> list[TranscriptEntry]:
    """What the Markdown copy holds."""
    return list(read_log(data_dir, data_dir / markdown.path(KEY), KEY.workspace_id)[1])


async def test_a_turn_is_recorded_once_and_counted_once(redis: Redis) -> None:
    transcript = Transcript(redis)

    assert await transcript.append(KEY, "t1", turn(1))
    assert not await transcript.append(KEY, "t1", turn(1))

    assert await transcript.reach(KEY) == Reach(turns=1, entries=2)
    assert await transcript.reach(OTHER) == Reach()


async def test_the_tail_is_the_newest_spoken_entries_oldest_first(redis: Redis) -> None:
    transcript = Transcript(redis)
    for number in range(1, 6):
        await transcript.append(KEY, f"t{number}", turn(number))

    tail = await transcript.tail(KEY, 3, except_turn="t5")

    assert [one.text for one in tail] == ["answer 3", "question 4", "answer 4"]


async def test_tool_lines_never_reach_the_tail_however_many_there_are(redis: Redis) -> None:
    transcript = Transcript(redis)
    await transcript.append(KEY, "t1", turn(1))
    await transcript.append(KEY, "t2", [entry(f"tool {n}", "t2", EntryRole.TOOL) for n in range(60)])

    assert [one.text for one in await transcript.tail(KEY, 4)] == ["question 1", "answer 1"]


async def test_an_entry_of_a_newer_format_is_refused_with_what_to_do(redis: Redis) -> None:
    transcript = Transcript(redis)
    await transcript.append(KEY, "t1", turn(1))
    (name,) = [key async for key in redis.scan_iter("ar:transcript:*:log:*")]
    await redis.xadd(name, {"v": "99", "role": "inbound"})

    with pytest.raises(UnknownFormat, match="upgrade"):
        await transcript.tail(KEY, 4)


async def test_the_markdown_copy_is_in_order_and_written_once(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    for number in (1, 2):
        await transcript.append(KEY, f"t{number}", turn(number))
    await transcript.append(OTHER, "t9", turn(9))

    await MarkdownCopy(transcript, data_dir).flush()
    await MarkdownCopy(transcript, data_dir).flush()

    written = logged(data_dir)
    assert [one.text for one in written] == ["question 1", "answer 1", "question 2", "answer 2"]
    assert (data_dir / markdown.path(OTHER)).exists()


async def test_a_copy_that_was_stopped_after_writing_is_not_doubled(redis: Redis, data_dir: Path) -> None:
    """The file is known to this process, and yet it does not know that this turn is in it."""

    class Stopped(Transcript):
        stops = False

        async def copied(self, export_ids: Any) -> None:
            if self.stops:
                self.stops = False
                raise asyncio.CancelledError
            await super().copied(export_ids)

    transcript = Stopped(redis)
    copy = MarkdownCopy(transcript, data_dir)
    await transcript.append(KEY, "t1", turn(1))
    await copy.flush()
    await transcript.append(KEY, "t2", turn(2))
    copy.appended(KEY)
    transcript.stops = True
    with pytest.raises(asyncio.CancelledError):
        await copy.flush()
    await copy.flush()

    written = logged(data_dir)
    assert [one.text for one in written] == ["question 1", "answer 1", "question 2", "answer 2"]


async def test_what_another_process_copied_and_could_not_let_go_of_is_not_doubled(redis: Redis, data_dir: Path) -> None:
    """It had the duty in between, and ended."""

    class Dying(Transcript):
        async def copied(self, export_ids: Any) -> None:
            raise OSError("killed here")

    transcript = Transcript(redis)
    copy = MarkdownCopy(transcript, data_dir)
    await transcript.append(KEY, "t1", turn(1))
    await copy.flush()
    await transcript.append(KEY, "t2", turn(2))
    with pytest.raises(OSError, match="killed"):
        await MarkdownCopy(Dying(redis), data_dir).flush()
    copy.appended(KEY)
    await copy.flush()

    written = logged(data_dir)
    assert [one.text for one in written] == ["question 1", "answer 1", "question 2", "answer 2"]


async def test_two_that_copy_at_once_write_everything_once(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    copy = MarkdownCopy(transcript, data_dir)
    await copy.flush()
    for number in range(1, 20):
        await transcript.append(KEY, f"t{number}", turn(number))
        copy.appended(KEY)
        await asyncio.gather(copy.flush(), copy.flush())

    assert len(logged(data_dir)) == 38


async def test_more_than_is_read_at_once_is_copied_with_orders_to_forget_in_their_place(
    redis: Redis, data_dir: Path
) -> None:
    transcript = Transcript(redis)
    for number in range(1, 250):
        await transcript.append(KEY, f"t{number}", turn(number))
    await transcript.forget_turn(KEY, "t249")
    await transcript.append(KEY, "t250", turn(250))

    await MarkdownCopy(transcript, data_dir).flush()

    written = [one.turn_id for one in logged(data_dir)]
    assert written == [f"t{number}" for number in (*range(1, 249), 250) for _ in range(2)]


async def test_what_other_processes_append_is_copied_too(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    copy = MarkdownCopy(transcript, data_dir, alone=False, sweep_seconds=0.02)
    await copy.flush()
    running = asyncio.create_task(copy.run())
    await transcript.append(KEY, "t1", turn(1))
    async with asyncio.timeout(10):
        while not await asyncio.to_thread((data_dir / markdown.path(KEY)).exists):
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])


async def test_a_full_disk_loses_no_log(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    await transcript.append(KEY, "t1", turn(1))
    folder = data_dir / "workspaces"
    folder.write_text("not a folder")  # stands for a disk that takes nothing

    with pytest.raises(OSError, match="workspaces"):
        await MarkdownCopy(transcript, data_dir).flush()
    folder.unlink()
    await MarkdownCopy(transcript, data_dir).flush()

    assert len(logged(data_dir)) == 2


@pytest.mark.parametrize("cut", [1, 20, 70, 90, 120, 200, 230])
async def test_a_copy_that_was_interrupted_while_writing_is_completed(redis: Redis, data_dir: Path, cut: int) -> None:
    transcript = Transcript(redis)
    await transcript.append(KEY, "t1", turn(1))
    await MarkdownCopy(transcript, data_dir / "whole").flush()
    whole = (data_dir / "whole" / markdown.path(KEY)).read_bytes()
    path = data_dir / markdown.path(KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[:cut])
    (log,) = [key async for key in redis.scan_iter("ar:transcript:*:log:*")]
    entries: Any = await redis.xrange(log)
    for entry_id, _ in entries:
        await redis.xadd(f"ar:transcript:{{p{KEY.partition}}}:export", {"key": KEY.encoded, "id": entry_id})

    await MarkdownCopy(transcript, data_dir).flush()

    assert path.read_bytes() == whole


async def test_a_write_that_failed_halfway_is_completed_by_the_next(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    copy = MarkdownCopy(transcript, data_dir)
    await transcript.append(KEY, "t1", turn(1))
    await copy.flush()
    path = data_dir / markdown.path(KEY)
    before = path.stat().st_size
    await transcript.append(KEY, "t2", turn(2))
    copy.appended(KEY)
    await asyncio.to_thread(resource.setrlimit, resource.RLIMIT_FSIZE, (before + 30, resource.RLIM_INFINITY))
    try:
        with pytest.raises(OSError, match="large"):
            await copy.flush()
    finally:
        await asyncio.to_thread(resource.setrlimit, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    await copy.flush()

    assert [one.text for one in markdown.read(path.read_text())] == ["question 1", "answer 1", "question 2", "answer 2"]
    assert path.read_text().count("t2") == 2


async def test_a_log_that_cannot_be_written_holds_up_no_other(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    neighbours = [ConversationKey("acme", "http", f"n{number}") for number in range(200)]
    near = next(key for key in neighbours if key.partition == KEY.partition)
    (data_dir / markdown.path(KEY)).mkdir(parents=True)  # a folder where the file should be
    for key in (KEY, near, OTHER):
        await transcript.append(key, "t1", turn(1))

    with pytest.raises(OSError, match="directory"):
        await MarkdownCopy(transcript, data_dir).flush()

    assert (data_dir / markdown.path(near)).is_file()
    assert (data_dir / markdown.path(OTHER)).is_file()


async def test_turns_are_read_together_as_each_by_itself(redis: Redis) -> None:
    """Also one far back, one in parts that is longer than a look, one that was edited, and one that is not there."""
    transcript = Transcript(redis)
    for number in range(1, 40):
        await transcript.append(KEY, f"t{number}", turn(number))
    await transcript.append(KEY, "long", [entry(f"tool {n}", "long", EntryRole.TOOL) for n in range(20)])
    await transcript.append(OTHER, "t1", [replace(turn(1)[0], message_id="m1"), turn(1)[1]])
    await transcript.amend(OTHER, "m1", "edited")
    asked = [(KEY, "t39"), (KEY, "t2"), (KEY, "long"), (OTHER, "t1"), (OTHER, "t99"), (KEY, "t99")]

    found = await transcript.of_turns(asked)

    assert found == {(key, turn_id): await transcript.of_turn(key, turn_id) for key, turn_id in asked[:4]}
    assert found[OTHER, "t1"][0].text == "edited"
    assert await transcript.recorded(asked) == set(asked[:4])
    assert await transcript.of_turns([]) == {}


async def test_a_chat_log_is_for_its_owner_alone_and_follows_no_link(redis: Redis, data_dir: Path) -> None:
    """Other users of the machine cannot read it; a link in its place is not written through."""
    transcript = Transcript(redis)
    await transcript.append(KEY, "t1", turn(1))
    await MarkdownCopy(transcript, data_dir).flush()
    log = data_dir / markdown.path(KEY)
    assert (log.stat().st_mode & 0o077, log.parent.stat().st_mode & 0o077) == (0, 0)

    elsewhere = data_dir / "elsewhere"
    log.unlink()
    log.symlink_to(elsewhere)
    await transcript.append(KEY, "t2", turn(2))
    with pytest.raises(OSError, match="symbolic"):
        await MarkdownCopy(transcript, data_dir).flush()
    assert not elsewhere.exists()


async def test_the_tail_reads_messages_as_people_changed_them_and_leaves_out_what_they_deleted(redis: Redis) -> None:
    transcript = Transcript(redis)
    for number in range(1, 4):
        said = replace(entry(f"question {number}", f"t{number}"), message_id=f"m{number}")
        await transcript.append(KEY, f"t{number}", [said, entry("answer", f"t{number}", EntryRole.OUTBOUND)])

    await transcript.amend(KEY, "m1", "question one")
    await transcript.amend(KEY, "m3", "")

    shown = [one.text for one in await transcript.tail(KEY, 6) if one.role is EntryRole.INBOUND]
    assert shown == ["question one", "question 2"]
    assert await Transcript(redis).tail(OTHER, 6) == []


async def test_the_turn_before_each_turn_is_known_however_long_the_turns_are(redis: Redis) -> None:
    transcript = Transcript(redis)
    for number in range(1, 5):
        tools = [entry(f"looked {n}", f"t{number}", EntryRole.TOOL) for n in range(30)]
        await transcript.append(KEY, f"t{number}", [entry("question", f"t{number}"), *tools])
    await transcript.append(OTHER, "t1", [entry("hello", "t1")])

    wanted = [(KEY, "t1"), (KEY, "t3"), (KEY, "t4"), (OTHER, "t1"), (KEY, "unknown")]

    assert await transcript.preceding(wanted) == {(KEY, "t3"): "t2", (KEY, "t4"): "t3"}
    assert await transcript.preceding([]) == {}
