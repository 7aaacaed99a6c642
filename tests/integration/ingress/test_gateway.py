"""The door: who comes in, who is told no, and what is stored."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.connector import Accept, Capabilities, ConnectionState, Connector, Health
from connectors.message import (
    Accepted,
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
from grounding.memory.karma import Exchange, Marked, MarkStore
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.access import Access, ApiTokens, RateLimit
from runtime.commands import Commands
from runtime.commands.registry import Command, Invocation
from runtime.coordination import Hub, WorkStreams
from runtime.delivery import Delivery, Outbox, Previews, RateLimiters
from runtime.delivery.outbox import streams_of
from runtime.ingress import Gateway
from runtime.ingress.gateway import BEGINNING_CHARACTERS, HELLO, MAX_NAME_CHARACTERS
from runtime.turns import Batch, DeadLetters, Envelope, Lane, Mailbox, MailboxFull
from runtime.turns.mailbox import MAX_WAITING
from runtime.turns.worker import WORK
from runtime.workspaces import Places, PlaceSettings, Workspaces
from tests.emulators.marking import marking_on

MESSAGE = InboundMessage(
    "telegram", "42", "m1", Author("42", "Ann"), "hi", direct=True, default_workspace="acme", addressed=True
)
KEY = ConversationKey("acme", "telegram", "42")


class Notices:
    """A platform that keeps what people are told."""

    health = Health(ConnectionState.CONNECTED)

    def __init__(self, name: str = "telegram", command_mark: Literal["/", "!"] = "/") -> None:
        self.name = name
        self.capabilities = Capabilities(max_part_units=4096, command_mark=command_mark)
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


async def _pong(invocation: Invocation) -> str:
    return "pong"


class Door:
    """A gateway with everything behind it."""

    def __init__(self, redis: Redis, **settings: Any) -> None:
        chosen = Settings.model_validate({"access_policy": "open", "default_workspace": "acme", **settings})
        self.platform = Notices()
        self.other_platform = Notices("slack", "!")
        connectors: dict[str, Connector] = {"telegram": self.platform, "slack": self.other_platform}
        mailboxes = {lane: Mailbox(redis, lane) for lane in Lane}
        self.mailbox = mailboxes[Lane.TURNS]
        self.transcript = Transcript(redis)
        self.places = Places(redis)
        self.hub = Hub(redis, shared=False)
        self.outbox = Outbox(redis, self.hub)
        shows = Previews(connectors, self.outbox, RateLimiters(), self.hub)
        self._delivery = Delivery(self.outbox, connectors, RateLimiters(), "skip")
        self._redis, self._streams = redis, WorkStreams(redis)
        self.woken: list[int] = []
        self.gateway = Gateway(
            chosen,
            workspaces=Workspaces(redis, chosen),
            access=Access(redis, chosen, ApiTokens(redis, "admin-token")),
            limit=RateLimit(redis, chosen),
            mailboxes=mailboxes,
            outbox=self.outbox,
            transcript=self.transcript,
            commands=Commands([Command(word, "Answers.", _pong) for word in ("ping", "help", "pair")], 5.0),
            places=self.places,
            connectors=connectors,
            shows=shows,
            hub=self.hub,
            marking=marking_on(redis, **settings),
            dead_letters=DeadLetters(redis, mailboxes, self.hub),
        )
        self.commands = mailboxes[Lane.COMMANDS]
        self.hub.hear(WORK, lambda news: self.woken.append(news["partition"]))

    async def accept(self, message: InboundMessage) -> Accepted:
        """What the gateway says, after people were told what there was to tell."""
        accepted = await self.gateway.accept(message)
        if not await self._redis.keys("ar:outbox:*"):
            return accepted
        for waiting in await self._streams.read_new(streams_of(["telegram", "slack"]), 10):
            await self._delivery.deliver(ConversationKey.decode(waiting.fields["key"]), waiting.fields["turn"])
        return accepted

    async def take(self) -> Batch:
        offers = await self.mailbox.offers([KEY.partition], 1) or await self.mailbox.abandoned(0.0, 100)
        lease = await self.mailbox.claim(offers[0])
        assert lease is not None
        batch = await self.mailbox.take(lease)
        assert batch is not None
        return batch


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"author": Author("7", "bot", is_bot=True)}, "bot"),
        ({"author": Author("7", "bot", is_bot=True), "caller_role": Role.ADMIN}, "bot"),
        ({"addressed": False, "direct": False}, "not_addressed"),
        ({"kind": InboundKind.COMMAND, "text": "unheard of", "addressed": False, "direct": False}, "not_addressed"),
        ({"text": " \n"}, "empty"),
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


async def test_a_refused_message_is_named_in_the_notice_with_when_to_send_it_again(redis: Redis) -> None:
    door = Door(redis, rate_limit_messages=1)
    await door.accept(MESSAGE)
    await door.accept(replace(MESSAGE, message_id="m2", text="and *ships*?"))
    [notice] = door.platform.said
    assert notice.startswith(
        "You are writing faster than I can answer. I could not accept this message. Please send it"
    )
    assert notice.endswith(" again in about a minute:\n\n> `and *ships*?`")


async def test_a_refused_message_stays_refused_when_the_platform_delivers_it_again(redis: Redis) -> None:
    """Also by another process, and when the limit is over. People send it again, and are answered once."""
    ended = Door(redis, rate_limit_messages=1)
    await ended.accept(MESSAGE)
    assert (await ended.accept(replace(MESSAGE, message_id="m2"))).why == "rate_limit"

    door = Door(redis, rate_limit_messages=3)
    again = [await door.accept(replace(MESSAGE, message_id="m2")) for _ in range(4)]
    assert [one.outcome for one in again] == ["duplicate"] * 4
    assert (await door.accept(replace(MESSAGE, message_id="m3"))).outcome == "stored"
    assert [one.message.message_id for one in (await door.take()).envelopes] == ["m1", "m3"]
    assert (len(ended.platform.said), len(door.platform.said)) == (1, 0)


async def test_a_caller_over_http_may_repeat_a_refused_message(redis: Redis) -> None:
    door = Door(redis, rate_limit_messages=1)
    caller = replace(MESSAGE, caller_role=Role.MEMBER)
    await door.accept(caller)
    assert (await door.accept(replace(caller, message_id="m2"))).why == "rate_limit"
    assert (await Door(redis).accept(replace(caller, message_id="m2"))).outcome == "stored"


async def test_commands_have_a_limit_of_their_own(redis: Redis) -> None:
    """Whoever has written too much can still stop the answer; commands without end are refused, too."""
    door = Door(redis, rate_limit_messages=1)
    assert (await door.accept(MESSAGE)).outcome == "stored"
    assert (await door.accept(replace(MESSAGE, message_id="m2"))).why == "rate_limit"
    given = [await door.accept(replace(MESSAGE, message_id=f"c{n}", text="/ping")) for n in range(2)]
    assert [one.outcome for one in given] == ["stored", "refused"]


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
    await door.outbox.put(OutboundMessage(KEY, batch.turn_id, "to m1", answers=("m1",)), ["telegram"])

    first, second = await door.accept(MESSAGE), await door.accept(replace(MESSAGE, message_id="m2"))

    assert (first.outcome, first.reply and first.reply.text) == ("duplicate", "to m1")
    assert (second.outcome, second.reply) == ("duplicate", None)


GROUP = replace(MESSAGE, direct=False, addressed=False, routes=("telegram:-5",))


async def test_other_bots_are_answered_where_the_setting_says_so(redis: Redis) -> None:
    """Two bots may work together; nobody else is asked whether they should."""
    message = replace(MESSAGE, author=Author("7", "bot", is_bot=True))
    assert (await Door(redis, answer_bots=True).accept(message)).outcome == "stored"


@pytest.mark.parametrize(
    ("setting", "settled", "addressed", "outcome"),
    [
        ("addressed", None, False, "ignored"),
        ("addressed", None, True, "stored"),
        ("addressed", "all", False, "stored"),
        ("all", None, False, "stored"),
        ("all", "addressed", False, "ignored"),
        ("never", None, True, "ignored"),
        ("all", "never", True, "ignored"),
    ],
)
async def test_in_a_group_the_place_decides_and_else_the_setting(
    redis: Redis, setting: str, settled: Any, addressed: bool, outcome: str
) -> None:
    """What was settled for the place holds over ANSWER_IN_GROUPS."""
    door = Door(redis, answer_in_groups=setting)
    if settled:
        await door.places.put(KEY.scope, "telegram:-5", PlaceSettings(answering=settled))
    assert (await door.accept(replace(GROUP, addressed=addressed))).outcome == outcome


async def test_a_command_is_heard_where_nothing_else_is(redis: Redis) -> None:
    """Else nobody could make the bot talk again in a place where it never answers."""
    door = Door(redis, answer_in_groups="never")
    given = replace(GROUP, text="!ping", addressed=True)
    assert (await door.accept(given)).outcome == "stored"
    assert (await door.accept(replace(given, text="!important", message_id="m3"))).outcome == "ignored"
    native = replace(GROUP, kind=InboundKind.COMMAND, text="ping", message_id="m2")
    assert (await door.accept(native)).outcome == "stored"
    assert await door.mailbox.ready() == []
    assert await door.commands.ready() == [KEY]


async def test_an_edit_replaces_what_waits_still(redis: Redis) -> None:
    """The turn answers what the message says by then."""
    door = Door(redis)
    await door.accept(MESSAGE)
    await door.accept(replace(MESSAGE, message_id="m2", text="and this"))
    edited = await door.accept(replace(MESSAGE, kind=InboundKind.EDIT, text="hello, I meant"))

    assert edited.outcome == "ignored"
    assert [one.message.text for one in (await door.take()).envelopes] == ["hello, I meant", "and this"]


async def test_an_edit_by_which_a_message_is_first_said_to_the_bot_is_a_message(redis: Redis) -> None:
    """Somebody adds the mention that was forgotten; doing so twice asks once."""
    door = Door(redis)
    edit = replace(GROUP, kind=InboundKind.EDIT, addressed=True)
    assert (await door.accept(edit)).outcome == "stored"
    assert (await door.accept(replace(edit, text="again"))).outcome == "ignored"
    assert [one.message.text for one in (await door.take()).envelopes] == ["again"]


async def test_what_was_edited_or_deleted_after_its_answer_is_remembered_so(redis: Redis) -> None:
    """The tail reads the message as it stands on the platform now."""
    door = Door(redis)
    for number, text in enumerate(("first", "second"), start=1):
        await door.accept(replace(MESSAGE, message_id=f"m{number}", text=text))
    batch = await door.take()
    said = [
        TranscriptEntry(EntryRole.INBOUND, text, batch.turn_id, "", message_id=known)
        for known, text in (("m1", "first"), ("m2", "second"))
    ]
    await door.transcript.append(KEY, batch.turn_id, said)
    await door.mailbox.done(batch)
    await door.accept(replace(MESSAGE, kind=InboundKind.EDIT, text="First!"))
    await door.accept(replace(MESSAGE, kind=InboundKind.DELETE, message_id="m2", text="", author=Author("")))

    assert [entry.text for entry in await door.transcript.tail(KEY, 10)] == ["First!"]
    assert [entry.text for entry in await door.transcript.of_turn(KEY, batch.turn_id)] == ["First!"]


async def test_an_edit_holds_though_the_mention_is_gone_from_it(redis: Redis) -> None:
    """Who takes back what they asked in a group seldom leaves the bot's name in it."""
    door = Door(redis)
    await door.accept(replace(GROUP, addressed=True, text="@bot my code is 4711"))
    assert (await door.accept(replace(GROUP, kind=InboundKind.EDIT, text="never mind"))).outcome == "ignored"
    assert (await door.accept(replace(GROUP, kind=InboundKind.EDIT, message_id="m9"))).why == "not_addressed"
    (envelope,) = (await door.take()).envelopes
    assert envelope.message.text == "never mind"


@pytest.mark.parametrize("kind", [InboundKind.EDIT, InboundKind.DELETE])
async def test_what_was_edited_or_deleted_is_no_example_however_long_ago_it_was_said(
    redis: Redis, kind: InboundKind
) -> None:
    """Marks are kept for longer than the mailbox knows what it was given."""
    door, marks = Door(redis), MarkStore(redis)
    exchange = Exchange(asked="My code?", answered="4711.", audience="", asked_in=(GROUP.message_id,))
    key = ConversationKey(KEY.workspace_id, GROUP.connector, GROUP.external_id)
    marked = Marked(turn_id="t1", conversation=key.encoded, exchange=exchange)
    await marks.change(key.scope, "t1", lambda _: marked)
    await door.accept(replace(GROUP, kind=kind, text="never mind"))
    assert await marks.get(key.scope, "t1") is None


async def test_what_is_deleted_before_its_turn_is_never_answered(redis: Redis) -> None:
    """A conversation with nothing else waiting has nothing waiting."""
    door = Door(redis)
    await door.accept(MESSAGE)
    await door.accept(replace(MESSAGE, kind=InboundKind.DELETE, text=""))

    (offer,) = await door.mailbox.offers([KEY.partition], 1)
    lease = await door.mailbox.claim(offer)
    assert lease is not None
    assert await door.mailbox.take(lease) is None
    assert await door.mailbox.ready() == []


async def test_a_message_in_its_answers_making_stays_in_its_turn(redis: Redis) -> None:
    """A turn that is taken up again answers the same messages."""
    door = Door(redis)
    await door.accept(MESSAGE)
    first = await door.take()
    await door.accept(replace(MESSAGE, kind=InboundKind.DELETE, text=""))

    assert (await door.take()).envelopes == first.envelopes


async def test_an_edit_by_a_stranger_changes_nothing(redis: Redis) -> None:
    """Whoever may not talk may not edit either, and is told nothing about it."""
    door = Door(redis, access_policy="allowlist")
    assert (await door.accept(replace(MESSAGE, kind=InboundKind.EDIT))).outcome == "refused"
    assert door.platform.said == []


async def test_the_bot_says_hello_once_where_somebody_known_brought_it(redis: Redis) -> None:
    """A stranger who adds it to a group hears nothing."""
    joined = replace(GROUP, kind=InboundKind.JOINED, text="")
    await Door(redis, access_policy="pairing").accept(joined)
    door = Door(redis, access_policy="pairing", access_admins="telegram:42")
    for _ in range(2):
        assert (await door.accept(joined)).outcome == "ignored"
    assert door.platform.said == [HELLO]


async def test_where_it_is_open_to_all_the_bot_says_hello_with_commands_as_people_can_write_them_there(
    redis: Redis,
) -> None:
    door = Door(redis)
    await door.accept(replace(GROUP, kind=InboundKind.JOINED, text="", command_mark="!"))
    assert door.platform.said == [HELLO.replace("/help", "!help")]


async def test_each_admin_is_told_of_a_stranger_with_commands_as_they_are_written_where_the_admin_reads(
    redis: Redis,
) -> None:
    door = Door(redis, access_policy="pairing", access_admins=["telegram:1", "slack:U1"])
    await door.accept(replace(MESSAGE, external_id="1", author=Author("1", "Ann")))
    await door.accept(replace(MESSAGE, connector="slack", external_id="D1", author=Author("U1"), command_mark="!"))
    strangers = (
        replace(MESSAGE, external_id="7", author=Author("7", "Kai")),
        replace(MESSAGE, connector="slack", external_id="D7", author=Author("U7", "Lena"), command_mark="!"),
    )
    for stranger in strangers:
        await door.accept(stranger)

    on_telegram = [text for text in door.platform.said if "asks to talk to me" in text]
    on_slack = [text for text in door.other_platform.said if "asks to talk to me" in text]
    assert len(on_telegram) == len(on_slack) == 2
    assert all("`/pair approve " in text and "`/pair deny " in text for text in on_telegram)
    assert all("`!pair approve " in text and "`!pair deny " in text for text in on_slack)


async def test_people_are_told_once_that_a_conversation_is_full(redis: Redis) -> None:
    """Not with every message that is not taken; once more only after something was answered in between."""
    door = Door(redis, rate_limit_messages=1000)
    for number in range(MAX_WAITING):
        message = replace(MESSAGE, message_id=f"waits{number}")
        await door.mailbox.store(KEY, Envelope(message, Role.MEMBER, 1000.0))
    for times in (1, 2):
        answers = [await door.accept(replace(MESSAGE, message_id=f"{times}-{number}")) for number in range(4)]
        assert [one.why for one in answers] == ["mailbox_full"] * 4
        assert all(one.retry_after_seconds for one in answers)
        assert len(door.platform.said) == times
        assert door.platform.said[-1].startswith(f"{MailboxFull.user_text} I could not accept this message.")
        await door.mailbox.prepare()
        batch = await door.take()
        await door.mailbox.done(batch)
        for number in range(len(batch.envelopes)):
            accepted = await door.accept(replace(MESSAGE, message_id=f"{times}-again-{number}"))
            assert accepted.outcome == "stored"
    refused = await door.accept(replace(MESSAGE, message_id="over HTTP", caller_role=Role.MEMBER))
    assert refused.why == "mailbox_full"
    assert len(door.platform.said) == 2


async def refused_as(redis: Redis, text: str) -> str:
    """How a refused message is called in the notice of it."""
    await redis.flushall()
    door = Door(redis, rate_limit_messages=1)
    await door.accept(MESSAGE)
    await door.accept(replace(MESSAGE, message_id="m2", text=text))
    return door.platform.said[0].partition("\n\n> `")[2].removesuffix("`")


async def test_a_refused_message_is_called_by_one_line_that_ends_no_quotation(redis: Redis) -> None:
    assert await refused_as(redis, "a `b`\n\nc") == "a 'b' c"
    assert await refused_as(redis, "x" * 200) == "x" * BEGINNING_CHARACTERS + " …"


@pytest.mark.parametrize("one", ["👨‍👩‍👧", "e\u0301", "🇩🇪", "日"])
async def test_the_beginning_of_a_message_ends_between_what_people_take_for_characters(redis: Redis, one: str) -> None:
    for before in range(6):
        begun = (await refused_as(redis, "x" * before + one * BEGINNING_CHARACTERS)).removesuffix(" …")
        assert begun == "x" * before + one * ((BEGINNING_CHARACTERS - before) // len(one))
