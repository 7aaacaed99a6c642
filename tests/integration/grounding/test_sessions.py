"""What is known of a conversation's last prompt, in Redis and as the next turn is shown it."""

from __future__ import annotations

from redis.asyncio import Redis

from connectors.message import ConversationKey
from connectors.redis_calls import ask
from grounding.memory.context_document import ContextDocument, ContextDocuments
from grounding.prompt import Sessions, Shown
from grounding.prompt_input import BlockFingerprint, ContextLine
from grounding.strategy import choose
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from tests.integration.test_pipeline import BUDGETS, KEY, Shelf, ground, pipeline

OTHER = ConversationKey("acme", "http", "other")
TODAY = "2026-11-22"
SHOWN = Shown(
    id="t1",
    began_on=TODAY,
    turns=2,
    turn_id="t2",
    begins="t1",
    global_context=(),
    blocks=(
        BlockFingerprint(name="global_context", digest="a", characters=9, tokens=300, system=True),
        BlockFingerprint(name="summary", digest="a", characters=9, tokens=300),
        BlockFingerprint(name="tail", digest="a", characters=9, tokens=90),
    ),
)


async def say(redis: Redis, *turns: str) -> None:
    for turn_id in turns:
        said = TranscriptEntry(
            EntryRole.INBOUND, f"said in {turn_id}", turn_id, "2026-11-22T10:00:00.000Z", author="Lena"
        )
        await Transcript(redis).append(KEY, turn_id, [said])


async def put(redis: Redis, version: int, text: str, turn_id: str) -> ContextDocument:
    document = ContextDocument(text, version, version, version, "model", f"{TODAY}T10:00:00Z", (turn_id,))
    stored = await ContextDocuments(redis).store(KEY, document)
    assert stored is not None
    return stored


async def test_what_was_shown_is_known_until_a_pause_or_the_end_of_the_session(redis: Redis) -> None:
    sessions = Sessions(redis, idle_seconds=1800)
    await ask(redis, sessions.keep_call(KEY, SHOWN))

    assert await ask(redis, sessions.get_call(KEY)) == SHOWN
    assert await ask(redis, sessions.get_call(OTHER)) is None
    (name,) = await redis.keys("ar:sessions:*")
    assert 0 < await redis.ttl(name) <= 1800
    await sessions.end(KEY)
    assert await ask(redis, sessions.get_call(KEY)) is None


async def test_what_another_release_has_kept_is_as_if_nothing_was(redis: Redis) -> None:
    sessions = Sessions(redis, idle_seconds=1800)
    await ask(redis, sessions.keep_call(KEY, SHOWN))
    (name,) = await redis.keys("ar:sessions:*")
    await redis.set(name, SHOWN.model_dump_json().replace('"v":1', '"v":2'))

    assert await ask(redis, sessions.get_call(KEY)) is None


async def test_the_document_that_was_shown_is_shown_on_and_in_a_dry_run_too(redis: Redis) -> None:
    await say(redis, "t1", "t2")
    first = await put(redis, 1, "## Facts\n- boat: blue\n", "t1")
    await put(redis, 2, "## Facts\n- boat: red\n", "t2")
    await ask(redis, Sessions(redis, 1800).keep_call(KEY, SHOWN.model_copy(update={"document": first.id})))
    before = await redis.dbsize()

    for turn_id in ("", "t3"):
        grounds = await ground(
            redis, pipeline(redis, Shelf()), KEY, "and now?", choose("and now?"), BUDGETS, turn_id, today=TODAY
        )

        assert grounds.summary is not None
        assert grounds.summary.text == first.text
        assert [entry.turn_id for entry in grounds.tail] == ["t1", "t2"]
        assert await redis.dbsize() == before + (1 if turn_id else 0)  # a turn is given numbers of lines


async def test_without_its_former_version_the_newest_document_is_shown(redis: Redis) -> None:
    await say(redis, "t1", "t2")
    newest = await put(redis, 1, "## Facts\n- boat: red\n", "t2")
    await ask(redis, Sessions(redis, 1800).keep_call(KEY, SHOWN.model_copy(update={"document": "1-0"})))

    grounds = await ground(redis, pipeline(redis, Shelf()), KEY, "and now?", choose("and now?"), BUDGETS, today=TODAY)

    assert grounds.summary is not None
    assert grounds.summary.text == newest.text


async def test_one_persons_lines_are_not_shown_to_who_asks_next_in_the_same_place(redis: Redis) -> None:
    lines = (ContextLine(number=0, content="Lena's own"),)
    of_lena = SHOWN.model_copy(update={"global_context": lines, "person": "http:u1"})
    await ask(redis, Sessions(redis, 1800).keep_call(KEY, of_lena))

    for text in ("and now?", "hello"):
        grounds = await ground(
            redis, pipeline(redis, Shelf()), KEY, text, choose(text), BUDGETS, audience="http:u2", today=TODAY
        )

        assert grounds.global_context == ()
        assert grounds.deltas == ()
