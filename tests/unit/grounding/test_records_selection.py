"""Which records a prompt shows: what bears on the message, in order of worth, within the room there is; and which
censors act."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.message import ConversationKey, Scope
from grounding.memory.frames import LOADED, SHIPPED, choose
from grounding.memory.global_context import foreign_text_in
from grounding.memory.records import FoundRecord, Provenance, Record, Records, State, Type
from grounding.memory.selection import (
    RULES_TOKENS,
    Floor,
    Level,
    RecordSelector,
    RuleSelector,
    ScopeState,
    Selected,
    as_selected,
    floor_for,
    rules_for,
    triggered_censors,
)
from grounding.memory.selection.censors import in_force
from grounding.memory.selection.selection import (
    LastSelection,
    Scored,
    fill,
    message_budgets,
    ranked,
    without_repeated,
)
from grounding.prompt import build_prompt, record_line
from grounding.prompt_input import load_tokens
from grounding.retrieval import term_set
from runtime.llm import Completion, ToolCall
from runtime.turns.censors import censor_actions, triggered_by_call
from runtime.turns.rounds import Round
from runtime.turns.turn_state import BuiltPrompt
from tests.emulators.prompts import context

TOKENS = load_tokens()
TODAY = datetime(2026, 6, 1, tzinfo=UTC)
KEY = ConversationKey("acme", "http", "default")
ACME = Scope("acme")
BUDGETS = {Type.DECISION: 200, Type.FACT: 150, Type.PROCEDURE: 150, Type.EPISODE: 100, Type.ITEM: 50}
MANY_ITEMS = BUDGETS | {Type.ITEM: 300}
WORDS = Floor(0.0, dense=0.0, covered=4.0, sparse=0.0, constant=-1.0)


def record(name: str, text: str = "", of: Type = Type.FACT, **changes: Any) -> Record:
    states = {Type.FACT: State.NEW, Type.CENSOR: State.CREATED, Type.DECISION: State.RECORDED}
    fields: dict[str, Any] = {
        "text": text or name,
        "micro": (text or name)[:60],
        "summary": text or name,
        "state": states.get(of, State.ACTIVE),
        "created_at": "2026-05-30T10:00:00Z",
        "changed_at": "2026-05-30T10:00:00Z",
        "provenance": Provenance(),
    }
    return Record(id=name, type=of, **(fields | changes))


def costs(one: Record, level: Level) -> int:
    return TOKENS.count(record_line(as_selected(one, level), with_id=True)) + 1


RECORDS = st.builds(
    lambda number, of, text, days, state, outcome, uses, sure: record(
        f"r{number}",
        text,
        of,
        state=state,
        outcome=outcome,
        activations=uses,
        confidence=sure,
        changed_at=f"2026-{days % 12 + 1:02}-{days % 28 + 1:02}T00:00:00Z",
        superseded_by=f"r{(number + 1) % 12}" if state is State.SUPERSEDED else "",
    ),
    st.integers(0, 11),
    st.sampled_from(LOADED),
    st.text(max_size=200),
    st.integers(0, 400),
    st.sampled_from([State.NEW, State.CORE, State.SUPERSEDED, State.EFFECTIVE, State.DONE]),
    st.sampled_from([None, "success", "failure"]),
    st.integers(0, 1000),
    st.floats(0, 1),
)
FOUND = st.lists(
    st.tuples(st.builds(FoundRecord, RECORDS, st.floats(-1, 1), st.floats(0, 20)), st.floats(-5, 5)),
    max_size=12,
    unique_by=lambda pair: pair[0].record.id,
)
FRAMES = st.sampled_from(list(SHIPPED.by_name.values()))


@given(FOUND, FRAMES, st.floats(-5, 5))
def test_no_boost_lifts_a_record_over_the_floor(
    found: list[tuple[FoundRecord, float]], frame: Any, minimum: float
) -> None:
    kept = ranked(found, frame, minimum, TODAY)

    assert {one.record.id for one in kept} == {one.record.id for one, bears in found if bears >= minimum}
    assert kept == ranked(list(reversed(found)), frame, minimum, TODAY)


@given(FOUND, FRAMES)
def test_a_superseded_record_stands_below_the_one_that_took_its_place(
    found: list[tuple[FoundRecord, float]], frame: Any
) -> None:
    order = [one.record.id for one in ranked(found, frame, -9.0, TODAY)]
    by_id = {one.record.id: one.record for one, _ in found}
    for name, one in by_id.items():
        chain, at = {name}, one.superseded_by
        while at in by_id and at not in chain:
            chain.add(at)
            at = by_id[at].superseded_by
        if one.superseded_by in by_id and at not in chain:  # in a ring nobody is the newer one
            assert order.index(one.superseded_by) < order.index(name)


@given(FOUND, FRAMES, st.floats(0.5, 1.5), st.lists(st.integers(0, 300), min_size=5, max_size=5))
@settings(deadline=None)
def test_no_budget_is_exceeded_and_nothing_is_shown_in_full(
    found: list[tuple[FoundRecord, float]], frame: Any, scale: float, base: list[int]
) -> None:
    budgets = message_budgets(dict(zip(LOADED, base, strict=True)), frame, scale)
    order = ranked(found, frame, -9.0, TODAY)
    filled = fill(order, budgets, costs)

    assert sum(one.tokens for one in filled) <= sum(budgets.values()) <= sum(base) * scale
    assert all(one.tokens == costs(one.scored.record, one.level) for one in filled)
    assert filled == fill(order, budgets, costs)


def test_the_frame_and_the_outcome_order_what_is_as_similar() -> None:
    found = [
        (FoundRecord(record("fact", "a"), 0.5, 1.0), 1.0),
        (FoundRecord(record("failed", "b", Type.DECISION, outcome="failure"), 0.5, 1.0), 1.0),
        (FoundRecord(record("went well", "c", Type.DECISION, outcome="success"), 0.5, 1.0), 1.0),
    ]

    def order(frame: str) -> list[str]:
        return [one.record.id for one in ranked(found, SHIPPED[frame], 0.0, TODAY)]

    assert order("decision") == ["went well", "failed", "fact"]
    assert order("question")[0] == "fact"


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("Tim prefers Celsius", True),
        ("Tim prefers the Celsius", True),
        ("Tim does not prefer Celsius", False),
        ("Tim prefers 20 degrees Celsius", False),
        ("Lena prefers Celsius to anything", False),
        ("Celsius prefers Tim", False),
        ("We keep Redis", False),
    ],
)
def test_what_the_prompt_says_anyway_is_dropped_unless_a_word_or_a_figure_differs(text: str, repeats: bool) -> None:
    found = [Scored(record("r", text), 1, 1, 1)]
    shown = ["Ann: by the way, Tim prefers Celsius to anything\nBo: Do we keep Redis?"]

    assert (without_repeated(found, shown) == []) is repeats


def test_records_that_differ_in_a_name_a_figure_or_an_outcome_are_all_shown() -> None:
    records = [
        *(record(name, f"{name} has the key to the storage room") for name in ("Anna", "Bert", "Will")),
        record("again", "Anna has the key to the storage room."),
        record("price", "The deposit for a rented boat is 20 euros"),
        record("new price", "The deposit for a rented boat is 20.50 euros"),
        record("won", "We tried the new supplier for a month", Type.DECISION, outcome="success"),
        record("lost", "We tried the new supplier for a month", Type.DECISION, outcome="failure"),
    ]

    kept = without_repeated([Scored(one, 1, 1, 1) for one in records], ["Lena: We tried the new supplier for a month"])

    assert [one.record.id for one in kept] == ["Anna", "Bert", "Will", "price", "new price", "won", "lost"]


def test_a_record_is_as_old_as_what_it_tells_however_lately_it_was_written() -> None:
    found = [
        (FoundRecord(record("old", created_at="2025-04-27T10:00:00Z", changed_at="2026-05-31T10:00:00Z"), 0.5, 1), 1.0),
        (
            FoundRecord(record("recent", created_at="2026-05-20T10:00:00Z", changed_at="2026-05-20T10:00:00Z"), 0.5, 1),
            1.0,
        ),
    ]

    assert [one.record.id for one in ranked(found, SHIPPED["question"], 0.0, TODAY)] == ["recent", "old"]


def test_a_likely_record_is_above_the_floor_and_an_unrelated_one_below() -> None:
    floor = floor_for("wordllama-l2-supercat")
    asked = "Should we use Redis for caching?"
    near = FoundRecord(record("near", "Chose Redis over Memcached for caching sessions"), 0.6, 8.0)
    far = FoundRecord(record("far", "Lena's birthday is in May"), 0.05, 0.0)

    assert floor.relevance(asked, near, 100) > floor.minimum > floor.relevance(asked, far, 100)


CENSORS = (
    record(
        "b", "Never push to main", Type.CENSOR, trigger="push to main|force push", severity="block", reason="it broke"
    ),
    record("w", "Do not promise dates", Type.CENSOR, trigger="by monday"),
    record("e", "Escalated", Type.CENSOR, trigger="straße", state=State.ESCALATED),
    record("gone", "Retired", Type.CENSOR, trigger="push", state=State.RETIRED),
    record("theirs", "Stop everything", Type.CENSOR, trigger="the", provenance=Provenance(origin="retrieved")),
)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("I will PUSH to Main now.", ["b"]),
        ("git push --force to maintain", []),
        ("It is done by Monday, in the Strasse", ["w", "e"]),
        ("die Straße", ["e"]),
        ("", []),
    ],
)
def test_censors_are_set_off_by_whole_words_and_phrases(text: str, ids: list[str]) -> None:
    assert [one.id for one in triggered_censors(in_force(CENSORS), text)] == ids


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        ("falcon", "Falcon's launch is near"),
        ("falcon", "the falcon-based one"),
        ("project falcon", "project-falcon"),
        ("project falcon", "project_falcon\nis next"),
        ("password", "pass\u200bword, pass\u00adword"),
        ("password", "pass**word** and `pass`word"),
        ("blue heron", "the [Blue](https://example.com/x_1) [Heron](y)"),
        ("password", "pass[wo](z)rd"),
        ("password", "p\u0336a\u0336ssword"),
        ("password", "ｐａｓｓｗｏｒｄ"),
        ("秘密の鳥", "それは秘密の鳥です。"),
        ("비밀번호", "비밀번호는 없습니다"),
        ("รหัสผ่าน", "นี่คือรหัสผ่านของคุณ"),
        ("l'argent", "tout l\u2019argent du monde"),
        ("last words", "x " * 60_000 + "last words"),
    ],
)
def test_what_joins_or_invisibly_parts_words_hides_none_from_a_censor(trigger: str, text: str) -> None:
    censor = record("c", "Say nothing of it", Type.CENSOR, trigger=trigger)

    assert triggered_censors(in_force([censor]), text)


@pytest.mark.parametrize(
    ("trigger", "text"), [("falcon", "falconry"), ("秘密", "秘の密"), ("2 3", "23"), ("a|--", "-")]
)
def test_parts_of_words_set_no_censor_off(trigger: str, text: str) -> None:
    censor = record("c", "Say nothing of it", Type.CENSOR, trigger=trigger)

    assert not triggered_censors(in_force([censor]), text)


@pytest.mark.parametrize(
    "arguments",
    ['{"words": "Plan:\\nfalcon\\tflies"}', '{"a": [{"fal\\u0063on": 1}]}', '{"words": "the falcon', '"x\\rfalcon"'],
)
def test_how_a_call_writes_its_arguments_hides_no_word_of_them(arguments: str) -> None:
    censor = record("c", "Say nothing of it", Type.CENSOR, trigger="falcon")

    assert triggered_by_call(in_force([censor]), ToolCall("1", "note", arguments))


@given(st.text(max_size=60), st.text(alphabet="abö秘한 -", min_size=1, max_size=12), st.text(max_size=60))
def test_a_trigger_between_blanks_is_always_found(before: str, trigger: str, after: str) -> None:
    censor = record("c", "Say nothing of it", Type.CENSOR, trigger=trigger)
    has_words = any(map(str.isalnum, trigger))

    assert bool(triggered_censors(in_force([censor]), f"{before} {trigger} {after}")) >= has_words


def test_a_warning_that_what_was_said_beside_a_tool_call_set_off_counts_once_it_was_put_to_the_model() -> None:
    """The whole answer is written anew then, and what was said first is in none of it."""
    held = context(censors=in_force(CENSORS))
    looked_up = Round(Completion("You have it by Monday. Let me look.", "m", tool_calls=(ToolCall("1", "find", "{}"),)))
    draft = Round(Completion("It is on its way.", "m", warned="It may go against a rule."))
    built = BuiltPrompt(held, build_prompt(held, TOKENS), 1.0)

    told = censor_actions(built, [looked_up, draft], Completion("It is on its way, I cannot say until when.", "m"))

    assert [(one.censor.id, one.where) for one in told] == [("w", "reply")]


def test_which_censors_hold_is_remembered_and_not_known_of_whom_nobody_looked_at() -> None:
    selecting = Conversation(*CENSORS).selecting
    asyncio.run(selecting.standing(ACME))

    assert {one.id for one in selecting.last_censors(ACME) or ()} == {"b", "w", "e"}
    assert selecting.last_censors(Scope("acme", audience="http:u1")) is None
    assert selecting.last_censors(Scope("other")) is None


def test_an_escalated_censor_blocks_and_foreign_words_bind_nobody() -> None:
    assert {one.id: one.severity for one in in_force(CENSORS)} == {"b": "block", "w": "warn", "e": "block"}


class Held(Records):
    """Records in a list, found by the words that they share with a question; counts the searches."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.searches = 0

    async def search(self, scope: Scope, query: str, top_k: int, types: Collection[Type] = ()) -> Sequence[FoundRecord]:
        self.searches += 1
        wanted = term_set(query)
        shared = [(len(wanted & term_set(one.text)) / max(len(wanted), 1), one) for one in self.records]
        return [FoundRecord(one, share, share) for share, one in shared if share and one.type in types][:top_k]

    async def search_by_type(self, scope: Scope, query: str, limits: Any) -> Sequence[FoundRecord]:
        return await self.search(scope, query, 40, limits) if query else []

    async def standing(self, scope: Scope, newest: Any = None) -> Sequence[Record]:
        return [one for one in self.records if one.type is Type.CENSOR or one.verbatim]

    async def get(self, scope: Scope, record_id: str) -> Record:
        return next(one for one in self.records if one.id == record_id)

    async def read(self, scope: Scope, ids: Collection[str]) -> list[Record]:
        by_id = {one.id: one for one in self.records}
        return [by_id[name] for name in ids if name in by_id]

    async def count(self, scope: Scope) -> int:
        return len(self.records)

    async def list(
        self, scope: Scope, types: Any = (), states: Any = (), limit: int = 100, before: str = "", *, own: bool = False
    ) -> list[Record]:
        return [one for one in self.records if one.type in types and one.state in states]


class Noted:
    """The selections that were kept."""

    def __init__(self) -> None:
        self.kept: dict[str, LastSelection] = {}

    async def get(self, key: ConversationKey) -> LastSelection | None:
        return self.kept.get(key.encoded)

    async def keep(self, key: ConversationKey, kept: LastSelection) -> None:
        self.kept[key.encoded] = kept


class Conversation:
    """Messages one after the other, as a pipeline asks for their records."""

    def __init__(self, *records: Record, budgets: dict[Type, int] = BUDGETS) -> None:
        self.held, self.noted = Held(*records), Noted()
        self.selecting = RecordSelector(
            self.held,
            self.noted,  # type: ignore[arg-type]
            budgets=budgets,
            costs=costs,
            floor=lambda _: WORDS,
            now=lambda: TODAY,
        )
        self.before: list[str] = []

    def says(self, text: str, shown: Sequence[str] = ()) -> Selected:
        async def asked() -> Selected:
            chosen = choose(text, earlier=self.before)
            standing = await self.selecting.standing(ACME)
            there = ScopeState(await self.held.count(ACME), await self.noted.get(KEY))
            looked = await self.selecting.look(ACME, text, chosen, self.before, there, standing.pinned)
            selected = await self.selecting.selected(looked, text, chosen, shown)
            if selected.keep is not None:
                await self.selecting.keep(KEY, selected.keep)
            return selected

        selected = asyncio.run(asked())
        self.before = [text]
        return selected


REDIS = record("redis", "We chose Redis for caching sessions", Type.DECISION)
COST = record("cost", "Redis caching costs 40 euros a month")
HOLIDAY = record("holiday", "Lena's holiday request waits for approval", Type.ITEM, state=State.OPEN)


def ids(selected: Selected) -> list[str]:
    return [one.id for one in selected.records]


def test_a_workspace_without_records_is_never_searched() -> None:
    talk = Conversation()

    assert talk.says("Should we use Redis for caching?").selection.why == "nothing_kept"
    assert talk.held.searches == 0


def test_records_stay_the_same_while_the_message_is_about_them() -> None:
    talk = Conversation(REDIS, COST, HOLIDAY)
    first = talk.says("Should we use Redis for caching?")
    second = talk.says("Should we really prefer Redis?")
    third = talk.says("ok, and?")

    assert (first.selection.why, second.selection.why, third.selection.why) == ("cold", "reused", "reused")
    assert ids(first) == ids(second) == ids(third)
    assert set(ids(first)) == {"redis", "cost"}
    assert first.selection.budget == third.selection.budget


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("Should we approve the holiday request of Lena?", "topic"),
        ("Redis caching fails with an error", "frame"),
        ("Go ahead with Redis caching", "acting"),
    ],
)
def test_records_are_chosen_anew_when_the_message_leaves_them(then: str, why: str) -> None:
    talk = Conversation(REDIS, COST, HOLIDAY)
    talk.says("Should we decide on Redis for caching?")

    assert talk.says(then).selection.why == why


@pytest.mark.parametrize("then", ["How much is Redis caching?", "Should we decide on Redis caching after the error?"])
def test_a_message_that_only_leans_towards_another_frame_leaves_the_records_as_they_are(then: str) -> None:
    talk = Conversation(REDIS, COST, HOLIDAY)
    first = talk.says("Should we decide on Redis for caching?")
    again = talk.says(then)

    assert (again.selection.why, ids(again)) == ("reused", ids(first))


def test_who_comes_back_to_a_subject_finds_its_records_still_there() -> None:
    talk = Conversation(REDIS, COST, HOLIDAY)
    talk.says("Should we decide on Redis for caching?")
    left = talk.says("Should we approve the holiday request of Lena?")
    back = talk.says("Should we really prefer Redis?")

    assert ids(left)[0] == "holiday"
    assert {*ids(left)} == {"holiday", "redis", "cost"}
    assert (back.selection.why, ids(back)) == ("reused", ids(left))


def test_a_message_that_no_record_bears_on_is_shown_none_and_the_next_one_finds_them_again() -> None:
    talk = Conversation(REDIS, COST, record("word", "Round no price", verbatim=True))
    first = talk.says("Should we use Redis for caching?")
    aside = talk.says("Should we compare moon landings on television?")
    back = talk.says("Should we really prefer Redis?")

    assert (aside.selection.why, ids(aside)) == ("aside", ["word"])
    assert (back.selection.why, ids(back)) == ("reused", ids(first))


def test_a_record_that_is_gone_or_superseded_is_not_shown_from_what_was_kept() -> None:
    talk = Conversation(REDIS, COST)
    talk.says("Should we use Redis for caching?")
    talk.held.records = [REDIS.model_copy(update={"state": State.SUPERSEDED, "superseded_by": "x"})]

    again = talk.says("Should we really prefer Redis?")

    assert again.selection.why == "changed"
    assert ids(again) == ["redis"]


def test_what_is_kept_word_for_word_is_shown_whole_whatever_is_asked() -> None:
    whole = "Round no price. " * 8
    talk = Conversation(REDIS)
    talk.says("Should we use Redis for caching?")
    talk.held.records.append(record("word", whole, summary="short", verbatim=True))

    again = talk.says("Should we really prefer Redis?")
    later = talk.says("Should we prefer Redis after all?")

    assert (again.selection.why, later.selection.why) == ("changed", "reused")
    assert ids(again) == ["word", "redis"]
    assert again.records[0].text == whole


def test_an_edited_record_is_shown_as_it_reads_now() -> None:
    talk = Conversation(REDIS, COST)
    talk.says("Should we use Redis for caching?")
    talk.held.records = [REDIS.model_copy(update={"summary": "We chose Redis, for sessions only"}), COST]

    again = talk.says("Should we really prefer Redis?")

    assert again.selection.why == "reused"
    assert "for sessions only" in again.records[0].text


@pytest.mark.parametrize(("origin", "foreign"), [("retrieved", "retrieved"), ("others", "others"), ("extraction", "")])
def test_a_record_that_came_of_foreign_words_makes_what_is_written_next_foreign(origin: Any, foreign: str) -> None:
    told = Conversation(REDIS.model_copy(update={"provenance": Provenance(origin=origin)}))
    records = told.says("Should we use Redis for caching?").records

    assert foreign_text_in(context(records=records, passages=())) == foreign


def item(name: str, text: str, due: str, state: State = State.OPEN) -> Record:
    return record(name, text, Type.ITEM, kind="task", due=due, state=state)


VAT = item("vat", "Submit the VAT return", "2026-06-04")
PRINTER = item("printer", "Call the printer", "2026-06-02T15:00:00Z")
MOORING = item("mooring", "Renew the mooring", "2026-06-30", State.DONE)
PAINT = item("paint", "Order paint", "2026-07-01")


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("What is on 4 June?", ["vat"]),
        ("What's on Thursday?", ["vat"]),
        ("And tomorrow?", ["printer"]),
        ("What comes this month?", ["printer", "vat"]),
        ("What comes next month?", ["paint"]),
        ("What is due?", ["printer", "vat", "paint"]),
    ],
)
def test_open_items_are_found_by_their_day_the_soonest_first(text: str, due: list[str]) -> None:
    assert ids(Conversation(VAT, PRINTER, MOORING, PAINT, budgets=MANY_ITEMS).says(text)) == due


def test_what_is_due_takes_the_budget_of_the_items_and_no_more() -> None:
    many = [item(f"i{n:02}", f"Paint the boat number {n}", f"2026-06-{n + 1:02}") for n in range(28)]
    shown = Conversation(*many, budgets=MANY_ITEMS).says("What comes this month?").records

    assert [one.id for one in shown] == [one.id for one in many][: len(shown)]
    assert 200 < sum(one.tokens for one in shown) <= 300


# Standing rules


def rule(name: str, text: str, day: int = 1, **changes: Any) -> Record:
    by = Provenance(author="http:u1", context_id="http:team", origin="extraction")
    at = f"2026-05-{day:02}T10:00:00Z"
    return record(name, text, Type.RULE, **{"provenance": by, "created_at": at, **changes})


METRIC = rule("metric", "Use metric units when I ask about distances")
GERMAN = rule("german", "From now on answer in German")
TRAINS = rule("trains", "I prefer trains over planes")


def rules_told(
    *rules: Record, text: str, model: str = "wordllama-l2-supercat", earlier: Sequence[str] = ()
) -> list[str]:
    selecting = RuleSelector(Held(*rules), costs=costs, model=lambda _: model)
    newest = sorted(rules, key=lambda one: one.created_at, reverse=True)
    return [one.id for one in asyncio.run(selecting.select(ACME, newest, text, earlier))]


def test_a_general_rule_is_always_told_and_another_if_the_message_is_like_it() -> None:
    assert rules_told(METRIC, GERMAN, TRAINS, text="What distances do runners cover?") == ["german", "metric"]
    assert rules_told(METRIC, GERMAN, TRAINS, text="Should I take trains or planes?") == ["german", "trains"]
    assert rules_told(METRIC, GERMAN, TRAINS, text="Who painted the ceiling?") == ["german"]
    assert rules_told(METRIC, text="and Rome?", earlier=["What distances lie between capitals?"]) == ["metric"]


def test_with_an_embedding_model_that_was_not_measured_all_rules_that_the_search_finds_are_told() -> None:
    barely = rules_told(
        METRIC, text=f"Tell me of distances and {' '.join(f'thing{n}' for n in range(30))}", model="own/one"
    )
    assert barely == ["metric"]
    assert rules_told(METRIC, text=f"Tell me of distances and {' '.join(f'thing{n}' for n in range(30))}") == []


class HeldDeeply(Held):
    """Records whose deeper cosines are given, whatever words they share."""

    def __init__(self, deep: Mapping[str, float], *records: Record) -> None:
        super().__init__(*records)
        self.deep = deep

    async def search_by_type(self, scope: Scope, query: str, limits: Any) -> Sequence[FoundRecord]:
        return [FoundRecord(one, 0.12, 0.0, self.deep[one.id]) for one in self.records]


def test_the_deeper_model_decides_where_it_is_there() -> None:
    held = HeldDeeply({"metric": 0.05, "trains": 0.2}, METRIC, TRAINS)
    selecting = RuleSelector(held, costs=costs, model=lambda _: "wordllama-l2-supercat")
    told = asyncio.run(selecting.select(ACME, [METRIC, TRAINS], "How do I get to Rome?", []))
    assert [(one.id, one.similarity) for one in told] == [("trains", 0.2)]


def test_of_too_many_rules_the_likest_and_of_the_general_ones_the_newest_are_told_in_the_order_of_their_days() -> None:
    general = [rule(f"g{day:02}", f"Never use word {day} {'and others ' * 8}in answers", day) for day in range(1, 29)]
    told = rules_told(*general, METRIC, text="What distances are there?")
    assert told[0] == "metric"
    assert told[1:] == [one.id for one in general][-len(told[1:]) :]
    assert len(general) > len(told) > 4
    line = sum(costs(one, "summary") for one in (*general, METRIC) if one.id in told)
    assert line <= RULES_TOKENS


def test_a_rule_of_a_group_is_for_who_said_it_and_one_of_a_direct_message_or_set_by_hand_for_its_readers() -> None:
    mine, others = rule("mine", "Answer in German from now on"), rule("others", "Answer in French from now on")
    others = others.model_copy(update={"provenance": others.provenance.model_copy(update={"author": "http:u2"})})
    direct = others.model_copy(update={"id": "direct", "audience": "http:u1"})
    by_hand = others.model_copy(update={"id": "hand", "provenance": Provenance(author="admin")})
    foreign = mine.model_copy(update={"id": "f", "provenance": Provenance(author="http:u1", origin="retrieved")})
    everything = [mine, others, direct, by_hand, foreign]
    assert {one.id for one in rules_for("http:u1", everything)} == {"mine", "direct", "hand"}
    assert {one.id for one in rules_for("", everything)} == {"direct", "hand"}
