"""The door: who comes in, who is told no, and what is stored."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.connector import Accept, Capabilities, Connector, Health, State
from connectors.message import (
    Attachment,
    Author,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Quote,
    Receipt,
    Role,
)
from runtime.access import Access
from runtime.gateway import MAX_NAME_CHARACTERS, Gateway
from runtime.limits import RateLimit
from runtime.mailbox import Batch, Mailbox
from runtime.outbox import Outbox
from runtime.workspaces import Workspaces

MESSAGE = InboundMessage(
    "telegram", "42", "m1", Author("42", "Ann"), "hi", direct=True, default_workspace="acme", addressed=True
)
KEY = ConversationKey("acme", "telegram", "42")


class Notices:
    """A platform that keeps what people are told."""

    name = "telegram"
    capabilities = Capabilities(max_part_units=4096)
    health = Health(State.CONNECTED)

    def __init__(self) -> None:
        self.said: list[str] = []

    async def run(self, accept: Accept) -> None:
        raise NotImplementedError

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return [OutboundPart(0, 1, message.text, message.turn_id)]

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        self.said.append(part.text)
        return Receipt("1")

    async def close(self) -> None:
        return None


class Door:
    """A gateway with everything behind it."""

    def __init__(self, redis: Redis, **settings: Any) -> None:
        chosen = Settings.model_validate({"access_policy": "open", **settings})
        self.platform = Notices()
        connectors: dict[str, Connector] = {"telegram": self.platform}
        self.mailbox = Mailbox(redis)
        self.outbox = Outbox(redis, connectors, "skip")
        self.woken: list[ConversationKey] = []
        self.gateway = Gateway(
            Workspaces(redis, chosen),
            Access(redis, chosen),
            RateLimit(redis, chosen),
            self.mailbox,
            self.outbox,
            self.woken.append,
        )
        self.accept = self.gateway.accept

    async def take(self) -> Batch:
        batch = await self.mailbox.take(KEY)
        assert batch is not None
        return batch


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"author": Author("7", "bot", is_bot=True)}, "bot"),
        ({"author": Author("7", "bot", is_bot=True), "caller_role": Role.ADMIN}, "bot"),
        ({"addressed": False}, "not_addressed"),
        ({"text": " \n"}, "empty"),
        ({"kind": InboundKind.EDIT}, "edit"),
    ],
)
async def test_what_is_for_nobody_is_ignored_whatever_the_policy(
    redis: Redis, changes: dict[str, Any], why: str
) -> None:
    """It is stored nowhere, wakes nobody and is answered by nothing."""
    for policy in ("open", "pairing", "allowlist"):
        door = Door(redis, access_policy=policy)
        with capture_logs() as events:
            accepted = await door.accept(replace(MESSAGE, **changes))

        assert (accepted.outcome, accepted.why) == ("ignored", why)
        assert [(one["event"], one["why"]) for one in events] == [("message.ignored", why)]
        assert (door.woken, door.platform.said) == ([], [])
    assert await redis.keys("*") == []


@pytest.mark.parametrize("changes", [{"attachments": (Attachment("document", "a.md"),)}, {"quote": Quote("Bo", "x")}])
async def test_a_message_without_words_that_brings_something_is_answered(redis: Redis, changes: dict[str, Any]) -> None:
    """A file or a quoted message is something said."""
    assert (await Door(redis).accept(replace(MESSAGE, text="", **changes))).outcome == "stored"


async def test_a_repeat_is_not_counted_against_the_limit(redis: Redis) -> None:
    """A platform that delivers again costs nobody a message."""
    door = Door(redis, rate_limit_messages=2)
    for _ in range(5):
        await door.accept(MESSAGE)

    assert (await door.accept(replace(MESSAGE, message_id="m2"))).outcome == "stored"


async def test_who_writes_too_fast_is_told_once_and_a_caller_over_http_by_the_answer_alone(redis: Redis) -> None:
    """The refusal says how long to wait; people are not told with every message."""
    door = Door(redis, rate_limit_messages=1)
    answers = [await door.accept(replace(MESSAGE, message_id=f"m{n}")) for n in range(3)]
    assert [one.outcome for one in answers] == ["stored", "refused", "refused"]
    assert all(one.retry_after_seconds for one in answers[1:])
    assert len(door.platform.said) == 1

    caller = replace(MESSAGE, external_id="43", caller_role=Role.MEMBER)
    refused = [await door.accept(replace(caller, message_id=f"c{n}")) for n in range(3)]
    assert [one.why for one in refused[1:]] == ["rate_limit", "rate_limit"]
    assert len(door.platform.said) == 1


async def test_what_is_stored_can_be_kept_and_sent_by_everything_behind(redis: Redis) -> None:
    """Lone surrogates and NUL break stores and models; endless names break prompts."""
    broken = "a\ud800b\x00c"
    door = Door(redis)
    await door.accept(
        replace(
            MESSAGE,
            text=broken,
            author=Author("42", "A\nnn " * 200),
            quote=Quote(broken, broken),
            attachments=(Attachment("document", broken),),
        )
    )

    message = (await door.take()).envelopes[0].message
    assert (message.text, message.quote, message.attachments[0].name) == ("a?bc", Quote("a?bc", "a?bc"), "a?bc")
    assert len(message.author.name) <= MAX_NAME_CHARACTERS
    assert "\n" not in message.author.name


async def test_a_repeat_gets_only_an_answer_to_itself(redis: Redis) -> None:
    """The turn at hand may be an earlier one, whose answer is another's."""
    door = Door(redis)
    await door.accept(MESSAGE)
    batch = await door.take()
    await door.accept(replace(MESSAGE, message_id="m2"))
    await door.outbox.deliver(OutboundMessage(KEY, batch.turn_id, "to m1", answers=("m1",)))

    first, second = await door.accept(MESSAGE), await door.accept(replace(MESSAGE, message_id="m2"))

    assert (first.outcome, first.reply and first.reply.text) == ("duplicate", "to m1")
    assert (second.outcome, second.reply) == ("duplicate", None)
