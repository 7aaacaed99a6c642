"""What is forgotten is gone from everything that keeps it, and what was said after stays."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from redis.asyncio import Redis

from connectors.message import (
    Author,
    ConversationKey,
    Fence,
    InboundMessage,
    OutboundMessage,
    Role,
    Scope,
    StoreUnavailable,
)
from connectors.redis_calls import ask
from grounding.memory.context_document import ContextCopy, ContextDocument, ContextDocuments
from grounding.memory.context_document.store import path as context_path
from grounding.memory.records import Candidate, NewRecord, Provenance, Type
from grounding.prompt import Sessions, Shown, build_prompt
from grounding.prompt_input import ContextLine, load_tokens
from grounding.retrieval import Kind, TurnIndex, TurnText
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.transcript import EntryRole, MarkdownCopy, Reach, Transcript, TranscriptEntry, Turn, markdown
from runtime.attachments import UploadedFiles
from runtime.background import ExtractionMarks, Forgetting, ForgetTurns, RememberTurns
from runtime.background.extraction import Mark
from runtime.background.forgetting import JOB
from runtime.coordination import Hub, Job, Jobs
from runtime.delivery import Outbox
from runtime.turns.batch import Batch, Envelope
from runtime.turns.dead_letters import DeadLetters
from runtime.turns.manifest import Manifests, UnknownTurn
from runtime.workspaces import ConversationList
from tests.emulators.embedder import HashedWords
from tests.emulators.marking import marking_on
from tests.emulators.prompts import context
from tests.emulators.records import RememberedRecords

KEY = ConversationKey("acme", "http", "default")
OTHER = ConversationKey("acme", "http", "other")


def turn(number: int) -> list[TranscriptEntry]:
    at = "2026-11-21T10:00:00.000Z"
    return [
        TranscriptEntry(
            EntryRole.INBOUND, f"question {number}\n## not a header", f"t{number}", at, "Lena", "http:u1", f"m{number}"
        ),
        TranscriptEntry(EntryRole.OUTBOUND, f"answer {number}", f"t{number}", at, "agent-runtime"),
    ]


def document(version: int, turns: int, *turn_ids: str) -> ContextDocument:
    return ContextDocument(f"about {turn_ids}", version, turns, 2 * turns, "model", "2026-11-21T10:00:00Z", turn_ids)


class House:
    """All that keeps what was said."""

    def __init__(self, redis: Redis, data_dir: Path) -> None:
        self.redis = redis
        self.data_dir = data_dir
        self.transcript = Transcript(redis)
        self.copy = MarkdownCopy(self.transcript, data_dir)
        self.contexts = ContextDocuments(redis)
        self.context_copy = ContextCopy(data_dir)
        self.sessions = Sessions(redis, 1800)
        self.manifests = Manifests(redis)
        self.letters = DeadLetters(redis, {}, Hub(redis, shared=False))
        self.outbox = Outbox(redis, Hub(redis, shared=False))
        self.records = RememberedRecords()
        self.marks = ExtractionMarks(redis)
        self.marking = marking_on(redis)
        self.forgetting = Forgetting(
            redis,
            transcript=self.transcript,
            copy=self.copy,
            contexts=self.contexts,
            context_copy=self.context_copy,
            sessions=self.sessions,
            manifests=self.manifests,
            outbox=self.outbox,
            files=UploadedFiles(redis, data_dir),
            conversation_list=ConversationList(redis),
            dead_letters=self.letters,
            records=self.records,
            extraction_marks=self.marks,
            marking=self.marking,
            jobs=Jobs(redis, {}),
        )

    async def say(self, number: int, key: ConversationKey = KEY) -> None:
        await self.transcript.append(key, f"t{number}", turn(number))
        prompt = build_prompt(context(turn_id=f"t{number}", context_id=key.context_id), load_tokens())
        await self.manifests.keep(context(turn_id=f"t{number}"), prompt, "2026-11-21T10:00:00Z")

    async def log(self, key: ConversationKey = KEY) -> list[str]:
        await self.copy.flush()
        path = self.data_dir / markdown.path(key)
        return [entry.text for entry in markdown.read(path.read_text())] if path.exists() else []

    async def everything_stored(self) -> str:
        """All values in the store as one text."""
        found: list[str] = []
        async for key in self.redis.scan_iter():
            kind = await self.redis.type(key)
            match kind:
                case "string":
                    found.append(str(await self.redis.get(key)))
                case "hash":
                    found.append(str(await self.redis.hgetall(key)))
                case "stream":
                    found.append(str(await self.redis.xrange(key)))
        return "\n".join(found)


@pytest.fixture
def house(redis: Redis, data_dir: Path) -> House:
    return House(redis, data_dir)


async def test_a_new_session_hides_what_was_said_before_and_deletes_nothing(house: House) -> None:
    await house.say(1)
    assert await house.transcript.begin_session(KEY, "m9")
    assert await house.transcript.tail(KEY, 24) == []
    assert await house.transcript.reach(KEY) == Reach(1, 2)

    await house.say(2)
    assert [entry.text for entry in await Transcript(house.redis).tail(KEY, 24)][-1] == "answer 2"
    assert len(await house.transcript.tail(KEY, 24)) == 2
    assert len(await house.transcript.newest(KEY, 24)) == 4


async def test_a_command_that_comes_twice_begins_one_session(house: House) -> None:
    await house.transcript.begin_session(KEY, "m9")
    await house.say(1)

    assert not await house.transcript.begin_session(KEY, "m9")
    assert len(await house.transcript.tail(KEY, 24)) == 2


async def test_a_session_in_a_place_where_nothing_was_said_hides_nothing(house: House) -> None:
    await house.transcript.begin_session(KEY)
    await house.say(1)

    assert len(await house.transcript.tail(KEY, 24)) == 2


async def test_the_last_turn_is_gone_everywhere_and_the_ones_before_stay(house: House) -> None:
    await house.say(1)
    await house.say(2)
    assert len(await house.log()) == 4

    assert await house.forgetting.last(KEY, "m9")

    assert [entry.turn_id for entry in await house.transcript.tail(KEY, 24)] == ["t1", "t1"]
    assert await house.transcript.reach(KEY) == Reach(1, 2)
    assert await house.log() == ["question 1\n## not a header", "answer 1"]
    assert "answer 2" not in await house.everything_stored()
    with pytest.raises(UnknownTurn):
        await house.manifests.get(KEY.scope, "t2")
    assert (await house.manifests.get(KEY.scope, "t1")).turn_id == "t1"


async def test_the_new_words_of_an_edited_message_are_forgotten_with_it(house: House) -> None:
    for number in (1, 2):
        await house.say(number)
        await house.transcript.amend(KEY, f"m{number}", f"edited {number}")

    await house.forgetting.last(KEY, "m9")
    assert "edited 2" not in await house.everything_stored()
    assert "edited 1" in await house.everything_stored()

    await house.forgetting.everything(KEY, "m10")
    assert "edited 1" not in await house.everything_stored()


async def test_what_was_said_in_turns_that_failed_for_good_is_forgotten_too(house: House) -> None:
    for number, key in ((1, KEY), (2, KEY), (3, OTHER)):
        await house.say(number, key)
        message = InboundMessage("http", key.external_id, f"m{number}", Author("u1"), f"poison {number}")
        envelope = Envelope(message, Role.MEMBER, 0.0)
        await house.letters.add(Batch(key, f"t{number}", 3, (envelope,), Fence("none", "none")), "interrupted")

    await house.forgetting.last(KEY, "m9")
    assert [letter.turn_id for letter in await house.letters.all(KEY.scope)] == ["t1", "t3"]
    await house.forgetting.everything(KEY, "m10")
    assert [letter.turn_id for letter in await house.letters.all(KEY.scope)] == ["t3"]
    assert "poison 1" not in await house.everything_stored()


async def test_the_records_that_came_of_it_go_with_it_decisions_too(house: House) -> None:
    """In a direct message the person's; what came of other conversations stays."""
    lena = Scope("acme", None, "http:u1")
    for number, key in ((1, KEY), (2, KEY), (3, OTHER)):
        await house.say(number, key)
        new = NewRecord(Type.DECISION, f"We decided on number {number}")
        by = Provenance(author="http:u1", turn_id=f"t{number}", context_id=key.context_id, origin="extraction")
        await house.records.add(lena, new, by)
        await house.records.add(Scope("acme"), new, by)
    rows = [
        Candidate(NewRecord(Type.FACT, f"said {one}"), Provenance(turn_id=f"t{one}"), f"t{one}/x", "http:u1")
        for one in (1, 2)
    ]
    await house.marks.looked(KEY, Reach(2, 4), rows)

    async def left(scope: Scope) -> list[str]:
        return sorted(one.provenance.turn_id for one in await house.records.list(scope))

    await house.forgetting.last(KEY, "m9", "http:u1")
    assert await left(lena) == ["t1", "t1", "t3", "t3"]
    assert await house.marks.read([KEY]) == [Mark(Reach(1, 2), (rows[0],))]
    await house.forgetting.everything(KEY, "m10")
    assert await left(Scope("acme")) == ["t3"]
    assert await left(lena) == ["t1", "t3", "t3"]
    await house.forgetting.everything(KEY, "m11", "http:u1")
    assert await left(lena) == ["t3", "t3"]
    assert "said 1" not in await house.everything_stored()
    assert await house.marks.read([KEY]) == [Mark()]


async def test_the_same_request_again_forgets_no_further_turn(house: House) -> None:
    for number in (1, 2, 3):
        await house.say(number)

    assert await house.forgetting.last(KEY, "m9")
    assert await house.forgetting.last(KEY, "m9")
    assert await house.transcript.last_turn(KEY) == "t2"

    assert await house.forgetting.last(KEY, "m10")
    assert await house.transcript.last_turn(KEY) == "t1"


async def test_a_turn_that_is_forgotten_while_it_is_made_findable_is_not_found(house: House) -> None:
    embedder = HashedWords()
    index = EmbeddedIndex(house.data_dir / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=20)
    await index.ensure()
    turns = TurnIndex(index, embedder)
    await house.say(1)

    class Forgetful(Transcript):
        """Forgets the turn as soon as it was read."""

        async def of_turns(self, turns: Sequence[Turn]) -> dict[Turn, list[TranscriptEntry]]:
            found = await super().of_turns(turns)
            await house.forgetting.last(KEY, "m9")
            return found

    await house.say(2)
    jobs = [Job("turn.remember", KEY, "t1"), Job("turn.remember", KEY, "t2")]
    await RememberTurns(Forgetful(house.redis), turns)(jobs)

    assert await index.sources(KEY.scope, Kind.TURN) == {"t1": 1}
    await index.close()


async def test_a_turn_that_was_forgotten_before_it_is_made_findable_again_is_found_no_more(house: House) -> None:
    """The store went away before it could be asked whether the turn was still there."""
    embedder = HashedWords()
    index = EmbeddedIndex(house.data_dir / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=20)
    await index.ensure()
    remember = RememberTurns(house.transcript, TurnIndex(index, embedder))
    jobs = [Job("turn.remember", KEY, "t1"), Job("turn.remember", KEY, "t2")]
    await house.say(1)
    await house.say(2)

    class Away(Transcript):
        async def recorded(self, turns: Sequence[Turn]) -> set[Turn]:
            raise StoreUnavailable("Redis: timeout")

    with pytest.raises(StoreUnavailable):
        await RememberTurns(Away(house.redis), TurnIndex(index, embedder))(jobs)
    await house.forgetting.last(KEY, "m9")
    await remember(jobs)
    assert await index.sources(KEY.scope, Kind.TURN) == {"t1": 1}

    await house.forgetting.everything(KEY, "m10")
    await remember(jobs)
    assert await index.sources(KEY.scope, Kind.TURN) == {}
    await index.close()


async def test_the_recall_index_forgets_one_turn_or_all_of_one_conversation(house: House) -> None:
    embedder = HashedWords()
    index = EmbeddedIndex(house.data_dir / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=20)
    await index.ensure()
    turns = TurnIndex(index, embedder)
    for key in (KEY, OTHER):
        for number in (1, 2, 3):
            await turns.remember([TurnText(key.scope, f"t{number}", "the lighthouse", datetime.now(UTC))])

    async def opened() -> TurnIndex:
        return turns

    indexed: list[ConversationKey] = []

    async def index_document(key: ConversationKey) -> None:
        indexed.append(key)

    await ForgetTurns(opened, index_document)(Job(JOB, KEY, "t2"))
    assert await index.count(KEY.scope, Kind.TURN) == 2
    await ForgetTurns(opened, index_document)(Job(JOB, KEY, "*m9"))
    assert indexed == [KEY, KEY]
    assert await index.count(KEY.scope, Kind.TURN) == 0
    assert await index.count(OTHER.scope, Kind.TURN) == 3
    await index.close()


async def test_where_nothing_was_said_nothing_is_forgotten(house: House) -> None:
    assert not await house.forgetting.last(KEY, "m9")


async def test_a_turn_that_was_not_copied_yet_never_reaches_the_log(house: House) -> None:
    await house.say(1)
    await house.forgetting.last(KEY, "m9")
    await house.say(2)

    assert await house.log() == ["question 2\n## not a header", "answer 2"]


async def test_a_document_made_of_a_forgotten_turn_gives_way_to_the_one_before(house: House) -> None:
    for number in (1, 2, 3):
        await house.say(number)
    await house.contexts.store(KEY, document(1, 1, "t1"))
    await house.contexts.store(KEY, document(2, 3, "t2", "t3"))
    await house.context_copy.write(KEY, "about t3")

    await house.forgetting.last(KEY, "m9")

    latest = await house.contexts.latest(KEY)
    assert latest == document(1, 1, "t1")
    assert not (house.data_dir / context_path(KEY)).exists()
    assert "about ('t2', 't3')" not in await house.everything_stored()


async def test_a_document_in_the_making_is_not_kept_once_its_turn_is_forgotten(house: House) -> None:
    await house.say(1)
    await house.forgetting.last(KEY, "m9")

    assert not await house.contexts.store(KEY, document(1, 1, "t1"))
    assert await house.contexts.store(KEY, document(1, 1, "t2"))


async def test_everything_is_gone_and_other_conversations_keep_theirs(house: House) -> None:
    for number in (1, 2):
        await house.say(number)
    await house.say(3, OTHER)
    await house.contexts.store(KEY, document(1, 2, "t1", "t2"))
    await house.context_copy.write(KEY, "about t1")
    await house.log()

    await house.forgetting.everything(KEY, "m9")

    assert await house.transcript.newest(KEY, 9) == []
    assert await house.contexts.latest(KEY) is None
    assert not await house.contexts.store(KEY, document(1, 2, "t1", "t2"))
    assert await house.log() == []
    assert not (house.data_dir / context_path(KEY)).exists()
    stored = await house.everything_stored()
    assert "question 1" not in stored
    assert "answer 2" not in stored
    assert "answer 3" in stored
    assert len(await house.log(OTHER)) == 2


async def test_replies_and_notices_are_gone_however_many_and_whoever_stored_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.delivery.outbox._FORGOTTEN_AT_ONCE", 4)
    await house.say(1)
    for number in range(1, 10):  # of most of them the transcript knows nothing
        await house.outbox.put(OutboundMessage(KEY, f"t{number}", f"reply {number}"), ["paper"])
    for number in range(2, 10):
        await house.outbox.hold(KEY, f"t{number}")
    await house.outbox.put(OutboundMessage(OTHER, "t99", "other 99"), ["paper"])

    await house.forgetting.everything(KEY, "m9")

    stored = await house.everything_stored()
    assert [number for number in range(1, 10) if f"reply {number}" in stored] == []
    assert "other 99" in stored
    assert not await house.redis.exists(f"ar:outbox:{KEY.tag}:turns:{KEY.encoded}")


async def test_the_list_of_what_can_be_forgotten_ends_with_it(house: House) -> None:
    await house.outbox.put(OutboundMessage(KEY, "t1", "reply 1"), ["paper"])
    turns = f"ar:outbox:{KEY.tag}:turns:{KEY.encoded}"
    kept: int = await house.redis.ttl(f"ar:outbox:{KEY.tag}:turn:{KEY.encoded}:t1")
    assert 0 < kept <= await house.redis.ttl(turns) <= kept + 1

    await house.redis.zadd(turns, {"t0": 1})  # it ended long ago
    await house.outbox.put(OutboundMessage(KEY, "t2", "reply 2"), ["paper"])
    assert await house.redis.zrange(turns, 0, -1) == ["t1", "t2"]


async def commands(house: House, key: ConversationKey) -> int:
    """How many commands the store does to forget all that was said in *key*, those of its scripts too."""
    await house.redis.config_resetstat()
    await house.forgetting.everything(key, "m9")
    done = await house.redis.info("commandstats")
    return sum(one["calls"] for name, one in done.items() if name != "cmdstat_config|resetstat")


async def test_what_it_costs_to_forget_does_not_grow_with_what_others_said(house: House) -> None:
    async def say(number: int, key: ConversationKey) -> None:
        await house.say(number, key)
        await house.outbox.put(OutboundMessage(key, f"t{number}", f"reply {number}"), ["paper"])

    await say(0, OTHER)
    await commands(house, OTHER)  # the scripts are known from now on
    for number in (1, 2, 3):
        await say(number, KEY)
    alone = await commands(house, KEY)

    for number in range(1000, 2500):
        await house.outbox.put(
            OutboundMessage(ConversationKey("acme", "http", f"c{number}"), f"t{number}", "other"), ["paper"]
        )
    last = ConversationKey("acme", "http", "last")
    for number in (11, 12, 13):
        await say(number, last)
    assert await commands(house, last) == alone


async def test_what_was_said_after_everything_was_forgotten_survives_the_same_request(house: House) -> None:
    await house.say(1)
    await house.forgetting.everything(KEY, "m9")
    await house.say(2)

    await house.forgetting.everything(KEY, "m9")

    assert await house.log() == ["question 2\n## not a header", "answer 2"]
    assert len(await house.transcript.newest(KEY, 9)) == 2


async def test_a_forgetting_that_was_interrupted_is_finished_when_it_is_asked_for_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.say(1)

    async def full(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(house.context_copy, "remove", full)
        with pytest.raises(OSError, match="space"):
            await house.forgetting.everything(KEY, "m9")
    await house.forgetting.everything(KEY, "m9")

    assert await house.transcript.newest(KEY, 9) == []
    assert "question 1" not in await house.everything_stored()


async def test_what_a_prompt_showed_is_forgotten_with_what_was_said(house: House) -> None:
    line = ContextLine(number=0, content="likes the lighthouse")
    shown = Shown(id="t1", began_on="2026-11-21", turns=1, turn_id="t1", global_context=(line,))
    for forget in (house.forgetting.last, house.forgetting.everything):
        await house.say(1)
        await ask(house.redis, house.sessions.keep_call(KEY, shown))

        await forget(KEY, f"m-{forget.__name__}")

        assert await ask(house.redis, house.sessions.get_call(KEY)) is None
        assert "lighthouse" not in await house.everything_stored()
