"""Replies that are shown while they are written, and get their last form whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from connectors.connector import Connector, SendFailed
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt
from runtime.coordination import Hub
from runtime.delivery import Delivery, Outbox, PreviewMode, Previews, ProgressReporter, RateLimiters, report_progress
from runtime.delivery.outbox import PartStage, stream_of
from tests.emulators.board import Board, FoundAgain, KnowsAgain

KEY = ConversationKey("acme", "board", "hall")
DRAFT = OutboundMessage(KEY, "t1", "", answers=("m1",))


class Feed(Board):
    """A platform with means of its own for a reply that grows."""

    def __init__(self, everywhere: bool = True) -> None:
        super().__init__()
        self.everywhere = everywhere
        self.begun = ""

    def appends(self, message: OutboundMessage) -> bool:
        return self.everywhere

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        self.messages["feed"] = self.begun = text
        return Receipt("feed")

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        shown = self.messages.get("feed")
        return Receipt("feed") if shown is not None and part.text.startswith(shown) else None

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        self.messages[receipt.message_id] += text


class LosesAnswers(FoundAgain):
    """The first message arrives, and the answer that says so does not."""

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        receipt = await super().send(message, part)
        if len(self.messages) == 1:
            raise SendFailed("the answer was lost", retryable=True, ambiguous=True)
        return receipt


class Box:
    """What a worker tells and a gateway shows and delivers, here by one hand."""

    def __init__(
        self,
        redis: Redis,
        platform: Board,
        streams: bool = True,
        *,
        first_text_seconds: float = 0.001,
        first_sign_seconds: float = 0.001,
        last_sign_seconds: float = 30.0,
    ) -> None:
        connectors: dict[str, Connector] = {"board": platform}
        self.hub = Hub(redis, shared=False)
        self.outbox = Outbox(redis, self.hub)
        rate_limiters = RateLimiters()
        self.shows = Previews(
            connectors,
            self.outbox,
            rate_limiters,
            self.hub,
            streams=streams,
            first_text_seconds=first_text_seconds,
            first_sign_seconds=first_sign_seconds,
            last_sign_seconds=last_sign_seconds,
            turn_seconds=0.01,
        )
        self.delivery = Delivery(self.outbox, connectors, rate_limiters, "skip")
        self.watched = self.shows.watched(platform, DRAFT)

    @asynccontextmanager
    async def preview(self, draft: OutboundMessage) -> AsyncIterator[ProgressReporter]:
        async with self.shows.running():
            async with report_progress(self.hub, self.hub.name, draft, self.watched) as told:
                yield told
            async with asyncio.timeout(5):
                while draft.turn_id in self.shows._shows:  # it ends by itself: the worker has told so
                    await asyncio.sleep(0.002)

    async def deliver(self, message: OutboundMessage) -> None:
        await self.outbox.put(message, ["board"])
        await self.delivery.deliver(message.key, message.turn_id)


box = Box


async def until(platform: Board, *texts: str) -> None:
    async with asyncio.timeout(5):
        while platform.shown != list(texts):
            await asyncio.sleep(0.002)


async def write(outbox: Box, platform: Board, *pieces: tuple[str, tuple[str, ...]]) -> None:
    """Write the pieces one after the other, each until people see what stands behind it."""
    async with outbox.preview(DRAFT) as preview:
        for piece, shown in pieces:
            await preview.show(piece)
            await until(platform, *shown)


async def test_a_reply_grows_in_one_message_and_ends_in_its_last_form(redis: Redis) -> None:
    """People see one message; what it says at last is the reply, whole."""
    board = Board()
    outbox = box(redis, board)
    await write(outbox, board, ("one", ("one",)), (" two", ("one two",)))
    await outbox.deliver(replace(DRAFT, text="one two!"))

    assert board.shown == ["one two!"]
    assert len(board.tokens) == 1


@pytest.mark.parametrize("make", [Board, Feed])
async def test_first_words_wait_until_the_replies_before_are_delivered(redis: Redis, make: type[Board]) -> None:
    platform = make()
    outbox = box(redis, platform)
    before = OutboundMessage(KEY, "t0", "It is.", answers=("m0",))
    await outbox.outbox.put(before, ["board"])
    stream = stream_of(KEY.partition, "board")
    [given] = await outbox.outbox.streams.read_new([stream], 1)
    async with outbox.preview(DRAFT) as preview:
        await preview.show("Here is")
        await asyncio.sleep(0.05)
        assert platform.shown == []
        await outbox.delivery.deliver(KEY, "t0", given)
        assert platform.shown == ["It is."]
        await until(platform, "It is.", "Here is")


async def test_the_first_words_carry_another_token_than_the_part(redis: Redis) -> None:
    """A platform that knows tokens again would otherwise take the last form for a repeat of the first words."""
    board = KnowsAgain()
    outbox = box(redis, board)
    await write(outbox, board, ("one", ("one",)))
    board.messages.clear()  # somebody deleted it
    await outbox.deliver(replace(DRAFT, text="one two"))

    assert board.shown == ["one two"]
    assert len(set(board.tokens)) == 2


async def test_a_reply_that_outgrows_a_message_goes_on_in_the_next(redis: Redis) -> None:
    """Each part is a message of its own, and none is shown twice."""
    board = Board()
    outbox = box(redis, board)
    await write(outbox, board, ("12345678", ("12345678",)), ("9", ("12345678", "9")))
    await outbox.deliver(replace(DRAFT, text="123456789x"))

    assert board.shown == ["12345678", "9x"]


async def test_a_reply_that_becomes_a_file_leaves_nothing_of_its_growth_behind(redis: Redis) -> None:
    """What was shown as a second message gives way to the file."""
    board = Board()
    outbox = box(redis, board)
    await write(outbox, board, ("12345678", ("12345678",)), ("9", ("12345678", "9")))
    await outbox.deliver(replace(DRAFT, text="x" * 40))

    assert board.shown == ["xxxxxxxx", "[whole.md]"]


async def test_a_shorter_last_form_takes_the_rest_back(redis: Redis) -> None:
    """An apology after a long beginning stands alone."""
    board = Board()
    outbox = box(redis, board)
    await write(outbox, board, ("12345678", ("12345678",)), ("9", ("12345678", "9")))
    await outbox.deliver(replace(DRAFT, text="Sorry.", kind="apology"))

    assert board.shown == ["Sorry."]


async def test_a_second_attempt_replaces_what_the_first_has_shown(redis: Redis) -> None:
    """`restart` begins again in the same message."""
    board = Board()
    async with box(redis, board).preview(DRAFT) as preview:
        assert preview.can_restart
        await preview.show("wrong")
        await until(board, "wrong")
        await preview.restart()
        await preview.show("right")
        await until(board, "right")

    assert len(board.tokens) == 1


async def test_a_turn_that_is_taken_up_again_goes_on_in_the_message_that_was_begun(redis: Redis) -> None:
    """The process ended while the reply grew: the next one finds the message and shows no second one."""
    board = Board()
    await write(box(redis, board), board, ("half", ("half",)))
    outbox = box(redis, board)
    await write(outbox, board, ("other", ("other",)))
    await outbox.deliver(replace(DRAFT, text="done"))

    assert board.shown == ["done"]
    assert len(board.tokens) == 1


async def test_first_words_that_may_be_there_are_not_begun_a_second_time(redis: Redis) -> None:
    """The turn is begun again after the answer to their sending was lost: the delivery finds them and makes them whole,
    where others below them would have hidden them."""
    board = LosesAnswers()
    outbox = box(redis, board)
    async with outbox.preview(DRAFT) as preview:
        await preview.show("half")
        await until(board, "half")
    with capture_logs() as logs:
        async with outbox.preview(DRAFT) as preview:
            await preview.show("other")
            async with asyncio.timeout(5):
                while not logs:
                    await asyncio.sleep(0.002)
    assert [(log["event"], log["why"]) for log in logs] == [
        ("preview.ended", "first words of an earlier attempt may be there")
    ]
    await outbox.deliver(replace(DRAFT, text="all done"))

    assert board.shown == ["all done"]


async def test_what_a_preview_cannot_show_the_delivery_shows(redis: Redis) -> None:
    """A platform that refuses the first words gets the whole reply all the same."""
    board = Board()
    board.failures = [SendFailed("lost", retryable=False, ambiguous=True)]
    outbox = box(redis, board)
    async with outbox.preview(DRAFT) as preview:
        await preview.show("one")
        async with asyncio.timeout(5):
            while board.failures:
                await asyncio.sleep(0.002)
    await outbox.deliver(replace(DRAFT, text="one two"))

    assert board.shown == ["one two"]


async def test_a_platform_that_asks_for_a_pause_gets_no_more_previews_for_a_while_and_the_whole_reply(
    redis: Redis,
) -> None:
    board = Board()
    outbox = box(redis, board)
    async with outbox.preview(DRAFT) as preview:
        await preview.show("one")
        await until(board, "one")
        board.failures = [SendFailed("slow", retryable=True, retry_after_seconds=0.01)]
        await preview.show(" two")
        async with asyncio.timeout(5):
            while board.failures:
                await asyncio.sleep(0.002)
        await preview.show("!")
        await asyncio.sleep(0.05)
        assert board.shown == ["one"]
    await outbox.deliver(replace(DRAFT, text="one two!"))

    assert board.shown == ["one two!"]
    assert len(board.tokens) == 1


async def test_means_of_the_platforms_own_are_preferred_and_end_in_the_last_form(redis: Redis) -> None:
    """What is added arrives piece by piece; then the reply stands there as it is."""
    feed = Feed()
    outbox = box(redis, feed)
    await write(outbox, feed, ("one", ("one",)), (" two", ("one two",)))
    await outbox.deliver(replace(DRAFT, text="One two."))

    assert feed.shown == ["One two."]
    assert feed.tokens == []


async def test_where_the_platforms_own_means_do_not_serve_edits_do(redis: Redis) -> None:
    feed = Feed(everywhere=False)
    await write(box(redis, feed), feed, ("one", ("one",)), (" two", ("one two",)))

    assert len(feed.tokens) == 1


async def test_a_reply_that_is_done_at_once_is_shown_once(redis: Redis) -> None:
    """Nobody sees a word alone that becomes a sentence a moment later, and the platform is called once."""
    board = Board()
    outbox = box(redis, board, first_text_seconds=30.0)
    async with outbox.preview(DRAFT) as preview:
        await preview.show("o")
    await outbox.deliver(replace(DRAFT, text="one"))

    assert board.seen == [{"id1": "one"}]


class Signs(Board):
    """A platform that can show that somebody is typing."""

    typing_lasts_seconds = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.signs = 0

    async def typing(self, key: ConversationKey) -> None:
        self.signs += 1


async def test_only_an_answer_that_takes_a_while_is_announced_by_signs(redis: Redis) -> None:
    """A sign before a reply that is there at once would be a call to the platform, ahead of the reply."""
    board = Signs()
    async with box(redis, board, first_sign_seconds=30.0).preview(DRAFT) as preview:
        await preview.show("o")
    assert board.signs == 0

    async with box(redis, board).preview(DRAFT), asyncio.timeout(5):
        while not board.signs:
            await asyncio.sleep(0.002)


class SlowSigns(Signs):
    """The platform takes a sign in only when it is `allowed` to."""

    typing_lasts_seconds = 30.0

    def __init__(self) -> None:
        super().__init__()
        self.called, self.allowed = asyncio.Event(), asyncio.Event()

    async def typing(self, key: ConversationKey) -> None:
        self.called.set()
        await self.allowed.wait()
        self.signs += 1


@pytest.mark.parametrize("streams", [True, False])
async def test_a_reply_comes_after_the_sign_that_is_being_called_for(redis: Redis, streams: bool) -> None:
    """Else people would see for a while after it that somebody is still writing."""
    board = SlowSigns()
    outbox = box(redis, board, streams)
    async with asyncio.timeout(5), outbox.preview(DRAFT) as preview:
        await preview.show("one")
        await board.called.wait()
        finishing = asyncio.create_task(outbox.shows.finish(DRAFT.turn_id))
        await asyncio.sleep(0.02)  # long enough for a reply that waits for nothing
        assert not finishing.done()
        board.allowed.set()
        await finishing
        assert board.signs == 1


@pytest.mark.parametrize("longest", [0.001, 30.0])
async def test_a_reply_waits_for_no_sign_that_the_platform_is_slow_with_or_that_is_over(
    redis: Redis, longest: float
) -> None:
    board = SlowSigns()
    outbox = box(redis, board, last_sign_seconds=longest)
    async with asyncio.timeout(5), outbox.preview(DRAFT):
        await board.called.wait()
        if longest > 5:
            board.allowed.set()
            while not board.signs:
                await asyncio.sleep(0.002)
        await outbox.shows.finish(DRAFT.turn_id)
    assert board.signs == (longest > 5)


@pytest.mark.parametrize("kind", [KnowsAgain, FoundAgain])
@pytest.mark.parametrize("arrived", [True, False])
async def test_first_words_whose_process_died_become_the_reply_where_the_platform_can_tell(
    redis: Redis, kind: type[Board], arrived: bool
) -> None:
    """Nobody knows whether they arrived; they do not stay behind beside the reply, and no reply is missing."""
    board = kind()
    outbox = box(redis, board)
    part = board.render(replace(DRAFT, text="o"))[0]
    await outbox.outbox.mark(DRAFT, 0, PartStage.DRAFTING)
    if arrived:
        await board.send(DRAFT, replace(part, token=f"{part.token}.draft"))

    await outbox.deliver(replace(DRAFT, text="one"))

    assert board.shown == ["one"]


async def test_what_a_platform_began_by_its_own_means_becomes_the_reply_though_nobody_was_told(redis: Redis) -> None:
    """It is known by its words; what begins otherwise is left alone, and counted."""
    board = Feed()
    outbox = box(redis, board)
    board.messages["feed"] = "on"
    for turn_id, text in (("t1", "one"), ("t2", "two")):
        draft = replace(DRAFT, turn_id=turn_id)
        await outbox.outbox.mark(draft, 0, PartStage.DRAFTING)
        with capture_logs() as told:
            await outbox.deliver(replace(draft, text=text))
        assert ("reply.ambiguous" in [one["event"] for one in told]) == (text == "two")

    assert board.shown == ["one", "two"]


async def test_first_words_that_may_have_stayed_behind_are_counted(redis: Redis) -> None:
    board = Board()
    outbox = box(redis, board)
    await outbox.outbox.mark(DRAFT, 0, PartStage.DRAFTING)
    with capture_logs() as told:
        await outbox.deliver(replace(DRAFT, text="one"))
    (ambiguous,) = [one for one in told if one["event"] == "reply.ambiguous"]
    assert (ambiguous["why"], ambiguous["then"]) == ("preview", "resend")
    assert board.shown == ["one"]


async def test_news_that_come_after_the_reply_show_nothing_more(redis: Redis) -> None:
    """News take their time where a process is busy; the reply does not wait for them."""
    board = Board()
    outbox = box(redis, board)
    await outbox.deliver(replace(DRAFT, text="all"))
    async with outbox.preview(DRAFT) as preview, asyncio.timeout(5):
        await preview.show("one and two")
        await asyncio.sleep(0.05)

    assert board.shown == ["all"]


async def test_nothing_grows_where_that_is_switched_off(redis: Redis) -> None:
    """Nor is the model asked to write piece by piece for nobody."""
    assert Box(redis, Board(), streams=False).watched is PreviewMode.NOT
    assert Box(redis, Board()).watched is PreviewMode.REPLACEABLE


class Fixed(Board):
    """A platform on which the answers to commands stay as they were sent."""

    def edits(self, message: OutboundMessage) -> bool:
        return "command-1" not in message.answers


async def test_nothing_grows_that_cannot_be_replaced(redis: Redis) -> None:
    """Its beginning would stay above the reply."""
    board = Fixed()
    outbox = box(redis, board)
    command = replace(DRAFT, answers=("command-1",))
    async with outbox.preview(command) as preview:
        await preview.show("one")
        await asyncio.sleep(0.05)
    await outbox.deliver(replace(command, text="one two"))

    assert board.shown == ["one two"]
    assert outbox.shows.watched(board, command) is PreviewMode.NOT
    assert outbox.shows.watched(board, DRAFT) is PreviewMode.REPLACEABLE


async def test_a_broken_preview_costs_no_reply(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the adapter does while a reply grows, the reply arrives."""
    board = Board()
    outbox = box(redis, board)

    def broken(message: OutboundMessage) -> Sequence[OutboundPart]:
        raise RuntimeError("cannot render")

    async with outbox.preview(DRAFT) as preview:
        monkeypatch.setattr(board, "render", broken)
        await preview.show("one")
        await asyncio.sleep(0.05)
        monkeypatch.undo()
    await outbox.deliver(replace(DRAFT, text="one"))

    assert board.shown == ["one"]


MESSAGE = OutboundMessage(ConversationKey("acme", "telegram", "1"), "t1", "")


class Elsewhere:
    """A hub whose news go to another process."""

    name = "here"

    def __init__(self) -> None:
        self.told: list[str] = []

    async def tell(self, topic: str, news: dict[str, Any], to: str = "") -> None:
        self.told.append(news["text"])


async def test_before_a_pause_the_other_process_is_told_all_that_was_written() -> None:
    """Pieces for another process are gathered; while a tool works, none comes that would bring them along."""
    hub = Elsewhere()
    told = ProgressReporter(cast("Any", hub), "there", MESSAGE, PreviewMode.REPLACEABLE)
    for piece in ("Let ", "me ", "look."):
        await told.show(piece)
    await told.flush()
    await told.flush()

    assert hub.told[0] == "Let "
    assert "".join(hub.told) == told.text == "Let me look."
    assert len(hub.told) <= 3
    assert "" not in hub.told
