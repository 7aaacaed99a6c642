"""What is gathered for a turn, and what is left out."""

import asyncio
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from config import load
from connectors.message import ConversationKey, Scope
from connectors.redis_calls import RoundTrip, ask
from grounding.memory.context_document import ContextDocument, ContextDocuments
from grounding.memory.global_context import Editor, EditOrigin, GlobalContexts
from grounding.pipeline import Decision, Pipeline, StrategyChooser, TurnLayers
from grounding.prompt import PrefixPolicy, SessionContinuity, Sessions, Shown
from grounding.prompt_input import (
    BlockFingerprint,
    ContextLine,
    DegradedBlock,
    Passage,
    PromptLimits,
    RecalledTurn,
    TailEntry,
    load_tokens,
)
from grounding.retrieval import Found, PassageRoom
from grounding.strategy import ENGLISH, Choice, Cues, choose, cues_of
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.stores import connect

KEY = ConversationKey("acme", "http", "default")
BUDGETS = PromptLimits.from_settings(load({}).settings, window_tokens=8192)
AS_WE_SAID = "as we discussed, which file explains pricing?"


class Shelf:
    """Documents and earlier turns; keeps what it was asked, and may hang."""

    def __init__(self) -> None:
        self.searched: list[str] = []
        self.earlier: list[tuple[str, ...]] = []
        self.excluded: list[frozenset[str]] = []
        self.unasked: list[str] = []
        self.surely: list[RecalledTurn] = []
        self.hangs = False

    async def awake(self, scope: Scope) -> None:
        return

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        self.searched.append(query)
        self.earlier.append(tuple(earlier))
        if self.hangs:
            await asyncio.Event().wait()
        return Found(query)

    async def pack(
        self, scope: Scope, found: Found, room: PassageRoom, *, lost: list[DegradedBlock]
    ) -> Sequence[Passage]:
        return [Passage(source="a.md", heading="", text="blue", score=1.0)]

    async def recall(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        exclude: frozenset[str],
        *,
        earlier: Sequence[str],
        lost: list[DegradedBlock],
        asked_for: bool,
    ) -> Sequence[RecalledTurn]:
        if not asked_for:
            self.unasked.append(query)
            if self.hangs:
                await asyncio.Event().wait()
            return self.surely
        self.excluded.append(exclude)
        self.earlier.append(tuple(earlier))
        return []


def known(redis: Redis) -> GlobalContexts:
    return GlobalContexts(redis, load_tokens(), max_tokens=700, idle_seconds=1800)


def continuing(redis: Redis) -> SessionContinuity:
    return SessionContinuity(
        ContextDocuments(redis), PrefixPolicy(load_tokens(), "prefix_stable"), Sessions(redis, 1800)
    )


def pipeline(redis: Redis, shelf: Shelf, timeout_seconds: float = 5.0) -> Pipeline:
    return Pipeline(Transcript(redis), continuing(redis), known(redis), shelf, shelf, timeout_seconds)


async def ground(
    redis: Redis,
    layers: Pipeline,
    key: ConversationKey,
    text: str,
    choice: Choice,
    budgets: PromptLimits,
    turn_id: str = "",
    history: Sequence[TailEntry] | None = None,
    *,
    audience: str | None = None,
    cues: Cues = ENGLISH,
    today: str = "",
) -> TurnLayers:
    """What a turn gathers whose strategy is *choice*."""
    trip = RoundTrip(redis)
    gathering = layers.begin(trip, key, budgets, turn_id, history, audience)
    await trip.send()
    messages = await gathering.last_messages()
    decision = Decision(choice)
    if choice.wants_documents:
        seconds = layers.timeout_seconds
        decision = await StrategyChooser(layers.documents, seconds, seconds).choose(key, text, cues, messages or ())
    return await gathering.gather(text, decision, messages, cues=cues, today=today)


async def record(redis: Redis, turn_id: str, text: str) -> None:
    await Transcript(redis).append(
        KEY, turn_id, [TranscriptEntry(EntryRole.INBOUND, text, turn_id, "2026-11-21T10:00:00.000Z", author="Lena")]
    )


async def test_a_turn_that_is_taken_up_again_does_not_read_itself_in_the_tail(redis: Redis) -> None:
    await record(redis, "t1", "before")
    await record(redis, "t2", "now")

    grounds = await ground(redis, pipeline(redis, Shelf()), KEY, "now", choose("now what?"), BUDGETS, "t2")

    assert [entry.text for entry in grounds.tail] == ["before"]


async def test_what_the_tail_shows_is_not_recalled_again(redis: Redis) -> None:
    await record(redis, "t1", "before")
    shelf = Shelf()

    await ground(redis, pipeline(redis, shelf), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t2")

    assert shelf.excluded == [frozenset({"t1"})]


async def test_a_message_of_which_the_tail_shows_only_the_beginning_is_recalled(redis: Redis) -> None:
    await record(redis, "t1", "It is a long story. " * 30 + "The port is 8443.")
    await record(redis, "t2", "short")
    shelf = Shelf()

    await ground(redis, pipeline(redis, shelf), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t3")

    assert shelf.excluded == [frozenset({"t2"})]


SISTER = "what is my sister's name?"


async def longer_than_the_tail(redis: Redis) -> None:
    for number in range(40):
        await record(redis, f"t{number:02d}", "We spoke of the weather in the harbour, and of ships.")


async def test_a_question_that_says_nothing_of_the_conversation_recalls_what_it_surely_speaks_of(redis: Redis) -> None:
    await longer_than_the_tail(redis)
    shelf = Shelf()
    shelf.surely = [RecalledTurn(turn_id="t00", said_on="2026-11-21", text="Lena: my sister is Ada", score=1.0)]

    grounds = await ground(redis, pipeline(redis, shelf), KEY, SISTER, choose(SISTER), BUDGETS, "t99")

    assert [one.turn_id for one in grounds.recalled] == ["t00"]
    assert shelf.excluded == []


@pytest.mark.parametrize("text", ["hello", "which file explains pricing?"])
async def test_neither_small_talk_nor_a_question_for_documents_looks_for_earlier_turns(redis: Redis, text: str) -> None:
    await longer_than_the_tail(redis)
    shelf = Shelf()

    await ground(redis, pipeline(redis, shelf), KEY, text, choose(text), BUDGETS, "t99")

    assert shelf.unasked == []


async def test_nothing_is_looked_for_unasked_while_the_tail_shows_all_that_was_said(redis: Redis) -> None:
    await record(redis, "t1", "before")
    shelf = Shelf()

    await ground(redis, pipeline(redis, shelf), KEY, SISTER, choose(SISTER), BUDGETS, "t2")

    assert shelf.unasked == []


async def test_a_look_that_nobody_asked_for_degrades_nothing_when_it_takes_too_long(redis: Redis) -> None:
    await longer_than_the_tail(redis)
    shelf = Shelf()
    shelf.hangs = True

    async with asyncio.timeout(20):
        grounds = await ground(redis, pipeline(redis, shelf, 0.2), KEY, SISTER, choose(SISTER), BUDGETS, "t99")

    assert (grounds.degraded, grounds.recalled) == ((), ())
    assert shelf.unasked == [SISTER]


async def test_the_search_is_for_what_is_asked_and_not_for_the_words_that_say_where_to_look(redis: Redis) -> None:
    shelf = Shelf()
    question = "which file explains pricing?"

    await ground(redis, pipeline(redis, shelf), KEY, question, choose(question), BUDGETS)

    assert "pricing" in shelf.searched[0]
    assert "file" not in shelf.searched[0]


async def test_the_words_that_a_workspaces_cues_call_containers_are_not_searched_for(redis: Redis) -> None:
    cues = cues_of(('[add]\ncontainers = ["binder"]\ndocuments = ["binder"]',))
    shelf = Shelf()
    question = "which binder has pricing?"

    await ground(redis, pipeline(redis, shelf), KEY, question, choose(question, cues), BUDGETS, cues=cues)

    assert "pricing" in shelf.searched[0]
    assert "binder" not in shelf.searched[0]


async def test_a_history_that_is_given_stands_in_for_everything_stored(redis: Redis) -> None:
    await record(redis, "t1", "before")
    shelf = Shelf()
    given = [TailEntry(speaker="Bo", text="another past", turn_id="")]

    grounds = await ground(redis, pipeline(redis, shelf), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t2", given)

    assert grounds.tail == tuple(given)
    assert shelf.excluded == []


async def test_a_layer_that_takes_too_long_is_left_out_and_named(redis: Redis) -> None:
    await record(redis, "t1", "before")
    shelf = Shelf()
    shelf.hangs = True

    async with asyncio.timeout(5):
        grounds = await ground(redis, pipeline(redis, shelf, 0.2), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t2")

    assert [(part.block, part.why) for part in grounds.degraded] == [("retrieved", "timeout")]
    assert [entry.text for entry in grounds.tail] == ["before"]


async def test_documents_and_earlier_turns_are_searched_with_what_was_asked_before(redis: Redis) -> None:
    await record(redis, "t1", "how do refunds work?")
    shelf = Shelf()

    await ground(redis, pipeline(redis, shelf), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t2")

    assert shelf.earlier == [("how do refunds work?",)] * 2


async def test_a_given_history_is_what_was_asked_before(redis: Redis) -> None:
    await record(redis, "t1", "how do refunds work?")
    shelf = Shelf()
    given = [
        TailEntry(speaker="user", text="when do parcels leave?", turn_id=""),
        TailEntry(speaker="assistant", text="On Monday.", turn_id=""),
    ]

    await ground(redis, pipeline(redis, shelf), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t2", given)

    assert shelf.earlier == [("when do parcels leave?",)]


async def test_without_the_tail_the_message_is_searched_for_alone(redis: Redis) -> None:
    await record(redis, "t1", "how do refunds work?")
    (log,) = await redis.keys("ar:transcript:*:log:*")
    await redis.delete(log)
    await redis.set(log, "no log")  # the store answers this read, and no other, with an error
    shelf = Shelf()

    grounds = await ground(redis, pipeline(redis, shelf), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t2")

    assert [(part.block, part.why) for part in grounds.degraded] == [("tail", "response_error")]
    assert shelf.earlier[0] == ()
    assert [passage.text for passage in grounds.passages] == ["blue"]


async def test_while_the_store_is_away_every_layer_of_it_is_named(redis: Redis) -> None:
    away = connect("redis://127.0.0.1:1", timeout_seconds=0.5)
    shelf = Shelf()

    grounds = await ground(away, pipeline(away, shelf), KEY, AS_WE_SAID, choose(AS_WE_SAID), BUDGETS, "t2")

    assert [(part.block, part.why) for part in grounds.degraded] == [
        (block, "store_unavailable") for block in ("global_context", "session", "summary", "tail")
    ]
    assert [passage.text for passage in grounds.passages] == ["blue"]


async def test_the_global_context_comes_with_small_talk_and_with_a_given_history_too(redis: Redis) -> None:
    await known(redis).append(Editor(Scope("acme"), "api"), "Answers are wanted in French", EditOrigin("admin"))

    chat = await ground(redis, pipeline(redis, Shelf()), KEY, "hello", choose("hello"), BUDGETS, "t1")
    dry = await ground(redis, pipeline(redis, Shelf()), KEY, "now", choose("now what?"), BUDGETS, "", [])

    for grounds in (chat, dry):
        assert grounds.global_context is not None
        assert [line.content for line in grounds.global_context] == ["Answers are wanted in French"]
    assert chat.tail == ()


async def test_a_dry_run_gives_out_no_numbers(redis: Redis) -> None:
    await known(redis).append(Editor(Scope("acme"), "api"), "one", EditOrigin("admin"))
    before = sorted(await redis.keys("*"))

    await ground(redis, pipeline(redis, Shelf()), KEY, "now", choose("now what?"), BUDGETS)

    assert sorted(await redis.keys("*")) == before


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
