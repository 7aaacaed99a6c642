"""The limits of a platform, shared by all that is said there, on a clock that is set by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.schedule import CHAT_BURST, MINUTE_SECONDS, OPENING_BURST, OVERALL_BURST, Rates, Schedule, Ticket, Urgency

CHATS = ("harbour", "deck", "bridge")
rates = st.sampled_from([0.5, 1.0, 4.0])


@dataclass(frozen=True)
class Step:
    """After *gap* seconds a call is lined up."""

    gap: float
    chat: str
    urgency: Urgency


steps = st.lists(
    st.builds(Step, st.floats(0, 2), st.sampled_from(CHATS), st.sampled_from(list(Urgency))), min_size=1, max_size=40
)


@dataclass(frozen=True)
class Made:
    at: float
    ticket: Ticket


def played(schedule: Schedule, script: list[Step]) -> tuple[list[Made], dict[Ticket, float]]:
    """What was made when, each as soon as it might; and when each was lined up."""
    now = 0.0
    made: list[Made] = []
    added: dict[Ticket, float] = {}

    def until(end: float | None) -> None:
        nonlocal now
        while (at := schedule.next_at()) is not None and (end is None or at <= end):
            now = max(now, at)
            made.extend(Made(now, ticket) for ticket in schedule.due(now))

    for step in script:
        reached = now + step.gap
        until(reached)
        now = reached
        added[schedule.add(step.chat, step.urgency, now)] = now
        made.extend(Made(now, ticket) for ticket in schedule.due(now))
    until(None)
    return made, added


def kept(times: list[float], rate: float, burst: int) -> bool:
    """Whether no window of t seconds holds more than burst + t × rate."""
    return all(
        last - first + 1 <= burst + (times[last] - times[first]) * rate + 1e-6
        for first in range(len(times))
        for last in range(first, len(times))
    )


@given(steps, rates, st.sampled_from([0.5, 2.0, 30.0]))
def test_no_window_holds_more_than_the_rate_and_the_burst(script: list[Step], rate: float, overall: float) -> None:
    """Of all calls to one chat together, and of all calls to the platform."""
    made, _ = played(Schedule(Rates(rate, rate, overall)), script)

    assert kept([one.at for one in made], overall, OVERALL_BURST)
    for chat in CHATS:
        assert kept([one.at for one in made if one.ticket.chat == chat], rate, CHAT_BURST)


@given(steps, rates, rates, rates)
def test_every_call_is_made_once_and_none_is_forgotten(
    script: list[Step], sends: float, edits: float, overall: float
) -> None:
    made, added = played(Schedule(Rates(sends, edits, overall)), script)

    assert {one.ticket for one in made} == set(added)
    assert len(made) == len(added)
    assert all(one.at >= added[one.ticket] for one in made)


@given(steps, rates, rates, rates)
def test_nothing_goes_before_something_more_urgent_of_its_chat(
    script: list[Step], sends: float, edits: float, overall: float
) -> None:
    """No final part waits behind a preview, and no preview behind a sign."""
    made, added = played(Schedule(Rates(sends, edits, overall)), script)

    for place, one in enumerate(made):
        for later in made[place + 1 :]:
            if later.ticket.chat == one.ticket.chat and added[later.ticket] < one.at:
                assert later.ticket.urgency >= one.ticket.urgency


@given(steps, rates)
def test_a_final_part_is_made_when_it_would_be_without_the_others_before_it(script: list[Step], rate: float) -> None:
    """As long as its burst lasts: what is less urgent takes none of it."""
    first = Step(0.0, "harbour", Urgency.FINAL)
    others = [step for step in script if step.urgency is not Urgency.FINAL]

    made, added = played(Schedule(Rates(rate, rate, 30.0)), [*others, first])

    (final,) = [one for one in made if one.ticket.urgency is Urgency.FINAL]
    assert final.at == added[final.ticket]


@given(steps, rates)
def test_one_chats_wait_holds_up_no_other(script: list[Step], rate: float) -> None:
    """With room enough overall, each chat goes as if it were alone."""
    together, _ = played(Schedule(Rates(rate, rate)), script)
    for chat in CHATS:
        alone: list[Step] = []
        now = 0.0
        for step in script:
            now += step.gap
            if step.chat == chat:
                alone.append(Step(now - sum(one.gap for one in alone), chat, step.urgency))
        by_itself = played(Schedule(Rates(rate, rate)), alone)[0] if alone else []
        shared = [(one.at, one.ticket.urgency) for one in together if one.ticket.chat == chat]
        assert [urgency for _, urgency in shared] == [one.ticket.urgency for one in by_itself]
        assert all(abs(at - one.at) < 1e-6 for (at, _), one in zip(shared, by_itself, strict=True))


@given(st.lists(st.integers(1, 30), min_size=2, max_size=8))
def test_whoever_has_little_to_say_does_not_wait_for_whoever_has_much(counts: list[int]) -> None:
    """While two chats wait for the platform alone, neither is served twice more than the other."""
    schedule = Schedule(Rates(overall=1.0))
    waiting: dict[str, int] = {}
    for chat, count in enumerate(counts):
        for _ in range(count):
            schedule.add(str(chat), Urgency.FINAL, 0.0)
        waiting[str(chat)] = count
    served: dict[str, int] = defaultdict(int)
    while (at := schedule.next_at()) is not None:
        for ticket in schedule.due(max(at, 0.0)):
            served[ticket.chat] += 1
            still = [chat for chat, count in waiting.items() if served[chat] < count]
            if len(still) > 1:
                assert max(served[chat] for chat in still) - min(served[chat] for chat in still) <= 1


def test_who_comes_again_and_again_keeps_nobody_from_their_turn() -> None:
    """A chat that waits is served although another one always has something new."""
    schedule = Schedule(Rates(overall=1.0))
    for _ in range(OVERALL_BURST):
        schedule.add("loud", Urgency.FINAL, 0.0)
    assert len(schedule.due(0.0)) == OVERALL_BURST
    for _ in range(5):
        schedule.add("loud", Urgency.FINAL, 0.0)
    quiet = schedule.add("quiet", Urgency.FINAL, 0.0)
    allowed: list[Ticket] = []
    for second in range(1, 4):
        schedule.add("loud", Urgency.FINAL, float(second))
        schedule.add(f"new {second}", Urgency.FINAL, float(second))
        allowed += schedule.due(float(second))
    assert quiet in allowed


@given(st.floats(0.1, 50), st.sampled_from(list(Urgency)))
def test_a_wait_that_is_asked_for_holds_for_everything_there_and_for_nothing_else(
    seconds: float, urgency: Urgency
) -> None:
    schedule = Schedule(Rates(1.0, 1.0))
    schedule.hold("harbour", seconds)
    held, free = schedule.add("harbour", urgency, 0.0), schedule.add("deck", urgency, 0.0)

    assert schedule.due(0.0) == [free]
    assert schedule.due(seconds * 0.99) == []
    assert schedule.due(seconds) == [held]

    schedule.hold(None, seconds * 2 + 60)
    everywhere = [schedule.add(chat, urgency, seconds + 60) for chat in CHATS]
    assert schedule.due(seconds + 60) == []
    assert set(schedule.due(seconds * 3 + 100)) == set(everywhere)


def test_a_call_that_nobody_wants_any_more_takes_nothing() -> None:
    schedule = Schedule(Rates(1.0, 1.0, 30.0))
    ticket = schedule.add("harbour", Urgency.PREVIEW, 0.0)
    schedule.remove(ticket)
    schedule.remove(ticket)

    assert schedule.next_at() is None
    later = schedule.add("harbour", Urgency.PREVIEW, 0.0)
    assert schedule.due(0.0) == [later]
    schedule.remove(later)


def test_what_is_known_of_quiet_chats_is_dropped() -> None:
    """A bot in a million chats keeps no million of them in memory."""
    schedule = Schedule(Rates(1.0, 1.0))
    for number in range(20_000):
        schedule.add(str(number), Urgency.FINAL, float(number))
        schedule.due(float(number))

    assert len(schedule._chats) < 5_000


def test_a_call_that_belongs_to_the_one_before_counts_for_the_platform_and_not_for_its_chat() -> None:
    """First words and the edit that makes them whole: pairs go to one chat as fast as single messages."""
    schedule = Schedule(Rates(sends=1.0, edits=0.5, overall=10.0))
    for _ in range(CHAT_BURST):
        assert schedule.take("harbour", Urgency.FINAL, 0.0)
        assert schedule.follows("harbour", 0.0)
    assert not schedule.take("harbour", Urgency.FINAL, 0.0)

    others = 0
    while schedule.take(f"deck {others}", Urgency.FINAL, 0.0):
        others += 1
    assert others == OVERALL_BURST - 2 * CHAT_BURST


@pytest.mark.parametrize(("urgency", "seconds"), [(Urgency.BEGINNING, 1.0), (Urgency.PREVIEW, 2.0)])
def test_first_words_keep_their_chat_as_long_as_a_message_and_no_longer(urgency: Urgency, seconds: float) -> None:
    """What comes after them waits for one message, and not for the slower pace of edits."""
    schedule = Schedule(Rates(sends=1.0, edits=0.5))
    assert schedule.take("harbour", urgency, 0.0)
    schedule.add("harbour", Urgency.BEGINNING, 0.0)

    assert schedule.next_at() == seconds


MOST = 20


def in_groups(chat: str) -> int:
    """The harbour and the deck are groups that take so much a minute; on the bridge nobody counts."""
    return 0 if chat == "bridge" else MOST


@given(st.lists(st.builds(Step, st.floats(0, 4), st.sampled_from(CHATS), st.sampled_from(list(Urgency))), max_size=90))
def test_no_minute_in_a_group_holds_more_messages_than_it_takes(script: list[Step]) -> None:
    """Final parts, first words and previews together; a sign is no message, and waits for none of them."""
    made, added = played(Schedule(Rates(4.0, 2.0), in_groups), script)

    for chat in ("harbour", "deck"):
        said = [one.at for one in made if one.ticket.chat == chat and one.ticket.urgency is not Urgency.SIGN]
        assert all(later - sooner >= MINUTE_SECONDS - 1e-6 for sooner, later in zip(said, said[MOST:], strict=False))
    assert {one.ticket for one in made} == set(added)


@pytest.mark.parametrize("way", [0.0, 0.3, 1.0])
def test_a_platform_that_counts_what_arrives_finds_no_minute_too_full_either(way: float) -> None:
    """The calls of the first minute take so many seconds to arrive, those that follow it none."""
    schedule = Schedule(Rates(), in_groups)
    for _ in range(MOST):
        assert schedule.take("harbour", Urgency.FINAL, 0.0)
    schedule.add("harbour", Urgency.FINAL, 0.0)

    following = schedule.next_at()
    assert following is not None
    assert following - way >= 60.0


def shown(seconds: int, most: int) -> list[float]:
    """When a reply that is written for so long is shown, with something new all the time."""
    schedule, times = Schedule(Rates(1.0, 0.5), lambda _: most), [0.0]
    assert schedule.take("harbour", Urgency.BEGINNING, 0.0)
    schedule.add("harbour", Urgency.PREVIEW, 0.0)
    while (at := schedule.next_at()) is not None and at < seconds:
        times += [at] * len(schedule.due(at))
        schedule.add("harbour", Urgency.PREVIEW, at)
    return times


def test_a_long_reply_in_a_group_grows_until_its_end_and_never_stops_for_long() -> None:
    times = shown(300, MOST)
    gaps = [later - sooner for sooner, later in pairwise(times)]

    assert gaps[:3] == [1.0, 2.0, 2.0]
    assert max(gaps) < 8.0
    assert len([one for one in times if one < 60]) == MOST * 3 // 5
    assert len(shown(60, 0)) == 31


@given(st.floats(0, 200), st.integers(1, MOST))
def test_previews_leave_a_groups_last_forms_their_room(at: float, parts: int) -> None:
    """However long a reply grew there, two fifths of a minute's messages go as soon as the pace allows."""
    schedule, now = Schedule(Rates(1.0, 0.5), in_groups), 0.0
    ticket = schedule.add("harbour", Urgency.PREVIEW, now)
    while (free := schedule.next_at()) is not None and free <= at:
        now = max(now, free)
        schedule.due(now)
        ticket = schedule.add("harbour", Urgency.PREVIEW, now)
    schedule.remove(ticket)

    last = {schedule.add("harbour", Urgency.FINAL, at) for _ in range(min(parts, MOST - MOST * 3 // 5))}
    allowed: set[Ticket] = set()
    while (free := schedule.next_at()) is not None:
        assert free <= at + len(last) + 2.0
        allowed.update(schedule.due(max(free, at)))
    assert allowed == last


def test_a_full_minute_ends_and_holds_up_no_other_place() -> None:
    schedule = Schedule(Rates(), in_groups)
    for second in range(MOST):
        assert schedule.take("harbour", Urgency.FINAL, float(second))
    assert not schedule.take("harbour", Urgency.FINAL, float(MOST))
    assert not schedule.follows("harbour", float(MOST))
    assert schedule.take("deck", Urgency.FINAL, float(MOST))
    assert schedule.take("bridge", Urgency.FINAL, float(MOST))
    assert schedule.take("harbour", Urgency.SIGN, float(MOST))

    held = schedule.add("harbour", Urgency.FINAL, float(MOST))
    assert schedule.next_at() == MINUTE_SECONDS
    assert schedule.due(MINUTE_SECONDS) == [held]
    assert schedule.follows("harbour", MINUTE_SECONDS + 1.0)


def test_first_words_and_the_edit_that_makes_them_whole_are_two_messages_of_a_minute() -> None:
    schedule = Schedule(Rates(), in_groups)
    for _ in range(MOST // 2):
        assert schedule.take("harbour", Urgency.FINAL, 0.0)
        assert schedule.follows("harbour", 0.0)
    assert not schedule.take("harbour", Urgency.FINAL, 0.0)


def test_a_groups_minute_is_remembered_among_many_quiet_chats() -> None:
    schedule = Schedule(Rates(), in_groups)
    for _ in range(MOST):
        assert schedule.take("harbour", Urgency.FINAL, 0.0)
    for number in range(20_000):
        assert schedule.take(str(number), Urgency.FINAL, 1.0)
    assert not schedule.take("harbour", Urgency.FINAL, 1.0)


@given(steps, st.sampled_from([0.5, 1.0]))
def test_all_edits_together_keep_their_own_rate_and_hold_up_nothing_else(script: list[Step], rate: float) -> None:
    """Where many replies grow at once, each grows more slowly; messages go as if there were none of them."""
    bound, added = played(Schedule(Rates(edits_overall=rate)), script)

    assert kept([one.at for one in bound if one.ticket.urgency is Urgency.PREVIEW], rate, 1)
    assert all(one.at == added[one.ticket] for one in bound if one.ticket.urgency < Urgency.PREVIEW)
    assert len(bound) == len(added)


@given(steps, st.sampled_from([0.5, 1.0]))
def test_what_grows_by_the_platforms_own_means_keeps_its_rates_and_holds_up_nothing_else(
    script: list[Step], rate: float
) -> None:
    """Beginning and being added to are two kinds of calls; some may begin at once."""
    bound, added = played(Schedule(Rates(openings_overall=rate, additions_overall=rate)), script)

    own = {Urgency.OPENING: OPENING_BURST, Urgency.ADDITION: 1}
    for urgency, burst in own.items():
        assert kept([one.at for one in bound if one.ticket.urgency is urgency], rate, burst)
    assert all(one.at == added[one.ticket] for one in bound if one.ticket.urgency < Urgency.OPENING)
    assert len(bound) == len(added)


def test_no_minute_has_more_streams_begun_than_slack_takes() -> None:
    """20 a minute, by its tier 2: five at once and then one every four seconds."""
    schedule = Schedule(Rates(openings_overall=15 / 60))
    waiting = [schedule.add(f"thread {number}", Urgency.OPENING, 0.0) for number in range(60)]
    begun: list[float] = []
    while (free := schedule.next_at()) is not None:
        now = max(free, 0.0)
        begun += [now] * len(schedule.due(now))
    assert len(begun) == len(waiting)
    assert begun[:6] == [0.0, 0.0, 0.0, 0.0, 0.0, 4.0]
    assert max(len([at for at in begun if start <= at < start + 60]) for start in begun) <= 20


def test_previews_everywhere_wait_for_a_last_form_that_is_an_edit_and_it_for_none_of_them() -> None:
    schedule = Schedule(Rates(edits_overall=0.5))
    assert schedule.take("harbour", Urgency.PREVIEW, 0.0)
    assert schedule.take("deck", Urgency.FINAL, 0.0)
    schedule.edited(0.0)
    assert not schedule.take("bridge", Urgency.PREVIEW, 2.0)
    assert schedule.take("bridge", Urgency.ADDITION, 2.0)
    assert schedule.take("bridge", Urgency.FINAL, 2.0)
    assert schedule.take("bridge", Urgency.PREVIEW, 4.0)
