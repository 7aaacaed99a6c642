"""What a person who plays with the emulators is told of messages that grow, change and go."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.emulators.play.watch import SETTLES_SECONDS, Change, Watch
from tests.emulators.play.world import Message


def reply(text: str, *, growing: bool = False, conversation: str = "501") -> Message:
    return Message("501/1", conversation, text, is_growing=growing)


def kinds(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.message.text) for change in changes]


def test_a_growing_reply_is_told_once_and_whole() -> None:
    watch = Watch()
    assert watch.look([reply("Ah")], 0.0) == []
    assert watch.look([reply("Ahoy")], 2.0) == []
    assert [message.text for message in watch.growing] == ["Ahoy"]
    assert kinds(watch.look([reply("Ahoy")], 2.0 + SETTLES_SECONDS)) == [("said", "Ahoy")]
    assert watch.growing == []


def test_a_reply_that_was_delivered_is_told_at_once() -> None:
    watch = Watch()
    assert kinds(watch.look([reply("Ahoy")], 0.0, {"501"})) == [("said", "Ahoy")]


def test_a_reply_that_the_platform_streams_is_not_told_however_long_it_rests() -> None:
    watch = Watch()
    watch.look([reply("Ah", growing=True)], 0.0)
    assert watch.look([reply("Ah", growing=True)], 100.0, {"501"}) == []


def test_an_edit_is_told_as_one_and_a_deletion_too() -> None:
    watch = Watch()
    watch.look([reply("Ahoy")], 0.0, {"501"})
    assert kinds(watch.look([reply("Ahoy!")], 1.0, {"501"})) == [("edited", "Ahoy!")]
    assert kinds(watch.look([], 2.0)) == [("deleted", "Ahoy!")]
    assert watch.look([], 3.0) == []


def test_what_goes_before_it_was_told_is_not_mentioned() -> None:
    watch = Watch()
    watch.look([reply("Ah")], 0.0)
    assert watch.look([], 1.0) == []


@given(st.lists(st.tuples(st.sampled_from(["", "a", "ab", "abc"]), st.floats(0, 5)), min_size=1))
def test_in_the_end_what_was_told_last_is_what_stands(steps: list[tuple[str, float]]) -> None:
    """However a message changes, and after whatever pauses; and nothing is told twice in a row."""
    watch, now, told = Watch(), 0.0, []
    for text, pause in steps:
        now += pause
        told += kinds(watch.look([reply(text)], now))
    told += kinds(watch.look([reply(steps[-1][0])], now + SETTLES_SECONDS + 1))
    assert told[-1][1] == steps[-1][0]
    assert all(before != after for before, after in pairwise(told))
    assert [kind for kind, _ in told] == ["said"] + ["edited"] * (len(told) - 1)
