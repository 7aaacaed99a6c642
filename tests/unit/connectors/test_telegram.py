"""What Telegram's updates mean, and how our parts become Telegram's calls."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from aiogram.types import (
    ChatMemberAdministrator,
    ChatMemberRestricted,
    MessageEntity,
    Update,
    WebhookInfo,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from connectors.connector import CommandHint, ConnectionState
from connectors.health import Backoff, ConnectionHealth
from connectors.message import (
    Attachment,
    Author,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    Quote,
    check_workspace_id,
)
from connectors.telegram import REPLY_HINT, payloads, updates
from connectors.telegram.api import Api
from connectors.telegram.check import RECENT_ERROR_SECONDS, is_same_address
from connectors.telegram.updates import Identity, to_inbound, to_markdown
from connectors.telegram.webhook import check_secret, delivery_trouble
from tests.emulators.telegram import entities_of
from tests.emulators.telegram_html import CannotParse, Entity, parse_html

ME = Identity(id=42, username="Helper_Bot")
BOT = {"id": 42, "is_bot": True, "first_name": "Helper", "username": "Helper_Bot"}
LENA = {"id": 501, "is_bot": False, "first_name": "Lena", "last_name": "Meyer", "username": "lena"}
PRIVATE = {"id": 501, "type": "private", "first_name": "Lena"}
GROUP = {"id": -10001, "type": "supergroup", "title": "Team"}
FILE = {"file_id": "F", "file_unique_id": "U", "file_size": 12}


def message(text: str | None = "hi", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"message_id": 9, "date": 1_700_000_000, "chat": GROUP, "from": LENA}
    if text is not None:
        found |= {"text": text, "entities": entities_of(text)}
    return found | more


def inbound(content: dict[str, Any], kind: str = "message") -> InboundMessage | None:
    return to_inbound(Update.model_validate({"update_id": 77, kind: content}), ME)


def must(content: dict[str, Any], kind: str = "message") -> InboundMessage:
    found = inbound(content, kind)
    assert found is not None
    return found


def test_a_private_message_is_direct_addressed_and_complete() -> None:
    """Every field of a plain private message."""
    assert must(message("hello", chat=PRIVATE)) == InboundMessage(
        connector="telegram",
        external_id="501",
        message_id="9",
        author=Author(id="501", name="Lena Meyer"),
        text="hello",
        sent_at=datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        direct=True,
        addressed=True,
        routes=("telegram:501",),
        default_workspace="telegram-501",
        reply_hint=REPLY_HINT,
    )


@pytest.mark.parametrize(
    ("more", "external_id", "routes"),
    [
        ({}, "-10001", ("telegram:-10001",)),
        (
            {"message_thread_id": 7, "is_topic_message": True},
            "-10001/7",
            ("telegram:-10001/7", "telegram:-10001"),
        ),
        # A chain of replies in a group without topics has a thread id too, and is no place of its own.
        ({"message_thread_id": 7}, "-10001", ("telegram:-10001",)),
    ],
)
def test_a_topic_is_a_place_of_its_own(more: dict[str, Any], external_id: str, routes: tuple[str, ...]) -> None:
    """The external id is the chat, with its topic where it has topics; routes name the topic first."""
    found = must(message(**more))
    assert (found.external_id, found.routes, found.direct) == (external_id, routes, False)


@given(first=st.integers(-(2**52), 2**52), second=st.integers(-(2**52), 2**52))
def test_different_chats_never_share_a_workspace(first: int, second: int) -> None:
    """The default workspace is a valid id and tells any two chats apart, also -10001 and 10001."""
    names = [
        must(message(chat={"id": chat, "type": "supergroup", "title": "x"})).default_workspace
        for chat in (first, second)
    ]
    assert [check_workspace_id(name) for name in names] == names
    assert (names[0] == names[1]) == (first == second)


@pytest.mark.parametrize(
    ("said", "addressed", "text"),
    [
        ("what is up?", False, "what is up?"),
        ("@Helper_Bot what is up?", True, "what is up?"),
        ("@helper_bot, what is up?", True, "what is up?"),
        ("@HELPER_BOT: what is up?", True, "what is up?"),
        ("what is up, @helper_bot?", True, "what is up?"),
        ("hey @helper_bot what is up?", True, "hey what is up?"),
        ("hey @helper_bot, what is up?", True, "hey, what is up?"),
        ("thanks @helper_bot", True, "thanks"),
        ("thanks, @helper_bot", True, "thanks"),
        ("thanks, @helper_bot!", True, "thanks!"),
        ("👋🏽👨‍👩‍👧 @helper_bot grüß 😀", True, "👋🏽👨‍👩‍👧 grüß 😀"),
        ("@helper_bot @helper_bot hi", True, "hi"),
        ("@helper_bot", True, ""),
        ("@helper_bot ask @alice_m", True, "ask @alice_m"),
        ("@alice_m what is up?", False, "@alice_m what is up?"),
        ("@helper_bot2 what is up?", False, "@helper_bot2 what is up?"),
        ("mail me@helper_bot please", False, "mail me@helper_bot please"),
        ("do /help@helper_bot me", True, "do /help me"),
        ("do /help@other_bot me", False, "do /help@other_bot me"),
        ("  @helper_bot\nfirst line\n  second", True, "first line\n  second"),
    ],
)
def test_in_a_group_a_message_is_addressed_by_the_bots_name(said: str, addressed: bool, text: str) -> None:
    """The bot's own name addresses it, in any case, and is taken out; other names stay."""
    found = must(message(said))
    assert (found.addressed, found.text) == (addressed, text)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="@/"), max_size=20), min_size=1))
def test_taking_the_name_out_takes_nothing_else(fragments: list[str]) -> None:
    """Whatever stands around the bot's name, in any script, every letter, digit and symbol of it stays."""
    said = " @helper_bot ".join(fragments)
    found = must(message(said, chat=PRIVATE)) if said else None
    kept = [c for c in (found.text if found else "") if c.isalnum() or c in "+=<>😀"]
    assert kept == [c for fragment in fragments for c in fragment if c.isalnum() or c in "+=<>😀"]


def test_a_mention_without_a_username_addresses_the_bot_too() -> None:
    """A text mention of the bot's account counts, one of somebody else's does not."""
    own = [{"type": "text_mention", "offset": 0, "length": 6, "user": BOT}]
    other = [{"type": "text_mention", "offset": 0, "length": 4, "user": LENA}]
    assert (must(message("Helper hi", entities=own)).addressed, must(message("Helper hi", entities=own)).text) == (
        True,
        "hi",
    )
    assert (must(message("Lena hi", entities=other)).addressed, must(message("Lena hi", entities=other)).text) == (
        False,
        "Lena hi",
    )


@pytest.mark.parametrize(
    ("said", "more", "addressed", "text"),
    [
        ("/help", {}, False, "help"),
        ("/help me", {}, False, "help me"),
        ("/help@helper_bot me", {}, True, "help me"),
        ("/Help@HELPER_BOT me", {}, True, "help me"),
        ("/help me @helper_bot", {}, True, "help me"),
        ("/help", {"reply_to_message": message("hi", **{"from": BOT})}, True, "help"),
        ("/help\nline one\n\n  line two", {"chat": PRIVATE}, True, "help\nline one\n\n  line two"),
        ("/start", {"chat": PRIVATE}, True, "start"),
        ("/start from-the-website", {"chat": PRIVATE}, True, "start from-the-website"),
    ],
)
def test_a_bot_command_at_the_beginning_is_a_command(
    said: str, more: dict[str, Any], addressed: bool, text: str
) -> None:
    """Its text is the word in small letters and what follows; in a group it need not name the bot."""
    found = must(message(said, **more))
    assert (found.kind, found.addressed, found.text) == (InboundKind.COMMAND, addressed, text)


def test_a_caption_can_be_a_command() -> None:
    """A file comes along with the command that it was given with."""
    said = "/learn this one"
    found = must(message(None, document=FILE, caption=said, caption_entities=entities_of(said)))
    assert (found.kind, found.text, len(found.attachments)) == (InboundKind.COMMAND, "learn this one", 1)


@pytest.mark.parametrize("chat", [GROUP, PRIVATE])
def test_a_command_for_another_bot_is_none_of_ours(chat: dict[str, Any]) -> None:
    """Wherever it is said."""
    assert inbound(message("/help@other_bot me", chat=chat)) is None


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (message("/help me", forward_origin={"type": "user", "date": 1, "sender_user": LENA}), InboundKind.MESSAGE),
        (message("see /help"), InboundKind.MESSAGE),
        (message("/help", entities=[]), InboundKind.MESSAGE),
        (message("/etc/hosts is empty"), InboundKind.MESSAGE),
    ],
)
def test_words_that_look_like_a_command_are_none(content: dict[str, Any], kind: InboundKind) -> None:
    """One that was forwarded, stands in the middle, or that Telegram did not take for one."""
    assert must(content).kind is kind


def test_an_edited_command_stays_an_edit() -> None:
    """What was given as a command is not given again."""
    found = must(message("/help you", edit_date=1_700_000_100), "edited_message")
    assert (found.kind, found.text) == (InboundKind.EDIT, "/help you")


def test_a_reply_to_the_bot_addresses_it_and_brings_the_quote() -> None:
    """What the bot said before comes along as the quote."""
    found = must(message("and on weekends?", reply_to_message=message("We open at nine.", **{"from": BOT})))
    assert found.addressed
    assert found.quote == Quote(author="Helper", text="We open at nine.")
    assert found.quote.message_id == "9"


@pytest.mark.parametrize(
    ("more", "addressed", "quote"),
    [
        ({"reply_to_message": message("old words")}, False, Quote("Lena Meyer", "old words")),
        ({"reply_to_message": message(None, caption="a map")}, False, Quote("Lena Meyer", "a map")),
        (
            {"reply_to_message": message("old words"), "quote": {"text": "words", "position": 4}},
            False,
            Quote("Lena Meyer", "words"),
        ),
        (
            {"reply_to_message": message(None, photo=[FILE | {"width": 1, "height": 1}])},
            False,
            Quote("Lena Meyer", "[photo.jpg]"),
        ),
        # Something was said in another chat: what was chosen of it is all there is.
        (
            {
                "quote": {"text": "far words", "position": 0},
                "external_reply": {"origin": {"type": "hidden_user", "date": 1, "sender_user_name": "Ada"}},
            },
            False,
            Quote("Ada", "far words"),
        ),
        # The first message of a topic hangs at the note of its creation: nobody replied to the bot.
        (
            {
                "reply_to_message": message(
                    None, forum_topic_created={"name": "News", "icon_color": 1}, **{"from": BOT}
                ),
                "is_topic_message": True,
                "message_thread_id": 3,
            },
            False,
            None,
        ),
    ],
)
def test_replies_to_others_bring_their_quote_only(more: dict[str, Any], addressed: bool, quote: Quote | None) -> None:
    """A reply to a person is not addressed to the bot, and quotes what was replied to."""
    found = must(message("yes", **more))
    assert (found.addressed, found.quote) == (addressed, quote)


@pytest.mark.parametrize(
    ("media", "attachment"),
    [
        (
            {"document": FILE | {"file_name": "plan.pdf", "mime_type": "application/pdf"}},
            Attachment("document", "plan.pdf", "application/pdf", 12, "F"),
        ),
        (
            {"photo": [FILE | {"file_id": "s", "width": 9, "height": 9}, FILE | {"width": 90, "height": 90}]},
            Attachment("image", "photo.jpg", "image/jpeg", 12, "F"),
        ),
        ({"voice": FILE | {"duration": 3}}, Attachment("voice", "voice.ogg", "audio/ogg", 12, "F")),
        (
            {"video": FILE | {"width": 1, "height": 1, "duration": 1, "file_name": "v.mp4", "mime_type": "video/mp4"}},
            Attachment("other", "v.mp4", "video/mp4", 12, "F"),
        ),
        (
            {"audio": FILE | {"duration": 1, "file_name": "a.mp3", "mime_type": "audio/mpeg"}},
            Attachment("voice", "a.mp3", "audio/mpeg", 12, "F"),
        ),
        (
            {"video_note": FILE | {"length": 1, "duration": 1}},
            Attachment("voice", "video-note.mp4", "video/mp4", 12, "F"),
        ),
        # Pictures that were sent uncompressed are pictures all the same; drawings of other kinds are documents.
        ({"document": FILE | {"mime_type": "image/png"}}, Attachment("image", "document.png", "image/png", 12, "F")),
        (
            {"document": FILE | {"file_name": "x.svg", "mime_type": "image/svg+xml"}},
            Attachment("document", "x.svg", "image/svg+xml", 12, "F"),
        ),
        (
            {"animation": FILE | {"width": 1, "height": 1, "duration": 1}, "document": FILE},
            Attachment("other", "video", "", 12, "F"),
        ),
    ],
)
def test_a_file_is_listed_and_its_caption_is_the_text(media: dict[str, Any], attachment: Attachment) -> None:
    """Media come as one attachment each, not fetched, with the caption as what was said."""
    caption = {"caption": "@helper_bot read this", "caption_entities": entities_of("@helper_bot read this")}
    found = must(message(None, **media, **caption))
    assert (found.text, found.addressed, found.attachments) == ("read this", True, (attachment,))
    assert must(message(None, chat=PRIVATE, **media)).text == ""


POINT = {"latitude": 52.52, "longitude": 13.405}
STICKER = {"type": "regular", "width": 1, "height": 1, "is_animated": False, "is_video": False}
POLL = {
    "id": "1", "total_voter_count": 0, "is_closed": False, "is_anonymous": True, "type": "regular",
    "allows_multiple_answers": False, "allows_revoting": True, "members_only": False, "question": "Lunch?",
    "options": [{"persistent_id": str(n), "text": t, "voter_count": 0} for n, t in enumerate(("Soup", "Salad"))],
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"sticker": FILE | STICKER | {"emoji": "😀"}}, "[sticker 😀]"),
        ({"sticker": FILE | STICKER}, "[sticker]"),
        ({"location": POINT}, "[location: 52.52000, 13.40500]"),
        (
            {"venue": {"location": POINT, "title": "Office", "address": "Main St 1"}, "location": POINT},
            "[place: Office, Main St 1 (52.52000, 13.40500)]",
        ),
        ({"contact": {"phone_number": "+49123", "first_name": "Bo"}}, "[contact: Bo, +49123]"),
        ({"poll": POLL}, "[poll: Lunch?: Soup; Salad]"),
        ({"dice": {"emoji": "🎲", "value": 4}}, "[🎲 4]"),
        ({"story": {"chat": GROUP, "id": 1}}, "[story]"),
    ],
)
def test_what_is_neither_text_nor_file_is_told_in_brackets(content: dict[str, Any], text: str) -> None:
    """In one line."""
    found = must(message(None, **content))
    assert (found.text, found.attachments) == (text, ())


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ({"type": "user", "date": 1, "sender_user": LENA}, "Lena Meyer"),
        ({"type": "hidden_user", "date": 1, "sender_user_name": "Ada"}, "Ada"),
        ({"type": "chat", "date": 1, "sender_chat": GROUP}, "Team"),
        ({"type": "channel", "date": 1, "chat": GROUP | {"type": "channel"}, "message_id": 3}, "Team"),
    ],
)
def test_what_was_forwarded_says_whose_it_is(origin: dict[str, Any], name: str) -> None:
    """The origin stands above the words; who forwarded them is the author."""
    found = must(message("old words", forward_origin=origin, chat=PRIVATE))
    assert (found.text, found.author.name) == (f"[forwarded from {name}]\nold words", "Lena Meyer")
    assert found.relayed is (name != "Lena Meyer")
    assert found.looks_unfinished


def test_where_somebody_is_now_is_not_told_again_and_again() -> None:
    """A live location comes once; its updates are no edits."""
    assert inbound(message(None, location=POINT, edit_date=1_700_000_100), "edited_message") is None


def test_a_reaction_to_a_message_of_a_topic_belongs_to_that_topic() -> None:
    """As far as anybody knows where the message stands."""
    content = {"chat": GROUP, "message_id": 9, "date": 1, "user": LENA, "old_reaction": [], "new_reaction": []}
    update = Update.model_validate({"update_id": 77, "message_reaction": content})
    known = to_inbound(update, ME, lambda chat, message_id: 7 if (chat, message_id) == (-10001, 9) else None)
    unknown = to_inbound(update, ME)
    assert known is not None
    assert unknown is not None
    assert (known.external_id, unknown.external_id) == ("-10001/7", "-10001")
    assert known.routes == ("telegram:-10001/7", "telegram:-10001")


@pytest.mark.parametrize(
    ("more", "ids"),
    [({"migrate_to_chat_id": -1005}, (-10001, -1005)), ({"migrate_from_chat_id": -5}, (-5, -10001)), ({}, None)],
)
def test_a_group_that_becomes_a_supergroup_says_so(more: dict[str, int], ids: tuple[int, int] | None) -> None:
    """Old and new id, from either side; nobody said anything."""
    content = message(None if more else "hi", **more)
    update = Update.model_validate({"update_id": 77, "message": content})
    assert updates.chat_migration(update) == ids
    assert (to_inbound(update, ME) is None) == bool(more)


@pytest.mark.parametrize(
    ("said", "more", "unfinished"),
    [
        ("x" * 100, {}, False),
        ("x" * 3999, {}, False),
        ("x" * 4096, {}, True),
        ("😀" * 2048, {}, True),
        ("x", {"media_group_id": "g"}, True),
        ("x", {"forward_origin": {"type": "user", "date": 1, "sender_user": LENA}}, True),
    ],
)
def test_a_message_that_may_go_on_is_marked(said: str, more: dict[str, Any], unfinished: bool) -> None:
    """At the size limit (in UTF-16 units), in a media group or forwarded: more may follow."""
    assert must(message(said, **more)).looks_unfinished == unfinished


def test_a_reaction_that_gives_way_to_another_is_told_with_it() -> None:
    def emoji(*said: str) -> list[dict[str, str]]:
        return [{"type": "emoji", "emoji": one} for one in said]

    content = {"chat": GROUP, "message_id": 9, "date": 1, "user": LENA}
    changed = must(content | {"old_reaction": emoji("👍"), "new_reaction": emoji("👎")}, "message_reaction")
    assert (changed.reaction, changed.unreacted) == ("👎", ("👍",))
    fewer = must(content | {"old_reaction": emoji("👍", "❤"), "new_reaction": emoji("👍")}, "message_reaction")
    assert (fewer.reaction, fewer.unreacted) == ("", ("❤",))


@pytest.mark.parametrize(("new", "reaction"), [([{"type": "emoji", "emoji": "👀"}], "👀"), ([], "")])
def test_a_reaction_says_who_put_what_on_which_message(new: list[dict[str, str]], reaction: str) -> None:
    """A reaction carries the message's id; an emoji that was taken away is empty."""
    content = {"chat": GROUP, "message_id": 9, "date": 1, "user": LENA, "old_reaction": [], "new_reaction": new}
    found = must(content, "message_reaction")
    assert (found.kind, found.message_id, found.reaction, found.author.id, found.addressed) == (
        InboundKind.REACTION,
        "9",
        reaction,
        "501",
        False,
    )


@pytest.mark.parametrize(
    ("was", "becomes", "is_member", "kind"),
    [
        ("left", "member", True, InboundKind.JOINED),
        ("member", "left", False, InboundKind.LEFT),
        ("administrator", "kicked", False, InboundKind.LEFT),
        ("member", "administrator", True, None),
        ("member", "restricted", True, None),
        ("member", "restricted", False, InboundKind.LEFT),
        ("left", "restricted", True, InboundKind.JOINED),
    ],
)
def test_coming_and_going_of_the_bot_are_told(
    was: str, becomes: str, is_member: bool, kind: InboundKind | None
) -> None:
    """The bot was added or removed; a change of its rights is neither."""
    may = {name: False for one in (ChatMemberAdministrator, ChatMemberRestricted) for name in one.model_fields}
    rights = {name: value for name, value in may.items() if name.startswith(("can_", "is_"))}
    content = {
        "chat": GROUP,
        "from": LENA,
        "date": 1,
        "old_chat_member": rights | {"status": was, "user": BOT, "until_date": 0, "is_member": True},
        "new_chat_member": rights | {"status": becomes, "user": BOT, "until_date": 0, "is_member": is_member},
    }
    found = inbound(content, "my_chat_member")
    assert (found.kind if found else None) == kind
    assert found is None or (found.message_id, found.author.id) == ("membership-77", "501")


@pytest.mark.parametrize(
    "content",
    [
        message("from myself", **{"from": BOT}),
        message(None, new_chat_members=[LENA]),
        message(None, pinned_message=message("x")),
        message(""),
        # A channel's post, as Telegram shows it in the channel's discussion group.
        message("news", is_automatic_forward=True, sender_chat={"id": -7, "type": "channel", "title": "News"}),
    ],
)
def test_own_messages_and_service_notes_are_dropped(content: dict[str, Any]) -> None:
    """What the bot said itself, and what nobody said, is no message."""
    assert inbound(content) is None


def test_other_bots_are_marked_and_stand_in_accounts_are_not_bots() -> None:
    """Another bot's message says so; an anonymous admin speaks as the group and is no bot."""
    other = must(message("beep", **{"from": BOT | {"id": 43}}))
    assert other.author.is_bot
    anonymous = must(
        message("hi", sender_chat=GROUP, **{"from": {"id": 1087968824, "is_bot": True, "first_name": "G"}})
    )
    assert anonymous.author == Author(id="-10001", name="Team")


def outbound(text: str, external_id: str = "-10001/7", reply_to: str | None = None) -> OutboundMessage:
    return OutboundMessage(ConversationKey("acme", "telegram", external_id), "t1", text, reply_to=reply_to)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("", []),
        (" \n\t ", []),
        ("\u200b\u2060", []),
        ("x" + " " * 5000 + "y", ["x" + " " * 4095, " " * 905 + "y"]),
        ("\ud83d\ude00 \ud800", ["😀 \ufffd"]),
    ],
)
def test_what_telegram_would_refuse_is_not_sent(text: str, texts: list[str]) -> None:
    """Texts without anything visible have no parts; lone surrogates become U+FFFD."""
    assert [part.text for part in payloads.to_parts(outbound(text), 5)] == texts


def test_a_reply_is_formatted_and_can_go_out_plain() -> None:
    """Marks become tags and what looks like a tag is escaped; plain, links are followed by their addresses."""
    (part,) = payloads.to_parts(outbound("**1 < 2** & [docs](https://x.example/?a=1&b=2) [refunds.md › Windows]"), 5)
    assert part.text == (
        '<b>1 &lt; 2</b> &amp; <a href="https://x.example/?a=1&amp;b=2">docs</a> [refunds.md › Windows]'
    )
    plain = payloads.without_formatting(part)
    assert plain.text == "1 < 2 & docs (https://x.example/?a=1&b=2) [refunds.md › Windows]"
    assert payloads.to_send(outbound(""), plain).parse_mode is None
    assert (plain.index, plain.token) == (part.index, part.token)
    assert payloads.without_formatting(plain) is plain


def test_a_plain_part_is_within_the_limit_too() -> None:
    """Addresses that would make it too long are left out."""
    parts = payloads.to_parts(outbound(f"[docs](https://x.example/{'a' * 200}) " * 30), 5)
    plain = [payloads.without_formatting(part).text for part in parts]
    assert plain == [("docs " * 30).rstrip()]


@given(st.integers(-(2**52), 2**52), st.none() | st.integers(1, 2**31))
def test_places_survive_the_way_out_and_back(chat: int, topic: int | None) -> None:
    """The external id of a message leads back to its chat and topic."""
    more: dict[str, Any] = {} if topic is None else {"message_thread_id": topic, "is_topic_message": True}
    found = must(message(chat={"id": chat, "type": "supergroup", "title": "x"}, **more))
    assert payloads.split_place(found.external_id) == (chat, topic)


@given(
    st.lists(
        st.builds(
            CommandHint,
            st.from_regex(r"[a-z0-9_]{1,32}", fullmatch=True) | st.text(max_size=40),
            st.text(max_size=400),
            st.text(max_size=300),
        ),
        max_size=120,
    )
)
def test_whatever_the_commands_telegram_would_take_what_is_registered(hints: list[CommandHint]) -> None:
    """At most 100, names of its form, descriptions of 1 to 256 characters; what is left out is named."""
    shown, unfit = payloads.to_commands(hints)
    assert len(shown) <= 100
    assert all(re.fullmatch(r"[a-z0-9_]{1,32}", one.command) for one in shown)
    assert all(1 <= len(one.description) <= 256 for one in shown)
    assert len(shown) + len(unfit) == len(hints)


@pytest.mark.parametrize(
    ("chat", "audience"),
    [
        (PRIVATE, "telegram:501"),
        (GROUP, "place:telegram:-10001"),
        (GROUP | {"username": "our_team"}, None),
        ({"id": -5, "type": "group", "title": "Family"}, "place:telegram:-5"),
    ],
)
@pytest.mark.parametrize("topic", [{}, {"message_thread_id": 7, "is_topic_message": True}])
def test_a_chat_is_public_where_telegram_gives_it_a_name(
    chat: dict[str, Any], topic: dict[str, Any], audience: str | None
) -> None:
    """Its topics belong to it, also where a button was pressed or a reaction given."""
    said = message(chat=chat, **topic)
    press = {"id": "1", "from": LENA, "chat_instance": "x", "data": "/help", "message": said}
    assert must(said).audience == must(said, "edited_message").audience == audience
    assert must(press, "callback_query").audience == audience


OUR_BOT = Identity(900, "our_bot")

KINDS = ["bold", "italic", "strikethrough", "code", "pre", "text_link", "blockquote", "spoiler", "mention"]


def at(kind: str, text: str, part: str, **more: Any) -> MessageEntity:
    """An entity over *part* of *text*."""
    offset = len(text[: text.index(part)].encode("utf-16-le")) // 2
    return MessageEntity(type=kind, offset=offset, length=len(part.encode("utf-16-le")) // 2, **more)


@pytest.mark.parametrize(
    ("text", "entities", "expected"),
    [
        ("a bold word", [("bold", "bold", {})], "a **bold** word"),
        ("👋🏽 a bold word", [("bold", "bold", {})], "👋🏽 a **bold** word"),
        ("so  very  much", [("italic", "  very  ", {})], "so  _very_  much"),
        ("gone", [("strikethrough", "gone", {})], "~~gone~~"),
        ("run ls now", [("code", "ls", {})], "run `ls` now"),
        ("run a`b now", [("code", "a`b", {})], "run ``a`b`` now"),
        ("see docs", [("text_link", "docs", {"url": "https://x.example/a"})], "see [docs](https://x.example/a)"),
        ("see docs", [("text_link", "docs", {"url": "https://x.example/(a)"})], "see [docs](<https://x.example/(a)>)"),
        ("https://x.example", [("text_link", "https://x.example", {"url": "https://x.example/"})], "https://x.example"),
        ("x = 1\ny = 2", [("pre", "x = 1\ny = 2", {"language": "python"})], "```python\nx = 1\ny = 2\n```"),
        ("look: x = 1 and so on", [("pre", "x = 1", {})], "look: \n```\nx = 1\n```\n and so on"),
        ("```", [("pre", "```", {})], "````\n```\n````"),
        ("one\ntwo\nsaid", [("blockquote", "one\ntwo", {})], "> one\n> two\nsaid"),
        ("both", [("bold", "both", {}), ("italic", "both", {})], "**_both_**"),
        ("one two", [("bold", "one two", {}), ("italic", "two", {})], "**one _two_**"),
        ("onetwo", [("bold", "one", {}), ("italic", "two", {})], "**one**_two_"),
        ("secret", [("spoiler", "secret", {})], "secret"),
        ("@lena_m", [("bold", "@lena_m", {}), ("mention", "@lena_m", {})], "@lena_m"),
        ("/help me", [("bold", "/help me", {}), ("bot_command", "/help", {})], "/help me"),
        ("/help me", [("bold", "me", {}), ("bot_command", "/help", {})], "/help **me**"),
        ("   ", [("bold", "   ", {})], "   "),
    ],
)
def test_marks_stand_where_people_set_them(text: str, entities: list[tuple[str, str, Any]], expected: str) -> None:
    """Nested ones close in the order in which they were opened; names and commands that are called stay bare."""
    assert to_markdown(text, [at(kind, text, part, **more) for kind, part, more in entities], OUR_BOT)[0] == expected


def test_the_bots_name_is_removed_behind_marks() -> None:
    text = "see docs, @our_bot"
    entities = [at("text_link", text, "docs", url="https://x.example"), at("mention", text, "@our_bot")]
    assert to_markdown(text, entities, OUR_BOT) == ("see [docs](https://x.example)", True)


@given(
    text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40),
    spans=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 40), st.integers(1, 20)), max_size=5),
)
def test_no_character_is_lost_whatever_is_marked(text: str, spans: list[tuple[str, int, int]]) -> None:
    """All of them stay, in their order; without marks the text stays as it is. Telegram's entities never cross."""
    size = len(text)
    entities: list[MessageEntity] = []
    for kind, start, length in spans:
        begin, end = min(start, size), min(start + length, size)
        offset, stop = (len(text[:cut].encode("utf-16-le")) // 2 for cut in (begin, end))
        crosses = any(
            offset < other.offset < stop < other.offset + other.length
            or other.offset < offset < other.offset + other.length < stop
            for other in entities
        )
        if begin < end and not crosses:
            entities.append(MessageEntity(type=kind, offset=offset, length=stop - offset, url="https://x.example"))
    marked, _ = to_markdown(text, entities, OUR_BOT)
    rest = iter(marked)
    assert all(character in rest for character in text)
    assert to_markdown(text, [], OUR_BOT) == (text, False)


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("waiting", "failed_seconds_ago", "troubled"),
    [
        (3, 10.0, True),
        (3, RECENT_ERROR_SECONDS + 1, False),
        (0, 10.0, False),
        (3, None, False),
    ],
)
def test_deliveries_are_troubled_while_something_waits_that_failed_lately(
    waiting: int, failed_seconds_ago: float | None, troubled: bool
) -> None:
    """Telegram goes on naming an error after it is over."""
    more = {} if failed_seconds_ago is None else {"last_error_date": int(NOW - failed_seconds_ago)}
    info = WebhookInfo.model_validate(
        {
            "url": "https://bot.example/telegram/webhook",
            "has_custom_certificate": False,
            "pending_update_count": waiting,
            "last_error_message": "Connection timed out",
        }
        | more
    )
    why = delivery_trouble(info, NOW)
    assert ("Connection timed out" in why and "3 updates" in why) == troubled
    assert bool(why) == troubled


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("https://bot.example/telegram/webhook", True),
        ("https://bot.example:8443/telegram/webhook", False),
        ("https://bot.example/telegram/other", False),
        ("https://other.example/telegram/webhook", False),
        ("", False),
    ],
)
def test_an_address_is_the_same_however_it_is_written(shown: str, same: bool) -> None:
    """Hosts have no case."""
    assert is_same_address(shown, "https://Bot.EXAMPLE/telegram/webhook") == same


def test_a_host_of_another_script_is_the_same_in_ascii() -> None:
    """Telegram shows the name by which it is asked for."""
    ascii_name = "bücher".encode("idna").decode()
    assert ascii_name == "xn--bcher-kva"
    assert is_same_address(f"https://{ascii_name}.example/x", "https://bücher.example/x")


@pytest.mark.parametrize("secret", ["a", "A-z_0-9", "x" * 256])
def test_a_secret_that_telegram_takes_is_fit(secret: str) -> None:
    """1 to 256 of its characters."""
    assert check_secret(SecretStr(secret)) == ""


@pytest.mark.parametrize("secret", ["", "a b", "x" * 257, "a\n", "é"])
def test_another_is_refused_without_being_shown(secret: str) -> None:
    """The operator reads the variable's name, not its value."""
    why = check_secret(SecretStr(secret))
    assert "AGENT_RUNTIME_TELEGRAM_WEBHOOK_SECRET" in why
    assert len(secret) < 2 or secret not in why


def test_troubles_are_told_until_each_is_over() -> None:
    """Connecting at first; then degraded while anything troubles it; what failed stays failed when it stops."""
    vitals = ConnectionHealth()
    vitals.trouble("connection", "no network")
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.CONNECTING, "no network")
    vitals.connected()
    vitals.trouble("store", "no store")
    vitals.well("connection")
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.DEGRADED, "no store")
    vitals.well("store")
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.CONNECTED, "")
    vitals.failed("no token")
    vitals.stopped()
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.FAILED, "no token")
    vitals.start()
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.CONNECTING, "")


def test_waits_grow_to_a_limit_and_one_that_was_asked_for_is_kept() -> None:
    """With jitter downwards by at most half."""
    backoff = Backoff(1.0, 4.0)
    waits = [backoff.next_seconds() for _ in range(5)]
    assert all(0.5 * longest <= wait <= longest for wait, longest in zip(waits, (1, 2, 4, 4, 4), strict=True))
    assert backoff.next_seconds(17.0) == 17.0


def test_an_error_is_told_in_one_line_without_the_token() -> None:
    """The token is part of every URL."""
    api = Api(SecretStr("123456:SECRET"), "https://api.telegram.org", 1.0, ConnectionHealth(), Backoff(1.0, 4.0))
    error = RuntimeError("https://api.telegram.org/bot123456:SECRET/getMe failed\nand more")
    assert api.describe(error) == "https://api.telegram.org/bot**********/getMe failed"
    assert api.describe(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(
    ("markup", "text", "entities"),
    [
        ("<b>a<i>b</i></b>", "ab", [Entity("bold", 0, 2), Entity("italic", 1, 1)]),
        ("😀<s>x</s>", "😀x", [Entity("strikethrough", 2, 1)]),
        ('<pre><code class="language-c++">x</code></pre>', "x", [Entity("pre", 0, 1, "c++")]),
        ('<a href="https://x.yz/?a=1&amp;b=2">q</a>', "q", [Entity("text_link", 0, 1, "https://x.yz/?a=1&b=2")]),
        ('<a href="http://localhost/x">y</a>', "y", []),
        ('<a href="javascript:x">y</a>', "y", []),
        ("<B>x</b >", "x", [Entity("bold", 0, 1)]),
        ("<b></b>x", "x", []),
        ("&amp; &lt; &#65; &nbsp; &", "& < A &nbsp; &", []),
        ("a > b", "a > b", []),
        ("<blockquote>a<pre>x</pre></blockquote>", "ax", [Entity("blockquote", 0, 2), Entity("pre", 1, 1)]),
    ],
)
def test_what_telegram_reads(markup: str, text: str, entities: list[Entity]) -> None:
    """Text and entities; offsets count UTF-16 code units."""
    assert parse_html(markup) == (text, tuple(entities))


@pytest.mark.parametrize(
    ("markup", "why"),
    [
        ("<b>x", 'Can\'t find end tag corresponding to start tag "b"'),
        ("é<foo>x</foo>", 'Unsupported start tag "foo" at byte offset 2'),
        ("a < b", 'Unsupported start tag "" at byte offset 2'),
        ("a<br>b", 'Unsupported start tag "br" at byte offset 1'),
        ("</b>", "Unexpected end tag at byte offset 0"),
        ("<b>x</i>", 'Unmatched end tag at byte offset 4, expected "</b>", found "</i>"'),
    ],
)
def test_what_telegram_refuses(markup: str, why: str) -> None:
    """In Telegram's words."""
    with pytest.raises(CannotParse) as caught:
        parse_html(markup)
    assert str(caught.value) == why
