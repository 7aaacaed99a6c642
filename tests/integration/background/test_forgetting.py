"""What is said is remembered; what is forgotten is gone from all that keeps it, and what was said after stays."""

from __future__ import annotations

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
from grounding.memory.context_document import ContextDocument
from grounding.memory.context_document.store import path as context_path
from grounding.memory.records import Candidate, NewRecord, Provenance, Type
from grounding.prompt import Shown
from grounding.prompt_input import ContextLine
from grounding.retrieval import Kind, TurnIndex, TurnText
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.transcript import EntryRole, Reach, Transcript, TranscriptEntry, Turn
from runtime.background import ForgetTurns, RememberTurns
from runtime.background.extraction import Mark
from runtime.background.forgetting import JOB
from runtime.coordination import Job
from runtime.turns.batch import Batch, Envelope
from runtime.turns.manifest import UnknownTurn
from tests.emulators.embedder import HashedWords
from tests.emulators.forgetting import KEY, OTHER, House


def document(version: int, turns: int, *turn_ids: str) -> ContextDocument:
    return ContextDocument(f"about {turn_ids}", version, turns, 2 * turns, "model", "2026-11-21T10:00:00Z", turn_ids)


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


async def test_replies_and_notices_are_gone_however_many_and_whoever_stored_them(house: House) -> None:
    await house.say(1)
    for number in range(1, 600):  # of most of them the transcript knows nothing
        await house.outbox.put(OutboundMessage(KEY, f"t{number}", f"reply {number}"), ["paper"])
    for number in range(2, 10):
        await house.outbox.hold(KEY, f"t{number}")
    await house.outbox.put(OutboundMessage(OTHER, "t99", "other 99"), ["paper"])

    await house.forgetting.everything(KEY, "m9")

    stored = await house.everything_stored()
    assert [number for number in range(1, 600) if f"reply {number}" in stored] == []
    assert "other 99" in stored
    assert not await house.redis.exists(f"ar:outbox:{KEY.tag}:turns:{KEY.encoded}")


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


TALK = (
    ("t1", "What is the parrot called?", "I do not know."),
    ("t2", "Kiki!", "Noted."),
    ("t3", "Lovely weather.", "It is."),
)


async def test_turns_are_remembered_with_the_turn_before_and_recalled_by_it(redis: Redis, tmp_path: Path) -> None:
    embedder = HashedWords()
    index = EmbeddedIndex(tmp_path, embedder.name, embedder.dimensions, timeout_seconds=20)
    await index.ensure()
    transcript, turns = Transcript(redis), TurnIndex(index, embedder)
    remember = RememberTurns(transcript, turns)
    for turn_id, question, answer in TALK:
        at = f"2026-11-0{turn_id[1]}T10:00:00.000Z"
        said = TranscriptEntry(EntryRole.INBOUND, question, turn_id, at, author="Lena")
        await transcript.append(KEY, turn_id, [said, TranscriptEntry(EntryRole.OUTBOUND, answer, turn_id, at)])
    await remember([Job("turn.remember", KEY, "t1")])

    await remember([Job("turn.remember", KEY, turn_id) for turn_id in ("t2", "t3")])

    neighbours = await index.neighbours(KEY.scope, Kind.TURN, [], ["t1", "t2"])
    assert {passage.source: passage.previous for passage in neighbours} == {"t2": "t1", "t3": "t2"}
    found = await turns.recall(KEY.scope, "what was the parrot called?", 9)
    assert {one.turn_id: one.said_on for one in found} == {"t1": "2026-11-01", "t2": "2026-11-02"}
    await index.close()
