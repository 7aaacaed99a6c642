"""What becomes of a mark: which turn it is for, who may, what is kept, and what it says of records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.message import Author, ConversationKey, InboundKind, InboundMessage, OutboundMessage, Role, Scope
from connectors.redis_calls import ask
from grounding.memory.karma import Examples, Karma, MarkStore
from grounding.memory.records import NewRecord, Provenance, State, Type
from grounding.prompt import build_prompt
from grounding.prompt_input import Participant, TailEntry, load_tokens
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.access import Access, ApiTokens
from runtime.background import Marker, Marking
from runtime.background.karma import ANSWERED_TOKENS
from runtime.commands.registry import CommandRefused, Invocation
from runtime.commands.turns import Marks
from runtime.coordination import Hub
from runtime.delivery import Outbox
from runtime.delivery.outbox import PartStage
from runtime.turns.manifest import Manifests, RecordsOfTurn
from tests.emulators.embedder import HashedWords
from tests.emulators.marking import karma_on, marking_on
from tests.emulators.prompts import context
from tests.emulators.records import RememberedRecords

GROUP = ConversationKey("acme", "telegram", "-1")
DIRECT = ConversationKey("acme", "telegram", "501")
LENA, BO = "telegram:501", "telegram:502"
ASKED, ANSWERED = "How do I moor the Petrel at the pier?", "Bow to the swell, with two springs."
TOKENS = load_tokens()
MEMBER = Marker(BO, Role.MEMBER, "command")


class House:
    """Turns that were answered, and the marks of them."""

    def __init__(self, redis: Redis, marks: MarkStore | None = None, **settings: Any) -> None:
        self.redis = redis
        self.transcript, self.manifests = Transcript(redis), Manifests(redis)
        self.outbox = Outbox(redis, Hub(redis, shared=False))
        self.records = RememberedRecords()
        self.store = marks or MarkStore(redis)
        self.embedder = HashedWords()
        self.karma = karma_on(redis, self.embedder)
        self.marking: Marking = marking_on(redis, records=self.records, marks=self.store, **settings)

    async def answer(self, turn_id: str, key: ConversationKey = GROUP, message_id: str = "9", **more: Any) -> None:
        """A turn was answered, and its reply delivered as *message_id*."""
        direct = key == DIRECT
        asked, answered, foreign = more.get("asked", ASKED), more.get("answered", ANSWERED), more.get("foreign", "")
        built = context(
            turn_id=turn_id,
            connector=key.connector,
            external_id=key.external_id,
            context_id=key.context_id,
            direct=direct,
            audience=LENA if direct else "",
            authors=(Participant(user=LENA, name="Lena", role="member"),),
            tail=more.get("tail", ()),
        )
        ended = {"kind": more.get("kind", "reply"), "error_code": ""}
        await self.manifests.keep(built, build_prompt(built, TOKENS), "2026-11-22T10:00:00Z")
        await ask(self.redis, self.manifests.finish_call(key.scope, turn_id, ended, 1))
        at = "2026-11-22T10:00:00.000Z"
        said = [
            TranscriptEntry(EntryRole.INBOUND, asked, turn_id, at, "Lena", LENA, f"in-{turn_id}"),
            TranscriptEntry(EntryRole.OUTBOUND, answered, turn_id, at, "agent-runtime", foreign=foreign),
        ]
        await self.transcript.append(key, turn_id, said)
        reply = OutboundMessage(key, turn_id, answered)
        await self.outbox.put(reply, ["telegram"])
        await self.outbox.mark(reply, 0, PartStage.SENT, message_id)

    async def react(self, emoji: str, *gone: str, by: str = BO, on: str = "9", key: ConversationKey = GROUP) -> str:
        connector, _, user = by.partition(":")
        message = InboundMessage(
            connector, key.external_id, on, Author(user), "", InboundKind.REACTION, reaction=emoji, unreacted=gone
        )
        return await self.marking.mark_by_reaction(message, key)

    async def shown(self, text: str = ASKED, key: ConversationKey = GROUP, audience: str | None = None) -> list[str]:
        looked = await self.look(text, key, audience)
        return [one.turn_id for one in (*looked.floor, *looked.chosen(()))]

    async def look(
        self,
        text: str = ASKED,
        key: ConversationKey = GROUP,
        audience: str | None = None,
        stood: Sequence[str] | None = None,
        karma: Karma | None = None,
    ) -> Examples:
        """What a turn is shown in whose session *stood* stands; None: it is the first."""

        version = await ask(self.redis, self.store.version_call(key.scope))
        return await (karma or self.karma).look(key, audience, text, version=version, stood=stood)


@pytest.fixture
def house(redis: Redis) -> House:
    return House(redis)


async def test_a_reaction_on_any_part_of_a_reply_makes_its_exchange_an_example(house: House) -> None:
    await house.answer("t1")
    await house.outbox.mark(OutboundMessage(GROUP, "t1", ""), 1, PartStage.SENT, "10")
    with capture_logs() as told:
        assert await house.react("👍🏽", on="10") == ""

    assert await house.shown() == ["t1"]
    marked = await house.store.get(GROUP.scope, "t1")
    assert marked is not None
    assert marked.exchange is not None
    assert (marked.exchange.asked, marked.exchange.answered, marked.exchange.audience) == (ASKED, ANSWERED, "")
    events = [one for one in told if one["event"] == "turn.marked"]
    assert [(one["mark"], one["role"], one["by"]) for one in events] == [("good", "member", "reaction")]
    assert ASKED not in str(told)


async def test_a_mark_is_changed_and_taken_back_and_counted_once_however_often_it_comes(house: House) -> None:
    await house.answer("t1")
    with capture_logs() as told:
        await house.react("👍")
        await house.react("👍")
        await house.react("👎", "👍")
        await house.react("", "👎")
        await house.react("", "👎")
    assert [one["mark"] for one in told if one["event"] == "turn.marked"] == ["good", "bad", "none"]
    assert await house.shown() == []


async def test_a_turn_that_as_many_call_bad_is_no_example(house: House) -> None:
    await house.answer("t1")
    await house.react("👍", by=BO)
    await house.react("👎", by=LENA)
    assert await house.shown() == []
    await house.react("", "👎", by=LENA)
    assert await house.shown() == ["t1"]


async def test_what_marks_nothing_is_passed_over(redis: Redis) -> None:
    """Other emoji, strangers, viewers, other people's messages and turns that were forgotten."""
    house = House(redis, access_policy="allowlist", access_allowlist=(BO,))
    await house.answer("t1")
    await Access(redis, Settings(), ApiTokens(redis, "admin-token")).set_role("telegram:7", Role.VIEWER, "acme")

    assert await house.react("👀") == "no_mark"
    assert await house.react("👍", by="telegram:99") == "not_allowed"
    assert await house.react("👍", by="telegram:7") == "not_allowed"
    assert await house.react("👍", on="77") == "unknown_reply"
    await house.manifests.forget(GROUP.scope, ["t1"])
    assert await house.react("👍") == "unknown_reply"
    assert await house.shown() == []


async def test_a_marked_reply_is_known_when_the_outbox_has_it_no_more(house: House) -> None:
    await house.answer("t1")
    await house.react("👍")
    await house.outbox.forget(GROUP)
    assert await house.react("", "👍") == ""
    assert await house.shown() == []


async def test_what_was_said_in_a_direct_message_serves_that_person_alone(house: House) -> None:
    await house.answer("t1", DIRECT)
    await house.react("👍", by=LENA, key=DIRECT)

    assert await house.shown(key=DIRECT, audience=LENA) == ["t1"]
    assert await house.shown(key=GROUP) == []
    assert await house.shown(key=ConversationKey("acme", "telegram", "502"), audience=BO) == []
    other = ConversationKey("other", "telegram", "501")
    assert await house.shown(key=other, audience=LENA) == []


async def test_an_apology_is_no_example_and_a_long_answer_is_cut_where_a_sentence_ends(house: House) -> None:
    await house.answer("t1", message_id="9", kind="apology", answered="Something went wrong.")
    await house.answer("t2", message_id="10", answered="It is tied with two springs. " * 40)
    await house.react("👍", on="9")
    await house.react("👍", on="10")

    assert await house.shown() == ["t2"]
    marked = await house.store.get(GROUP.scope, "t2")
    assert marked is not None
    assert marked.exchange is not None
    assert TOKENS.count(marked.exchange.answered) <= ANSWERED_TOKENS
    assert marked.exchange.answered.endswith("springs. …") or marked.exchange.answered.endswith("springs.…")


async def test_an_answer_that_may_repeat_one_made_of_documents_stands_in_no_system_message(house: House) -> None:
    """ "And shorter, please": the words are the document's all the same."""
    before = TailEntry(speaker="assistant", text="The plan says: ...", turn_id="t0", foreign="retrieved")
    own = TailEntry(speaker="assistant", text="Good morning.", turn_id="t0")
    await house.answer("t1", DIRECT, tail=(before,))
    await house.answer("t2", DIRECT, message_id="10", asked="How do I reef the main sail?", tail=(own,))
    for message in ("9", "10"):
        await house.react("👍", by=LENA, on=message, key=DIRECT)
    looked = await house.look(ASKED, DIRECT, LENA)
    assert [one.turn_id for one in looked.floor] == ["t2"]
    assert [(one.turn_id, one.foreign) for one in looked.chosen(())] == [("t1", "retrieved")]


async def test_forgetting_takes_the_trace_and_what_was_marked_in_a_conversation(house: House) -> None:
    await house.answer("t1")
    await house.answer("t2", message_id="10")
    await house.react("👍", on="9")
    await house.react("👍", on="10")

    await house.marking.forget(GROUP.scope, ["t1"])
    assert await house.shown() == ["t2"]
    await house.marking.forget_conversation(GROUP)
    assert await house.shown() == []
    left = [await house.redis.hgetall(name) async for name in house.redis.scan_iter("ar:karma:{w.acme}:[ks]*")]
    assert left == []


async def test_an_exchange_whose_question_was_edited_or_deleted_is_no_example_any_more(house: House) -> None:
    await house.answer("t1")
    await house.react("👍")
    await house.marking.forget_message(GROUP, "in-t9")
    assert await house.shown() == ["t1"]
    await house.marking.forget_message(GROUP, "in-t1")
    assert await house.shown() == []


async def test_another_process_sees_a_mark_with_its_next_turn(house: House) -> None:
    await house.answer("t1")
    await house.answer("t2", message_id="10", asked="How do I reef the main sail?", answered="Ease the halyard first.")
    await house.react("👍")
    elsewhere = karma_on(house.redis)
    assert [one.turn_id for one in (await house.look(karma=elsewhere)).chosen(())] == ["t1"]

    await house.react("👍", on="10")
    found = (await house.look("How do I reef the main sail?", karma=elsewhere)).chosen(())
    assert [one.turn_id for one in found] == ["t2"]


async def test_what_stands_is_the_same_throughout_a_session_but_for_what_is_taken_back(house: House) -> None:
    admin = Marker(LENA, Role.ADMIN, "command")
    await house.answer("t1")
    await house.answer("t2", message_id="10", asked="How do I reef the main sail?")
    await house.marking.put(GROUP.scope, "t1", admin, "good")

    async def standing(*stood: str, begins: bool = False) -> list[str]:
        return [one.turn_id for one in (await house.look("", stood=None if begins else stood)).floor]

    assert await standing(begins=True) == ["t1"]
    await house.marking.put(GROUP.scope, "t2", admin, "good")
    assert await standing("t1") == ["t1"]
    assert await standing() == []
    assert set(await standing(begins=True)) == {"t1", "t2"}
    await house.marking.put(GROUP.scope, "t1", admin, None)
    assert await standing("t1", "t2") == ["t2"]
    assert (await house.look("How do I reef the main sail?", stood=("t2",))).chosen(()) == ()


async def test_all_whom_a_members_token_names_are_one_voice_over_an_answer_and_over_its_records(house: House) -> None:
    fact = (await house.records.add(Scope("acme"), NewRecord(Type.FACT, "It is deep."), Provenance(author=LENA))).record
    await house.answer("t1")
    await house.manifests.note_records(GROUP.scope, "t1", RecordsOfTurn(used=(fact.id,)))
    named = [Marker(f"http:{name}", Role.MEMBER, "api", is_vouched_for=False) for name in "abc"]
    for by in named:
        marked = await house.marking.put(GROUP.scope, "t1", by, "good")
    assert (marked.good, (await house.records.get(Scope("acme"), fact.id)).confirmations) == (1, 1)

    for by in named[:2]:
        marked = await house.marking.put(GROUP.scope, "t1", by, "bad")
    assert (marked.good, marked.bad, marked.is_good) == (0, 1, False)
    assert (await house.records.get(Scope("acme"), fact.id)).confirmations == 0
    for number in (1, 2):
        await house.marking.put(GROUP.scope, "t1", Marker(f"telegram:{number}", Role.MEMBER, "reaction"), "good")
    assert await house.shown() == ["t1"]


async def test_what_marks_said_of_records_goes_with_them_when_their_turn_is_forgotten(house: House) -> None:
    scope = Scope("acme")
    fact = (await house.records.add(scope, NewRecord(Type.FACT, "It is deep."), Provenance(author=LENA))).record
    await house.answer("t1")
    await house.manifests.note_records(GROUP.scope, "t1", RecordsOfTurn(used=(fact.id,)))
    await house.react("👍")
    await house.react("👍", by=LENA)
    assert (await house.records.get(scope, fact.id)).confirmations == 2

    await house.marking.forget(GROUP.scope, ["t1"])

    assert (await house.records.get(scope, fact.id)).confirmations == 0
    await house.marking.forget(GROUP.scope, ["t1"])
    assert (await house.records.get(scope, fact.id)).confirmations == 0


async def test_a_decision_that_waits_for_its_outcome_is_reviewed_by_what_most_people_say(house: House) -> None:
    scope, by = Scope("acme"), Provenance(author=LENA)
    new = NewRecord(Type.DECISION, "We moor with two springs.", outcome="pending")
    choice = (await house.records.add(scope, new, by)).record
    await house.answer("t1")
    await house.manifests.note_records(GROUP.scope, "t1", RecordsOfTurn(used=(choice.id,)))

    async def now() -> tuple[State, str | None]:
        one = await house.records.get(scope, choice.id)
        return one.state, one.outcome

    await house.react("👍")
    assert await now() == (State.REVIEWED, "success")
    await house.react("👎", by=LENA)  # as many say the one as the other
    assert await now() == (State.PENDING, "pending")
    await house.react("👎", "👍")
    assert await now() == (State.REVIEWED, "failure")

    await house.records.change(scope, choice.id, {"outcome": "partial"}, by)
    await house.react("", "👎")
    await house.react("", "👎", by=LENA)
    assert await now() == (State.REVIEWED, "partial")


async def test_who_only_says_who_they_are_may_mark_no_more_than_their_token(redis: Redis) -> None:
    house = House(redis, sigil_bindings={"role:member": "viewer", f"user:{LENA}": "admin"})
    await house.answer("t1")
    marks = Marks(house.transcript, house.manifests, house.marking)
    (good,) = (one for one in marks.commands() if one.name == "good")

    def saying(caller: Role | None, kind: InboundKind) -> InboundMessage:
        said = InboundMessage("telegram", "-1", "9", Author("501"), "good", kind, reaction="👍")
        return replace(said, caller_role=caller)

    for_members = Invocation(GROUP, saying(Role.MEMBER, InboundKind.COMMAND), Role.MEMBER, "")
    with pytest.raises(CommandRefused):
        await good.run(for_members)
    assert await house.marking.mark_by_reaction(saying(Role.MEMBER, InboundKind.REACTION), GROUP) == "not_allowed"
    assert await house.marking.mark_by_reaction(saying(None, InboundKind.REACTION), GROUP) == ""


async def test_without_an_embedder_the_words_decide(house: House) -> None:
    await house.answer("t1")
    await house.react("👍")
    house.embedder.fails = True
    assert await house.shown() == ["t1"]
    assert await house.shown("What does the harbour plan cost?") == []


async def test_beyond_the_most_that_is_kept_go_first_those_that_nobody_marks_any_more(redis: Redis) -> None:
    house = House(redis, MarkStore(redis, most=2))
    for number in range(1, 5):
        await house.answer(f"t{number}", message_id=str(number))
    await house.marking.put(GROUP.scope, "t1", MEMBER, "good")
    await house.marking.put(GROUP.scope, "t2", MEMBER, "good")
    await house.marking.put(GROUP.scope, "t2", MEMBER, None)
    await house.marking.put(GROUP.scope, "t3", MEMBER, "bad")
    _, kept = await house.store.all(GROUP.scope)
    assert [one.turn_id for one in kept] == ["t1", "t3"]
    await house.marking.put(GROUP.scope, "t4", MEMBER, "good")
    _, kept = await house.store.all(GROUP.scope)
    assert [one.turn_id for one in kept] == ["t1", "t4"]


async def test_a_good_reply_confirms_its_facts_and_what_it_followed_succeeded_until_that_is_taken_back(
    house: House,
) -> None:
    scope, by = Scope("acme"), Provenance(author=LENA)
    fact = (await house.records.add(scope, NewRecord(Type.FACT, "The Petrel lies at the north pier."), by)).record
    way = (await house.records.add(scope, NewRecord(Type.PROCEDURE, "Moor bow to the swell."), by)).record
    choice = (await house.records.add(scope, NewRecord(Type.DECISION, "We moor with two springs."), by)).record
    await house.answer("t1")
    await house.manifests.note_records(GROUP.scope, "t1", RecordsOfTurn(used=(fact.id, way.id, choice.id, "gone")))

    async def now() -> tuple[State, int, int, int, State]:
        one, two = await house.records.get(scope, fact.id), await house.records.get(scope, way.id)
        return (
            one.state,
            one.confirmations,
            two.successes,
            two.failures,
            (await house.records.get(scope, choice.id)).state,
        )

    for _ in range(2):  # however often
        await house.react("👍")
        assert await now() == (State.CONFIRMED, 1, 1, 0, State.RECORDED)
        await house.react("👍")
        assert await now() == (State.CONFIRMED, 1, 1, 0, State.RECORDED)
        await house.react("👎", "👍")
        assert await now() == (State.NEW, 0, 0, 1, State.RECORDED)
        await house.react("", "👎")
        assert await now() == (State.NEW, 0, 0, 0, State.RECORDED)


async def test_a_bad_reply_says_of_a_censor_that_acted_in_it_that_it_should_not_have(house: House) -> None:
    scope, by = Scope("acme"), Provenance(author=LENA)
    new = NewRecord(Type.CENSOR, "Never name the harbour master.", trigger="harbour master", severity="block")
    censor = (await house.records.add(scope, new, by)).record
    await house.answer("t1", kind="apology")
    await house.manifests.note_records(GROUP.scope, "t1", RecordsOfTurn(acted=(censor.id,)))

    await house.react("👎")
    assert (await house.records.get(scope, censor.id)).false_positives == 1
    await house.react("", "👎")
    assert (await house.records.get(scope, censor.id)).false_positives == 0


async def test_one_person_alone_retires_no_censor_however_many_replies_they_call_bad(house: House) -> None:
    new = NewRecord(Type.CENSOR, "Never name the harbour master.", trigger="harbour master", severity="block")
    censor = (await house.records.add(Scope("acme"), new, Provenance(author=LENA))).record
    for number in range(4):
        await house.answer(f"t{number}", message_id=str(number), kind="apology")
        await house.manifests.note_records(GROUP.scope, f"t{number}", RecordsOfTurn(acted=(censor.id,)))

    async def counted() -> tuple[int, State]:
        now = await house.records.get(Scope("acme"), censor.id)
        return now.false_positives, now.state

    for number in range(4):
        await house.react("👎", on=str(number))
    assert await counted() == (1, censor.state)
    for number in range(3):
        await house.react("", "👎", on=str(number))
    assert await counted() == (1, censor.state)
    await house.react("", "👎", on="3")
    assert await counted() == (0, censor.state)
    for number in range(3):
        await house.react("👎", on="0", by=f"telegram:{number}")
    assert await counted() == (3, State.RETIRED)


async def test_a_redelivered_reaction_does_not_bring_back_what_was_taken_back_since(house: House) -> None:
    await house.answer("t1")

    async def at(second: int, emoji: str, *gone: str) -> None:
        when = datetime(2026, 11, 22, 10, 0, second, tzinfo=UTC)
        message = InboundMessage(
            "telegram", "-1", "9", Author("502"), "", InboundKind.REACTION, when, reaction=emoji, unreacted=gone
        )
        await house.marking.mark_by_reaction(message, GROUP)

    await at(1, "👍")
    await at(2, "", "👍")
    await at(1, "👍")
    assert await house.shown() == []


async def test_a_workspace_that_was_deleted_and_made_anew_shows_nothing_of_what_it_held(house: House) -> None:
    await house.answer("t1")
    await house.react("👍")
    elsewhere = karma_on(house.redis)
    assert (await house.look(karma=elsewhere)).turns == {"t1"}
    await house.redis.flushall()
    await house.answer("t2")
    await house.react("👍")
    assert (await house.look(karma=elsewhere)).turns == {"t2"}


class Overtaken(MarkStore):
    """Before the next mark is stored, something else happens once."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def change(self, *given: Any) -> Any:
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        return await super().change(*given)


async def test_a_turn_that_is_forgotten_while_it_is_marked_stays_forgotten(redis: Redis) -> None:
    """By its first mark, and by one more beside another's."""
    store = Overtaken(redis)
    house = House(redis, store)

    async def forget() -> None:
        await house.manifests.forget(GROUP.scope, ["t1"])
        await house.marking.forget_conversation(GROUP)

    for first in ((), (LENA,)):
        await house.answer("t1")
        for by in first:
            await house.react("👍", by=by)
        store.meanwhile = forget
        assert await house.react("👍") == "unknown_reply"
        assert await house.store.get(GROUP.scope, "t1") is None
