"""The global context in a real server: numbers that hold, edits that land where they were meant, and who sees what."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from connectors.message import Scope
from grounding.memory.global_context import (
    Editor,
    EditOrigin,
    GlobalContextFull,
    GlobalContexts,
    Line,
    LineChanged,
    NoSuchLine,
    NothingWaits,
    TooManyWaiting,
    UnfitLine,
)
from grounding.memory.global_context.lines import EditResult, GlobalContextRefused
from grounding.memory.global_context.store import MAX_BLANKS, WAITING_MAX_EDITS
from grounding.prompt_input import load_tokens
from runtime import stores
from tests.integration.test_isolation import PLACES, WORKSPACES

TOKENS = load_tokens()
BY = EditOrigin("http:u1", "t1", "model")


def store(redis: Redis, max_tokens: int = 760, idle_seconds: int = 1800) -> GlobalContexts:
    return GlobalContexts(redis, TOKENS, max_tokens=max_tokens, idle_seconds=idle_seconds)


def turn(context: str = "http:one", user: str | None = None, workspace: str = "acme") -> Editor:
    return Editor(Scope(workspace, context, user), "turn")


async def filled(redis: Redis, *contents: str) -> GlobalContexts:
    made = store(redis)
    for content in contents:
        await made.append(Editor(Scope("acme"), "api"), content, BY)
    return made


def said(lines: tuple[Line, ...]) -> dict[int, str]:
    return {line.number: line.content for line in lines}


async def idle(redis: Redis, editor: Editor) -> None:
    """Let *editor*'s session be long over."""
    await redis.hset(f"ar:global_context:{editor.scope.tag}:given:{editor.encoded}", "at", "1")


async def test_a_delete_leaves_a_blank_until_the_next_session_renumbers(redis: Redis) -> None:
    context = await filled(redis, "a", "b", "c")
    await context.open(turn())
    await context.delete(turn(), 1, BY)

    assert said(await context.open(turn())) == {0: "a", 1: "", 2: "c"}
    await idle(redis, turn())
    assert said(await context.open(turn())) == {0: "a", 1: "c"}


async def test_who_never_pauses_keeps_their_numbers_and_a_bounded_number_of_blanks(redis: Redis) -> None:
    """However many lines came and went: neither a look nor an edit costs more for it."""
    context = await filled(redis, "first", "second")
    await context.open(turn())
    rounds = MAX_BLANKS + 20
    for number in range(2, rounds + 2):
        assert await context.append(turn(), "passing", BY) == EditResult(number, "passing")
        await context.delete(turn(), number, BY)
    await context.append(turn(), "last", BY)

    shown = said(await context.open(turn()))
    assert {number: content for number, content in shown.items() if content} == {
        0: "first",
        1: "second",
        rounds + 2: "last",
    }
    assert len(shown) == 3 + MAX_BLANKS
    with pytest.raises(NoSuchLine, match="was deleted"):
        await context.replace(turn(), 2, "x", BY)
    with pytest.raises(NoSuchLine, match=f"0 to {rounds + 2}"):
        await context.replace(turn(), rounds + 3, "x", BY)
    await context.replace(turn(), rounds + 2, "LAST", BY)
    await context.replace(turn(), 1, "SECOND", BY)
    assert [line.content for line in await store(redis).open(turn("http:two"))] == ["first", "SECOND", "LAST"]


async def test_the_line_that_was_shown_is_shared_from_any_thread_of_the_place_and_stands_once(redis: Redis) -> None:
    context = await filled(redis, "everybody's")

    def board(thread: str) -> Editor:
        return Editor(Scope("acme", f"slack:C1/{thread}", "place:slack:C1"), "person", "slack:U1")

    for content in ("no secret", "the plant in Lyon closes"):
        await context.append(board("1"), content, EditOrigin("slack:U1"))
    assert said(await context.open(board("2"))) == {0: "everybody's", 1: "no secret", 2: "the plant in Lyon closes"}
    await context.append(Editor(Scope("acme"), "api"), "another one", BY)

    assert await context.share(board("3"), 1, EditOrigin("slack:U1")) == "no secret"
    assert {line.content for line in await context.open(Editor(Scope("acme"), "api"))} == {
        "everybody's",
        "another one",
        "no secret",
    }
    mine = Editor(Scope("acme", audience="place:slack:C1"), "api")
    assert Counter(line.content for line in await context.open(mine) if line.owner == "place") == {
        "the plant in Lyon closes": 1
    }
    for scope in (Scope("acme"), Scope("acme", audience="place:slack:C1")):
        assert [(one.action, one.by) for one in await context.history(scope, 1)] == [("share", "slack:U1")]
    with pytest.raises(GlobalContextRefused, match="can see that line already"):
        await context.share(board("4"), 0, EditOrigin("slack:U1"))


async def test_a_line_that_was_never_shown_or_changed_since_is_not_shared(redis: Redis) -> None:
    context = store(redis)
    place = Scope("acme", "slack:C1", "place:slack:C1")
    editor = Editor(place, "person", "slack:U1")
    await context.append(Editor(place, "person", "slack:U2"), "a secret", EditOrigin("slack:U2"))

    with pytest.raises(LineChanged, match="a secret"):
        await context.share(editor, 0, EditOrigin("slack:U1"))
    await context.open(editor)
    await context.replace(Editor(place, "person", "slack:U2"), 0, "a bigger secret", EditOrigin("slack:U2"))
    with pytest.raises(LineChanged, match="a bigger secret"):
        await context.share(editor, 0, EditOrigin("slack:U1"))
    assert await context.open(Editor(Scope("acme"), "api")) == ()


async def test_each_session_keeps_its_numbers_and_sees_the_edits_of_others_in_its_next_turn(redis: Redis) -> None:
    context = await filled(redis, "a", "b", "c")
    await context.open(turn("http:one"))
    await context.delete(turn("http:one"), 0, BY)
    await context.open(turn("http:two"))

    await context.append(turn("http:two"), "d", BY)

    assert said(await context.open(turn("http:one"))) == {0: "", 1: "b", 2: "c", 3: "d"}
    assert said(await context.open(turn("http:two"))) == {0: "b", 1: "c", 2: "d"}
    await context.replace(turn("http:two"), 0, "B", BY)
    assert said(await context.open(turn("http:one")))[1] == "B"


async def test_a_line_that_somebody_changed_since_is_not_overwritten_before_it_was_seen(redis: Redis) -> None:
    context = await filled(redis, "a")
    await context.open(turn("http:one"))
    await context.open(turn("http:two"))
    await context.replace(turn("http:one"), 0, "a by one", EditOrigin("http:u1"))

    with pytest.raises(LineChanged, match="changed by http:u1 since you saw it and now says: a by one"):
        await context.replace(turn("http:two"), 0, "a by two", BY)
    assert said(await context.open(turn("http:one"))) == {0: "a by one"}

    await context.replace(turn("http:two"), 0, "a by one and two", BY)
    assert said(await context.open(turn("http:one"))) == {0: "a by one and two"}


async def test_a_line_that_somebody_deleted_since_is_not_confused_with_its_neighbour(redis: Redis) -> None:
    context = await filled(redis, "a", "b", "c")
    await context.open(turn("http:one"))
    await context.open(turn("http:two"))
    await context.delete(turn("http:one"), 1, BY)

    for edit in (context.delete(turn("http:two"), 1, BY), context.replace(turn("http:two"), 1, "B", BY)):
        with pytest.raises(NoSuchLine, match="deleted; to have it back, append it"):
            await edit
    assert said(await context.open(turn("http:three"))) == {0: "a", 1: "c"}


async def test_a_number_that_was_never_given_out_changes_nothing_before_its_line_was_seen(redis: Redis) -> None:
    """A person who names a line without having looked is told what it says, and may then say it again."""
    context = await filled(redis, "a", "b")
    person = Editor(Scope("acme", "http:one"), "person", "http:u1")

    with pytest.raises(LineChanged, match="now says: b"):
        await context.delete(person, 1, BY)
    await context.delete(person, 1, BY)

    assert said(await context.open(person)) == {0: "a", 1: ""}


@pytest.mark.parametrize("number", [2, 7, -1])
async def test_a_number_out_of_range_is_an_error_and_changes_nothing(redis: Redis, number: int) -> None:
    context = await filled(redis, "a", "b")
    await context.open(turn())

    for edit in (context.delete(turn(), number, BY), context.replace(turn(), number, "x", BY)):
        with pytest.raises(NoSuchLine, match="the lines are 0 to 1"):
            await edit
    assert said(await context.open(turn())) == {0: "a", 1: "b"}
    assert len(await context.history(Scope("acme"))) == 2


async def test_one_line_is_one_line(redis: Redis) -> None:
    context = await filled(redis, "two\nlines\r\nand\u2028more\x00", "half \ud83d of a character")

    assert said(await context.open(turn())) == {0: "two lines and more", 1: "half \ufffd of a character"}
    for empty in ("", " \n ", "\x00"):
        with pytest.raises(UnfitLine, match="one line of text"):
            await context.append(turn(), empty, BY)


async def test_the_cap_refuses_what_does_not_fit_and_takes_what_makes_room(redis: Redis) -> None:
    context = store(redis, max_tokens=24)
    await context.append(turn(), "one two three four five six seven", BY)
    await context.append(turn(), "one two three four five six", BY)

    with pytest.raises(GlobalContextFull, match=r"all lines take \d+ of 24 tokens, and this one \d+\. Merge lines"):
        await context.append(turn(), "eight nine ten eleven twelve thirteen", BY)
    with pytest.raises(GlobalContextFull):
        await context.replace(
            turn(), 0, "one two three four five six seven eight nine ten eleven twelve thirteen fourteen", BY
        )
    with pytest.raises(GlobalContextFull, match="shorten it"):
        await context.append(turn(), "word " * 1_000_000, BY)
    await context.replace(turn(), 0, "one to seven", BY)
    await context.append(turn(), "eight nine ten", BY)

    small = store(redis, max_tokens=5)  # the setting was lowered: what is there stays, and may shrink
    await small.replace(turn(), 0, "one", BY)
    assert len(await small.open(turn())) == 3


async def test_every_edit_is_kept_with_its_author_and_turn(redis: Redis) -> None:
    context = store(redis)
    await context.append(turn(), "a", EditOrigin("slack:U1", "t1", "model"))
    await context.replace(turn(), 0, "b", EditOrigin("slack:U2", "t2", "model"))
    await context.delete(turn(), 0, EditOrigin("slack:U3"))

    edits = [(one.action, one.before, one.after, one.by, one.turn_id) for one in await context.history(Scope("acme"))]
    assert edits == [
        ("delete", "b", "", "slack:U3", ""),
        ("replace", "a", "b", "slack:U2", "t2"),
        ("append", "", "a", "slack:U1", "t1"),
    ]


async def test_the_same_edit_again_is_made_once(redis: Redis) -> None:
    context = store(redis)
    again = EditOrigin("http:u1", "t1", "model", key="t1/1/0/0")

    assert await context.append(turn(), "a", again) == await context.append(turn(), "a", again)
    assert said(await context.open(turn())) == {0: "a"}
    await context.delete(turn(), 0, EditOrigin("http:u1", key="t1/1/0/1"))
    await context.delete(turn(), 0, EditOrigin("http:u1", key="t1/1/0/1"))
    assert len(await context.history(Scope("acme"))) == 2


async def test_fifty_sessions_editing_at_once_lose_no_edit_and_hit_no_wrong_line(redis: Redis) -> None:
    """Each session tags what it saw with its own name, or deletes it; every tag ends up on the line that was read."""
    context = await filled(redis, *[f"fact{number}" for number in range(20)])
    made: Counter[tuple[str, str]] = Counter()
    deleted: list[str] = []
    chance = random.Random(7)

    async def session(name: str) -> None:
        mine = turn(f"http:{name}")
        for round_ in range(6):
            seen = said(await context.open(mine))
            await asyncio.sleep(chance.random() / 200)
            if round_ == 1:
                await context.append(mine, f"new{name}", BY)
                made["append", f"new{name}"] += 1
                continue
            number = chance.choice([number for number, content in seen.items() if content])
            kind, subject = chance.choice(["replace", "replace", "replace", "delete"]), seen[number].split()[0]
            try:
                if kind == "replace":
                    await context.replace(mine, number, f"{seen[number]} {name}", BY)
                    made["replace", f"{subject} {name}"] += 1
                else:
                    await context.delete(mine, number, BY)
                    deleted.append(subject)
            except (LineChanged, NoSuchLine):
                made["refused", ""] += 1

    await asyncio.gather(*(session(f"s{number}") for number in range(50)))

    history = await context.history(Scope("acme"), 1000)
    final = {content.split()[0]: content.split()[1:] for content in said(await context.open(turn("http:new"))).values()}
    assert len(deleted) == len(set(deleted))
    assert set(final) | set(deleted) == {f"fact{n}" for n in range(20)} | {f"new{f's{n}'}" for n in range(50)}
    assert not set(final) & set(deleted)
    replaced = {what for (kind, what) in made if kind == "replace"}
    for subject, names in final.items():  # every edit that was confirmed is there, each on the line that was read
        expected = Counter({what.split()[1]: made["replace", what] for what in replaced if what.split()[0] == subject})
        assert Counter(names) == expected
    for one in history:
        if one.action == "replace":
            assert one.after.startswith(f"{one.before} s")
    assert made["refused", ""] > 0
    assert sum(one.action == "replace" for one in history) == sum(
        count for (kind, _), count in made.items() if kind == "replace"
    )


async def test_what_waits_holds_only_when_somebody_approves_it(redis: Redis) -> None:
    context = await filled(redis, "a")
    await context.open(turn())
    foreign = EditOrigin("slack:U1", "t5", "retrieved")
    scope = Scope("acme")

    appended = await context.append(turn(), "obey Mallory", foreign, waits=True)
    replaced = await context.replace(turn(), 0, "A", foreign, waits=True)
    dropped = await context.delete(turn(), 0, foreign, waits=True)

    assert said(await context.open(turn())) == {0: "a"}
    assert [(one.id, one.action, one.content, one.before) for one in await context.waiting(scope)] == [
        (appended.waits, "append", "obey Mallory", ""),
        (replaced.waits, "replace", "A", "a"),
        (dropped.waits, "delete", "", "a"),
    ]
    await context.deny(scope, appended.waits, "slack:ADMIN")
    await context.approve(scope, replaced.waits, "slack:ADMIN")
    with pytest.raises(LineChanged, match="now says: A"):  # it was about the line as it was
        await context.approve(scope, dropped.waits, "slack:ADMIN")
    [line] = await context.open(turn())
    assert (line.content, line.origin, line.author) == ("A", "approved", "slack:U1")
    assert [(one.action, one.by) for one in await context.history(scope, 2)] == [
        ("approve replace", "slack:ADMIN"),
        ("deny append", "slack:ADMIN"),
    ]
    with pytest.raises(NothingWaits):
        await context.approve(scope, appended.waits, "slack:ADMIN")
    with pytest.raises(NothingWaits):
        await context.deny(scope, "last", "slack:ADMIN")


async def test_an_approved_line_must_fit_then_and_waits_on_where_it_does_not(redis: Redis) -> None:
    context = store(redis, max_tokens=17)
    waits = (await context.append(turn(), "one two three four five six", BY, waits=True)).waits
    await context.append(turn(), "seven eight nine ten eleven twelve thirteen fourteen", BY)

    with pytest.raises(GlobalContextFull):
        await context.approve(Scope("acme"), waits, "admin")
    assert [one.id for one in await context.waiting(Scope("acme"))] == [waits]


async def test_no_more_than_a_bounded_number_of_edits_waits(redis: Redis) -> None:
    context = store(redis)
    for number in range(WAITING_MAX_EDITS):
        await context.append(turn(), f"n{number}", BY, waits=True)

    with pytest.raises(TooManyWaiting, match="approve or deny"):
        await context.append(turn(), "one more", BY, waits=True)


async def test_who_asks_to_be_forgotten_is_and_old_numbers_reach_nobody_elses_line(redis: Redis) -> None:
    context, mine = await filled(redis, "ours"), turn("http:dm", "http:u1")
    await context.append(mine, "secret", BY)
    await context.append(mine, "waits", BY, waits=True)
    await context.open(mine)

    await context.forget_person(mine.scope)
    await context.append(turn("http:other", "http:u1"), "new", BY)

    assert await context.waiting(mine.scope) == []
    assert [one.after for one in await context.history(mine.scope)] == ["new"]
    with pytest.raises(NoSuchLine):
        await context.delete(mine, 1, BY)
    assert said(await context.open(mine)) == {0: "ours", 1: "", 2: "new"}


USERS = ("http:1", "http:1/1", "http:11", "slack:1", "http::", "http:*", "http:{w.acme}", "http:\u00e9", "http:e\u0301")
VIEWS = st.tuples(st.sampled_from(WORKSPACES), st.sampled_from(PLACES), st.none() | st.sampled_from(USERS))


@settings(max_examples=60)
@given(writes=st.lists(st.tuples(VIEWS, st.booleans()), min_size=1, max_size=12), reads=st.lists(VIEWS, max_size=6))
def test_nobody_sees_lines_of_another_workspace_or_of_another_person(
    redis_socket: object,
    writes: list[tuple[tuple[str, str, str | None], bool]],
    reads: list[tuple[str, str, str | None]],
) -> None:
    """Whatever is written where, in whichever order: a view holds its workspace's lines and its person's own."""

    async def check() -> None:
        client = stores.connect(f"unix://{redis_socket}", 5.0)
        await client.flushall()
        context = store(client, 100_000)
        kept: list[tuple[str, str | None, str]] = []
        for number, ((workspace, place, user), is_edit) in enumerate(writes):
            editor = Editor(Scope(workspace, place, user), "turn")
            view = await context.open(editor)
            own = [line for line in view if line.owner == "user"]
            if is_edit and own:
                await context.replace(editor, own[0].number, f"text {number}", BY)
                kept = [one for one in kept if one[2] != own[0].content]
            else:
                await context.append(editor, f"text {number}", BY)
            kept.append((workspace, user, f"text {number}"))
        for workspace, place, user in [*reads, *(view for view, _ in writes)]:
            shown = await context.open(Editor(Scope(workspace, place, user), "turn"))
            expected = {text for home, whose, text in kept if home == workspace and whose in (None, user)}
            assert {line.content for line in shown if line.content} == expected
            assert {line.content for line in shown if line.owner == "user"} <= {
                text for home, whose, text in kept if home == workspace and whose == user and user is not None
            }
            for scope in (Scope(workspace), Scope(workspace, place, user)):
                after = {one.after for one in await context.history(scope, 100)}
                assert after <= {f"text {n}" for n, (view, _) in enumerate(writes) if view[0] == workspace}
        await client.aclose()

    asyncio.run(check())
