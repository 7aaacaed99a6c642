"""What is kept of conversations and turns: transcript, chat logs, context documents, manifests, usage, jobs."""

import asyncio
import itertools
import resource
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import AgentRuntimeError, ConversationKey, Scope, new_turn_id
from connectors.message import Usage as Tokens
from connectors.redis_calls import ask
from grounding.memory.context_document import ContextDocument, ContextDocuments
from grounding.prompt import UNKNOWN, build_prompt
from grounding.prompt_input import Censor, CodexFile, CodexInput, RunContext, SelectedRecord, load_tokens
from grounding.transcript import EntryRole, MarkdownCopy, Reach, Transcript, TranscriptEntry, UnknownFormat, markdown
from runtime.billing import UsageCounters
from runtime.coordination import Job, Jobs
from runtime.turns.manifest import Manifests, UnknownTurn, decompressed
from tests.emulators.jobs import until_idle
from tests.emulators.prompts import context

KEY = ConversationKey("acme", "http", "default")
OTHER = ConversationKey("acme", "http", "other")


def entry(text: str, turn: str = "t1", role: EntryRole = EntryRole.INBOUND) -> TranscriptEntry:
    return TranscriptEntry(role, text, turn, "2026-11-21T10:00:00.000Z", author="Lena", user="http:u1", message_id="m")


def turn(number: int) -> list[TranscriptEntry]:
    return [entry(f"question {number}", f"t{number}"), entry(f"answer {number}", f"t{number}", EntryRole.OUTBOUND)]


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

    written = markdown.read((data_dir / markdown.path(KEY)).read_text())
    assert [one.text for one in written] == ["question 1", "answer 1", "question 2", "answer 2"]
    assert (data_dir / markdown.path(OTHER)).exists()


async def test_a_copy_that_was_interrupted_after_writing_is_not_doubled(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    await transcript.append(KEY, "t1", turn(1))

    class Dying(Transcript):
        async def copied(self, export_ids: Any) -> None:
            raise OSError("killed here")

    with pytest.raises(OSError, match="killed"):
        await MarkdownCopy(Dying(redis), data_dir).flush()
    await MarkdownCopy(transcript, data_dir).flush()

    assert len(markdown.read((data_dir / markdown.path(KEY)).read_text())) == 2


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

    written = markdown.read((data_dir / markdown.path(KEY)).read_text())
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

    written = markdown.read((data_dir / markdown.path(KEY)).read_text())
    assert [one.text for one in written] == ["question 1", "answer 1", "question 2", "answer 2"]


async def test_two_that_copy_at_once_write_everything_once(redis: Redis, data_dir: Path) -> None:
    transcript = Transcript(redis)
    copy = MarkdownCopy(transcript, data_dir)
    await copy.flush()
    for number in range(1, 20):
        await transcript.append(KEY, f"t{number}", turn(number))
        copy.appended(KEY)
        await asyncio.gather(copy.flush(), copy.flush())

    assert len(markdown.read((data_dir / markdown.path(KEY)).read_text())) == 38


async def test_more_than_is_read_at_once_is_copied_with_orders_to_forget_in_their_place(
    redis: Redis, data_dir: Path
) -> None:
    transcript = Transcript(redis)
    for number in range(1, 250):
        await transcript.append(KEY, f"t{number}", turn(number))
    await transcript.forget_turn(KEY, "t249")
    await transcript.append(KEY, "t250", turn(250))

    await MarkdownCopy(transcript, data_dir).flush()

    written = [one.turn_id for one in markdown.read((data_dir / markdown.path(KEY)).read_text())]
    assert written == [f"t{number}" for number in (*range(1, 249), 250) for _ in range(2)]


async def test_what_other_processes_append_is_copied_too(
    redis: Redis, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grounding.transcript.markdown_copy._SWEEP_SECONDS", 0.02)
    transcript = Transcript(redis)
    copy = MarkdownCopy(transcript, data_dir, alone=False)
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

    assert len(markdown.read((data_dir / markdown.path(KEY)).read_text())) == 2


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


async def test_a_context_document_is_replaced_only_by_its_next_version(redis: Redis) -> None:
    documents = ContextDocuments(redis)
    first = ContextDocument("## Facts\n- a", 1, 1, 2, "extraction", "2026-11-21T10:00:00Z", ("t1",))
    second = ContextDocument("## Facts\n- b", 2, 7, 14, "model", "2026-11-21T11:00:00Z", ("t7",))

    assert await documents.store(KEY, first)
    assert not await documents.store(KEY, first)
    assert await documents.store(KEY, second)

    assert await documents.latest(KEY) == second
    assert await documents.latest(OTHER) is None


async def test_a_manifest_rebuilds_the_prompt_and_stays_in_its_workspace(redis: Redis) -> None:
    manifests, tokens = Manifests(redis), load_tokens()
    prompt = build_prompt(context(), tokens)
    await manifests.keep(context(), prompt, "2026-11-21T10:00:00Z")

    kept = await manifests.get(Scope("acme"), "t1")

    assert kept.context == context()
    assert build_prompt(kept.context, tokens).sha256 == kept.prompt_sha256 == prompt.sha256
    with pytest.raises(UnknownTurn):
        await manifests.get(Scope("other"), "t1")


async def test_manifests_are_listed_newest_first_and_paged(redis: Redis) -> None:
    manifests, tokens = Manifests(redis), load_tokens()
    ids = sorted(new_turn_id() for _ in range(5))
    for turn_id in ids:
        changed = context(turn_id=turn_id)
        await manifests.keep(changed, build_prompt(changed, tokens), "2026-11-21T10:00:00Z")

    first = await manifests.newest(Scope("acme"), 2)
    rest = await manifests.newest(Scope("acme"), 10, before=first[-1].turn_id)

    assert [one.turn_id for one in (*first, *rest)] == ids[::-1]


async def test_what_went_into_many_turns_is_told_whole_without_those_that_are_not_known(redis: Redis) -> None:
    """With the material that they were given: what was said about it is somebody else's."""
    manifests, tokens = Manifests(redis), load_tokens()
    files = (CodexFile(path="rules.md", text="Nobody swims at night."),)
    given = CodexInput(mode="whole", why="fits", tokens=9, weight=9, limit=100, count=1, files=files)
    ids = sorted(new_turn_id() for _ in range(20))
    kept = {turn_id: context(turn_id=turn_id, codex=given if turn_id == ids[12] else None) for turn_id in ids}
    for one in kept.values():
        await manifests.keep(one, build_prompt(one, tokens), "2026-11-21T10:00:00Z")

    assert await Manifests(redis).contexts(Scope("acme"), [*ids, "t-unknown"]) == kept
    assert await manifests.contexts(Scope("acme"), []) == {}
    assert await manifests.contexts(Scope("other"), ids) == {}


async def test_many_turns_are_read_without_holding_others_up(redis: Redis) -> None:
    manifests, tokens = Manifests(redis), load_tokens()
    ids = sorted(new_turn_id() for _ in range(8))
    for turn_id in ids:
        one = context(turn_id=turn_id)
        await manifests.keep(one, build_prompt(one, tokens), "2026-11-21T10:00:00Z")
    read: list[str] = []
    passes: list[int] = []

    def look(stored: str) -> str:
        read.append(stored)
        return decompressed(stored)

    async def others() -> None:
        while len(read) < len(ids):
            passes.append(len(read))
            await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.turns.manifest.decompressed", look)
        await asyncio.gather(manifests.contexts(Scope("acme"), ids), others())
    assert set(range(len(ids))) <= set(passes)


def rules(*ids: str) -> tuple[Censor, ...]:
    return tuple(Censor(id=one, severity="warn", text=f"Never say {one}") for one in ids)


async def test_a_turn_that_is_kept_anew_does_not_bring_back_what_was_cut_out_meanwhile(redis: Redis) -> None:
    """As where a fallback read less: its prompt is kept once more after the answer."""
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    shown = context().model_copy(update={"censors": rules("r1", "r2")})
    prompt = build_prompt(shown, tokens)
    await manifests.keep(shown, prompt, "2026-11-21T10:00:00Z")
    await manifests.cut_records(acme, ["r1", "r9"])
    await manifests.keep_again(shown, prompt, "2026-11-21T10:00:01Z", prefix=UNKNOWN)

    kept = await manifests.get(acme, shown.turn_id)

    assert kept.at == "2026-11-21T10:00:01Z"
    assert (kept.context.censors, kept.cut) == (rules("r2"), 1)


async def test_a_turn_that_was_forgotten_while_a_fallback_answered_is_not_kept_anew(redis: Redis) -> None:
    manifests, shown = Manifests(redis), context()
    prompt = build_prompt(shown, load_tokens())
    await manifests.keep(shown, prompt, "2026-11-21T10:00:00Z")
    await manifests.forget(Scope("acme"), [shown.turn_id])

    await manifests.keep_again(shown, prompt, "2026-11-21T10:00:01Z", prefix=UNKNOWN)

    with pytest.raises(UnknownTurn):
        await manifests.get(Scope("acme"), shown.turn_id)


class Many(list[str]):
    """Counts how often somebody goes through it."""

    gone_through = 0

    def __iter__(self) -> Iterator[str]:
        self.gone_through += 1
        return super().__iter__()


async def test_many_records_are_cut_out_of_many_manifests_without_looking_for_each_in_each(redis: Redis) -> None:
    manifests, tokens = Manifests(redis), load_tokens()
    for number in range(5):
        one = context().model_copy(update={"turn_id": f"t{number}", "censors": rules(f"r{number}", "stays")})
        await manifests.keep(one, build_prompt(one, tokens), "2026-11-21T10:00:00Z")
    ids = Many([f"r{number}" for number in range(300)])
    await manifests.cut_records(Scope("acme"), ids)

    assert ids.gone_through == 1
    for manifest in await manifests.newest(Scope("acme"), 10):
        assert manifest.context.censors == rules("stays")


def fact(name: str) -> SelectedRecord:
    return SelectedRecord(
        id=name, type="fact", level="summary", text=f"It is {name}", state="new", made_on="", due="", score=0,
        similarity=0, origin="", verbatim=False, tokens=5,
    )  # fmt: skip


async def test_a_turn_that_is_kept_after_its_record_was_cut_is_kept_without_it(redis: Redis) -> None:
    """It read the record just before that was erased, and nobody looks at it a second time."""
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    shown = context().model_copy(update={"records": (fact("r1"), fact("r2")), "censors": rules("c1", "c2")})
    await manifests.cut_records(acme, ["r1", "c2"])
    await manifests.keep(shown, build_prompt(shown, tokens), "2026-11-21T10:00:00Z")

    kept = await manifests.get(acme, shown.turn_id)

    assert ([one.id for one in kept.context.records], kept.context.censors, kept.cut) == (["r2"], rules("c1"), 2)


async def test_a_turn_that_is_not_among_the_newest_any_more_is_kept_nowhere(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who has a record forgotten would find it there."""
    monkeypatch.setattr("runtime.turns.manifest.KEPT_TURNS", 2)
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    for number in range(4):
        one = context(turn_id=f"t{number}").model_copy(update={"records": (fact("r1"),)})
        await manifests.keep(one, build_prompt(one, tokens), "2026-11-21T10:00:00Z")
        await manifests.finish(acme, one.turn_id, {"error": ""})
    await manifests.cut_records(acme, ["r1"])

    assert set(await manifests.contexts(acme, ["t0", "t1", "t2", "t3"])) == {"t2", "t3"}
    assert [one.cut for one in await manifests.newest(acme, 10)] == [1, 1]
    assert not [key async for key in redis.scan_iter() if key.endswith(("t0", "t1"))]


async def test_records_are_cut_while_turns_are_kept_and_kept_anew_and_none_holds_them_after(redis: Redis) -> None:
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    turns = [
        context(turn_id=f"t{number}").model_copy(update={"records": (fact("r1"), fact(f"s{number}"))})
        for number in range(20)
    ]

    async def live(one: RunContext) -> None:
        prompt = build_prompt(one, tokens)
        await manifests.keep(one, prompt, "2026-11-21T10:00:00Z")
        await manifests.keep_again(one, prompt, "2026-11-21T10:00:01Z", prefix=UNKNOWN)

    await asyncio.gather(*map(live, turns[:10]), manifests.cut_records(acme, ["r1"]), *map(live, turns[10:]))

    for number in range(20):
        kept = await manifests.get(acme, f"t{number}")
        assert ([one.id for one in kept.context.records], kept.cut) == ([f"s{number}"], 1)


async def test_only_the_manifests_of_turns_that_showed_a_record_are_read_to_cut_it(redis: Redis) -> None:
    manifests, tokens, acme = Manifests(redis), load_tokens(), Scope("acme")
    for number in range(6):
        one = context(turn_id=f"t{number}").model_copy(update={"records": (fact(f"r{number % 3}"),)})
        await manifests.keep(one, build_prompt(one, tokens), "2026-11-21T10:00:00Z")

    assert await manifests._showing(acme, ["r1", "r7"]) == ["t1", "t4"]


async def test_turn_ids_sort_by_time() -> None:
    ids = []
    for _ in range(5):
        ids.append(new_turn_id())
        await asyncio.sleep(0.003)

    assert ids == sorted(ids)
    assert len({len(one) for one in ids}) == 1


async def test_usage_is_counted_once_per_call(redis: Redis) -> None:
    usage, scope = UsageCounters(redis), Scope("acme")
    spent = Tokens(prompt=100, cached=40, completion=10, cost_usd=0.25)

    for call in ("c1", "c1", "c2"):
        await ask(redis, usage.record_call(scope, call, "openai/gpt 4", spent))

    (total,) = await usage.totals(scope)
    assert (total.model, total.calls, total.prompt, total.cached, total.cost_usd) == ("openai/gpt 4", 2, 200, 80, 0.5)
    assert await usage.totals(Scope("other")) == []


class Flaky(AgentRuntimeError):
    retryable = True


async def test_a_job_is_done_once_and_tried_again_when_it_may_succeed(redis: Redis) -> None:
    done: list[str] = []

    async def work(job: Job) -> None:
        done.append(job.turn_id)
        if len(done) == 1:
            raise Flaky("not yet")

    jobs = Jobs(redis, {"work": work})
    assert await jobs.enqueue(Job("work", KEY, "t1"))
    assert not await jobs.enqueue(Job("work", KEY, "t1"))
    await run_until_idle(jobs)

    assert done == ["t1", "t1"]


async def test_jobs_that_follow_one_turn_are_kept_together_and_each_once(redis: Redis) -> None:
    done: list[tuple[str, str]] = []

    async def work(job: Job) -> None:
        done.append((job.kind, job.turn_id))

    jobs = Jobs(redis, {"refresh": work, "recall": work})
    await jobs.enqueue(Job("refresh", KEY, "t1"))

    assert await jobs.enqueue(Job("refresh", KEY, "t1"), Job("recall", KEY, "t1"), Job("recall", KEY, "t2")) == 2
    await run_until_idle(jobs)

    assert sorted(done) == [("recall", "t1"), ("recall", "t2"), ("refresh", "t1")]


async def test_a_broken_job_stops_no_other_and_is_not_repeated_for_ever(redis: Redis) -> None:
    done: list[str] = []

    async def work(job: Job) -> None:
        if job.turn_id == "t1":
            raise ZeroDivisionError
        done.append(job.turn_id)

    jobs = Jobs(redis, {"work": work})
    for turn_id in ("t1", "t2"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == ["t2"]


async def test_jobs_that_were_left_by_a_crash_are_done_at_the_next_start(redis: Redis) -> None:
    done: list[str] = []

    async def work(job: Job) -> None:
        done.append(job.turn_id)

    await Jobs(redis, {"work": work}).enqueue(Job("work", KEY, "t1"))
    await run_until_idle(Jobs(redis, {"work": work}))

    assert done == ["t1"]


async def test_a_job_that_cannot_be_done_now_is_kept_and_holds_up_no_other_kind(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.coordination.jobs._SWEEP_SECONDS", 0.02)
    monkeypatch.setattr("runtime.coordination.jobs.MAX_ATTEMPTS", 1)
    done: list[str] = []
    away = True

    async def recall(job: Job) -> None:
        if away:
            raise Busy
        done.append(f"recall {job.turn_id}")

    async def refresh(job: Job) -> None:
        done.append(f"refresh {job.turn_id}")

    jobs = Jobs(redis, {"recall": recall, "refresh": refresh})
    for turn_id in ("t1", "t2"):
        await jobs.enqueue(Job("recall", KEY, turn_id))
        await jobs.enqueue(Job("refresh", KEY, turn_id))
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        while len(done) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)  # long enough for every attempt
        assert done == ["refresh t1", "refresh t2"]
        away = False
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])

    assert done[2:] == ["recall t1", "recall t2"]


async def test_a_job_that_fails_longer_than_an_outage_lasts_is_given_up(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.coordination.jobs._SWEEP_SECONDS", 0.02)
    monkeypatch.setattr("runtime.coordination.jobs.MAX_ATTEMPTS", 1)
    monkeypatch.setattr("runtime.coordination.jobs.GIVE_UP_SECONDS", 0.1)
    done: list[str] = []

    async def work(job: Job) -> None:
        if job.turn_id == "t1":
            raise Busy
        done.append(job.turn_id)

    jobs = Jobs(redis, {"work": work})
    for turn_id in ("t1", "t2"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == ["t2"]


async def test_jobs_of_a_burst_are_done_together_and_those_that_are_left_one_by_one(redis: Redis) -> None:
    together: list[list[str]] = []
    singly: list[str] = []

    async def one(job: Job) -> None:
        singly.append(job.turn_id)

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        together.append(sorted(job.turn_id for job in jobs))
        return [job for job in jobs if job.turn_id == "t2"]

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    running = asyncio.create_task(jobs.run())
    await until_idle(jobs)  # nothing waits yet
    for turn_id in ("t1", "t2", "t3"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await jobs.enqueue(Job("work", OTHER, "t4"))
    async with asyncio.timeout(10):
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])

    assert sorted(itertools.chain(*together)) == ["t1", "t2", "t3", "t4"]
    assert len(together) < 4
    assert singly == ["t2"]


async def test_what_comes_while_a_job_is_done_by_itself_is_done_together_again(redis: Redis) -> None:
    singly: list[str] = []
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def one(job: Job) -> None:
        singly.append(job.turn_id)
        begun.set()
        await goes_on.wait()

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        return [job for job in jobs if job.turn_id == "t1"]

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    await jobs.enqueue(Job("work", KEY, "t1"))
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await begun.wait()
        for turn_id in ("t2", "t3"):
            await jobs.enqueue(Job("work", KEY, turn_id))
        goes_on.set()
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])

    assert singly == ["t1"]


async def test_jobs_that_cannot_be_done_together_are_done_one_by_one_and_only_the_broken_one_fails(
    redis: Redis,
) -> None:
    done: list[str] = []

    async def one(job: Job) -> None:
        if job.turn_id == "t2":
            raise ZeroDivisionError
        done.append(job.turn_id)

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        for job in jobs:
            await one(job)
        return ()

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    for turn_id in ("t1", "t2", "t3"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == ["t1", "t1", "t3"]  # the first was done before it failed: again does no harm


async def test_more_jobs_than_are_read_at_once_are_all_done_in_their_order(redis: Redis) -> None:
    done: list[str] = []

    async def one(job: Job) -> None:
        raise AssertionError

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        done.extend(job.turn_id for job in jobs)
        return ()

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    turn_ids = [f"t{number}" for number in range(150)]
    for turn_id in turn_ids:
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == turn_ids


async def test_what_another_process_leaves_to_be_done_is_found(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.coordination.jobs._SWEEP_SECONDS", 0.02)
    done = asyncio.Event()

    async def work(job: Job) -> None:
        done.set()

    async def nobody(job: Job) -> None:
        raise AssertionError

    jobs = Jobs(redis, {"work": work}, alone=False)
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await until_idle(jobs)
        await Jobs(redis, {"work": nobody}).enqueue(Job("work", KEY, "t1"))
        await done.wait()
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])


async def test_a_job_that_was_cut_off_is_done_when_the_same_process_has_the_duty_again(redis: Redis) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def work(job: Job) -> None:
        if begun.is_set():
            done.set()
            return
        begun.set()
        await asyncio.Event().wait()

    jobs = Jobs(redis, {"work": work})
    await jobs.enqueue(Job("work", KEY, "t1"))
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await begun.wait()
        running.cancel()
        await asyncio.wait([running])
        await run_until_idle(jobs)

    assert done.is_set()


async def test_an_orderly_stop_waits_for_what_can_be_done_and_for_nothing_that_failed(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.coordination.jobs.COLLECT_SECONDS", 3600.0)
    monkeypatch.setattr("runtime.coordination.jobs._SWEEP_SECONDS", 3600.0)
    monkeypatch.setattr("runtime.coordination.jobs.MAX_ATTEMPTS", 1)
    done: list[str] = []

    async def fine(jobs: Sequence[Job]) -> Sequence[Job]:
        done.extend(job.turn_id for job in jobs)
        return ()

    async def away(job: Job) -> None:
        raise Busy

    jobs = Jobs(redis, {"fine": away, "away": away}, together={"fine": fine})
    await jobs.finish()  # nobody does them here: others will
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await until_idle(jobs)
        await jobs.enqueue(Job("fine", KEY, "t1"), Job("away", KEY, "t1"))
        await jobs.finish()
    running.cancel()
    await asyncio.wait([running])

    assert done == ["t1"]


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


async def test_a_turn_is_found_behind_a_flood_of_later_ones(redis: Redis) -> None:
    transcript = Transcript(redis)
    for number in range(1, 200):
        await transcript.append(KEY, f"t{number}", turn(number))

    assert [one.text for one in await transcript.of_turn(KEY, "t3")] == ["question 3", "answer 3"]
    assert await transcript.of_turn(KEY, "t999") == []


class Busy(AgentRuntimeError):
    retryable = True


async def run_until_idle(jobs: Jobs) -> None:
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await until_idle(jobs)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


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


async def test_messages_that_were_deleted_take_no_room_from_those_before_them(redis: Redis) -> None:
    transcript = Transcript(redis)
    for number in range(1, 30):
        said = replace(entry(f"question {number}", f"t{number:02}"), message_id=f"m{number}")
        await transcript.append(KEY, f"t{number:02}", [said])
        if 3 <= number < 29:
            await transcript.amend(KEY, f"m{number}", "")

    shown = [one.text for one in await transcript.tail(KEY, 4)]

    assert shown == ["question 1", "question 2", "question 29"]


async def test_the_turn_before_each_turn_is_known_however_long_the_turns_are(redis: Redis) -> None:
    transcript = Transcript(redis)
    for number in range(1, 5):
        tools = [entry(f"looked {n}", f"t{number}", EntryRole.TOOL) for n in range(30)]
        await transcript.append(KEY, f"t{number}", [entry("question", f"t{number}"), *tools])
    await transcript.append(OTHER, "t1", [entry("hello", "t1")])

    wanted = [(KEY, "t1"), (KEY, "t3"), (KEY, "t4"), (OTHER, "t1"), (KEY, "unknown")]

    assert await transcript.preceding(wanted) == {(KEY, "t3"): "t2", (KEY, "t4"): "t3"}
    assert await transcript.preceding([]) == {}


async def test_the_tail_costs_one_command(redis: Redis) -> None:
    transcript = Transcript(redis)
    await transcript.append(KEY, "t1", turn(1))
    await transcript.tail(KEY, 6)
    before = await redis.info("commandstats")
    await transcript.tail(KEY, 6)
    after = await redis.info("commandstats")

    # What a script calls is counted, too.
    calls = {name: counted["calls"] - before.get(name, {"calls": 0})["calls"] for name, counted in after.items()}
    made = {name for name, number in calls.items() if number}
    assert made == {"cmdstat_eval", "cmdstat_hget", "cmdstat_xrevrange", "cmdstat_exists", "cmdstat_info"}
    assert calls["cmdstat_eval"] == 1
