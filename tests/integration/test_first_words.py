"""Where nobody could find out whether a message arrived, only a few words are in doubt: an edit makes them whole."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from structlog.testing import capture_logs

from connectors.connector import Connector, SendFailed
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt, StoreUnavailable
from runtime.delivery import Delivery
from runtime.first_words import BEGINNING_CHARACTERS, beginning
from runtime.governor import Governors
from runtime.hub import Hub
from runtime.outbox import Outbox
from runtime.parts import Stage
from runtime.progress import telling
from runtime.shows import Shows
from tests.emulators.board import Board, FoundAgain, KnowsAgain

KEY = ConversationKey("acme", "board", "hall")
TEXT = "The harbour is deep enough for ships that carry steel, and for those that carry sand."
FIRST = "The harbour is deep enough for ships that…"
REPLY = OutboundMessage(KEY, "t1", TEXT, answers=("m1",))
LONG = replace(REPLY, text=f"{TEXT[:64]}|{TEXT}")


WITH_FILE = replace(REPLY, text=f"{TEXT[:64]}|file of all that was asked for")


class Wide(Board):
    """Its parts end where the text has a bar; one that begins so is a file. It dies as told: before a call has done
    anything, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.dies: dict[str, Literal["before", "after"]] = {}

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        texts = [text for text in message.text.split("|") if text]
        return [
            OutboundPart(
                n, len(texts), text, f"{message.turn_id}:{n}", file_name="a.md" if text.startswith("file") else ""
            )
            for n, text in enumerate(texts)
        ]

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        self._may_die("before", f"send {part.index}")
        receipt = await super().send(message, part)
        self._may_die("after", f"send {part.index}")
        return receipt

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        self._may_die("before", f"edit {part.index}")
        await super().edit(message, part, receipt)
        self._may_die("after", f"edit {part.index}")

    def _may_die(self, when: str, call: str) -> None:
        if self.dies.get(call) == when:
            del self.dies[call]
            raise asyncio.CancelledError


class HoldsBack(Wide):
    """It takes no edit at first, and says for how long."""

    def __init__(self) -> None:
        super().__init__()
        self._holds_back = True

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        if self._holds_back:
            self._holds_back = False
            raise SendFailed("flood control", retryable=True, retry_after_seconds=0.01)
        await super().edit(message, part, receipt)


class WideKnowsAgain(Wide, KnowsAgain):
    pass


class WideFoundAgain(Wide, FoundAgain):
    pass


class Box:
    """One process that stores and delivers."""

    def __init__(
        self,
        redis: Redis,
        board: Board,
        ambiguous: Literal["skip", "resend"] = "skip",
        placeholder: Literal["always", "growing"] = "always",
    ) -> None:
        connectors: dict[str, Connector] = {"board": board}
        self.hub = Hub(redis, shared=False)
        self.outbox = Outbox(redis, self.hub)
        governors = Governors()
        self.shows = Shows(connectors, self.outbox.states, governors, self.hub, placeholder=placeholder)
        self.watched = self.shows.watched(board, REPLY)
        self.delivery = Delivery(self.outbox.states, connectors, governors, ambiguous, placeholder)

    async def deliver(self, message: OutboundMessage) -> None:
        await self.outbox.put(message, ["board"])
        await self.delivery.deliver(message.key, message.turn_id)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.sending._BACKOFF_SECONDS", (0.001, 0.001))


async def test_a_reply_is_begun_by_a_few_words_and_made_whole_in_the_same_message(redis: Redis) -> None:
    board = Wide()
    await Box(redis, board).deliver(REPLY)

    assert board.seen == [{"id1": FIRST}, {"id1": TEXT}]


async def test_first_words_become_whole_when_a_platform_that_holds_everything_back_for_long_lets_go(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not left above a second message, which would have to wait as long."""
    monkeypatch.setattr("runtime.sending._GIVE_UP_SECONDS", 0.0)
    board = HoldsBack()
    await Box(redis, board).deliver(REPLY)

    assert board.seen == [{"id1": FIRST}, {"id1": TEXT}]


async def test_each_part_is_begun_and_made_whole_before_the_next(redis: Redis) -> None:
    board = Wide()
    await Box(redis, board).deliver(LONG)

    one, two = LONG.text.split("|")
    assert board.seen[1:] == [{"id1": one}, {"id1": one, "id2": "…"}, {"id1": one, "id2": two}]


@pytest.mark.parametrize("placeholder", ["always", "growing"])
@pytest.mark.parametrize("kind", [WideKnowsAgain, WideFoundAgain])
async def test_where_the_platform_can_tell_a_reply_is_sent_whole(
    redis: Redis, kind: type[Wide], placeholder: Literal["always", "growing"]
) -> None:
    board = kind()
    await Box(redis, board, placeholder=placeholder).deliver(REPLY)

    assert board.seen == [{"id1": TEXT}]


async def test_it_is_sent_whole_where_that_is_wished(redis: Redis) -> None:
    board = Wide()
    await Box(redis, board, placeholder="growing").deliver(REPLY)

    assert board.seen == [{"id1": TEXT}]


@pytest.mark.parametrize("reply", [LONG, WITH_FILE])
@pytest.mark.parametrize("ambiguous", ["skip", "resend"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["send 0", "edit 0", "send 1", "edit 1"])
async def test_whenever_the_process_dies_everything_is_said_once_and_at_most_first_words_stay_behind(
    redis: Redis,
    call: str,
    when: Literal["before", "after"],
    ambiguous: Literal["skip", "resend"],
    reply: OutboundMessage,
) -> None:
    board = Wide()
    board.dies = {call: when}
    with pytest.raises(asyncio.CancelledError):
        await Box(redis, board, ambiguous).deliver(reply)

    with capture_logs() as told:
        await Box(redis, board, ambiguous).deliver(reply)

    whole = [f"[{part.file_name}]" if part.file_name else part.text for part in board.render(reply)]
    left_over = [text for text in board.shown if text not in whole]
    assert [text for text in board.shown if text in whole] == whole
    assert len(left_over) == (1 if (when, call[:4]) == ("after", "send") else 0)
    assert all(text.endswith("…") and len(text) <= BEGINNING_CHARACTERS + 1 for text in left_over)
    assert len([one for one in told if one["event"] == "reply.ambiguous"]) == (1 if call.startswith("send") else 0)


async def test_first_words_of_which_the_platform_said_nothing_are_said_again_and_counted(redis: Redis) -> None:
    """A time-out of the platform costs nobody the reply."""
    board = Wide()
    board.failures = [SendFailed("lost", retryable=True, ambiguous=True)]
    with capture_logs() as told:
        await Box(redis, board).deliver(REPLY)

    assert board.shown == [TEXT]
    assert [one["then"] for one in told if one["event"] == "reply.ambiguous"] == ["resend"]


async def test_first_words_that_were_refused_for_now_are_in_no_doubt_after_the_end_of_the_process(redis: Redis) -> None:
    board = Wide()
    board.failures = [SendFailed("busy", retryable=True, retry_after_seconds=60)]
    box = Box(redis, board)
    delivering = asyncio.create_task(box.deliver(REPLY))
    async with asyncio.timeout(5):
        while (states := await box.outbox.states.of_turn(KEY, "t1")).get(0) is None or states[
            0
        ].stage is not Stage.UNSENT:
            await asyncio.sleep(0.005)
    delivering.cancel()
    await asyncio.wait([delivering])

    with capture_logs() as told:
        await Box(redis, board).deliver(REPLY)

    assert board.shown == [TEXT]
    assert "reply.ambiguous" not in [one["event"] for one in told]


async def test_first_words_that_could_not_be_recorded_become_the_reply_when_the_store_is_back(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they were taken is known to this process alone."""
    board = Wide()
    box = Box(redis, board)
    mark, away = box.outbox.states._mark, True

    async def silent(*, keys: list[str], args: list[str]) -> object:
        nonlocal away
        if away and args[2].startswith("shown"):
            away = False
            raise StoreUnavailable("Redis: timeout")
        return await mark(keys=keys, args=args)

    monkeypatch.setattr(box.outbox.states, "_mark", silent)
    with pytest.raises(StoreUnavailable):
        await box.deliver(REPLY)
    await box.delivery.deliver(KEY, "t1")

    assert board.shown == [TEXT]


async def test_first_words_go_out_while_the_rest_is_still_written(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is gained by waiting: so many are sent first in any case."""
    monkeypatch.setattr("runtime.preview.FIRST_SECONDS", 30.0)
    board = Wide()
    box = Box(redis, board)
    async with box.shows.running():
        async with telling(box.hub, box.hub.name, replace(REPLY, text=""), box.watched) as told, asyncio.timeout(5):
            await told.show(TEXT[:20])
            await asyncio.sleep(0.02)
            assert board.shown == []
            await told.show(TEXT[20:70])
            while not board.shown:
                await asyncio.sleep(0.002)
        await box.shows.finish("t1")
        await box.deliver(REPLY)

    assert board.shown == [TEXT]


@given(st.text(min_size=1), st.integers(0, BEGINNING_CHARACTERS))
def test_first_words_are_a_beginning_of_the_text_and_a_sign_of_more(text: str, most: int) -> None:
    words = beginning(text, most)
    if len(text) <= most:
        assert words == text
    else:
        assert words.endswith("…")
        assert text.startswith(words[:-1])
        assert len(words) <= most + 1
