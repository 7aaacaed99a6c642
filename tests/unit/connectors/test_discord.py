"""What Discord's events mean, and what it is told of replies, commands and files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import discord
import pytest
from discord.user import ClientUser
from hypothesis import given
from hypothesis import strategies as st

from connectors.connector import AttachmentUnavailable, CommandHint, Location
from connectors.discord import REPLY_HINT, events
from connectors.discord.events import (
    CDN_HOSTS,
    Identity,
    Names,
    handle_of,
    location,
    read_handle,
    url_in,
    with_names,
    without_own_mentions,
)
from connectors.discord.interactions import MAX_COMMANDS, from_interaction, to_commands
from connectors.discord.login import ConnectionOptions, GatewayClient
from connectors.discord.payloads import NONCE_CHARACTERS, nonce_of, to_parts
from connectors.message import (
    Attachment,
    Author,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Quote,
    check_workspace_id,
)
from tests.emulators.discord import DiscordEmulator, Json, Person, Place, Room
from tests.emulators.discord_nouns import VOICE_MESSAGE

LENA = Person(id=501, name="Lena")
TEAM = Room(channel_id=910, name="general")
THREAD = Room(channel_id=911, name="refunds", parent=910)
JOINED = Room(channel_id=912, name="prices", parent=910, joined=True)
POLL: Json = {
    "question": {"text": "Which harbour?"},
    "answers": [{"answer_id": 1, "poll_media": {"text": "North"}}, {"answer_id": 2, "poll_media": {"text": "South"}}],
    "expiry": "2026-01-02T00:00:00+00:00",
    "allow_multiselect": False,
    "layout_type": 1,
}
FILE: Json = {"id": "1", "size": 12, "filename": "a.md", "url": "https://cdn/a.md", "proxy_url": "https://cdn/a.md"}


class Ear:
    """Hears what discord.py tells of the gateway's frames, without a gateway."""

    def __init__(self) -> None:
        self.discord = DiscordEmulator(rooms=(TEAM, THREAD, JOINED))
        self.heard: list[InboundMessage] = []
        options = ConnectionOptions(
            "http://127.0.0.1:1", "ws://127.0.0.1:1", request_seconds=1, call_seconds=1, heartbeat_seconds=60
        )
        self.client = GatewayClient(options, self._tell)
        user: Any = self.discord.me.as_json()
        self.state = self.client._connection
        self.state.user = ClientUser(state=self.state, data=user)
        self.frame("GUILD_CREATE", self.discord.guild(900))
        self.heard.clear()

    def frame(self, event: str, data: Json) -> None:
        self.state.parsers[event](data)

    def hears(self, text: str, *, to: Place = LENA, by: Person = LENA, **more: Any) -> InboundMessage | None:
        """What a message becomes."""
        told = self.discord.message_json(to, by, text) | {"id": "1000"} | more
        if to.guild_id is not None:
            told |= {
                "guild_id": str(to.guild_id),
                "member": {"roles": [], "flags": 0, "joined_at": None, "nick": "Leni"},
            }
        before = len(self.heard)
        self.frame("MESSAGE_CREATE", told)
        return self.heard[before] if len(self.heard) > before else None

    def _tell(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        self.heard += events.to_inbound(client, self.discord.me.id, event, args)


@pytest.fixture
def ear() -> Ear:
    return Ear()


def test_a_direct_message_is_addressed_and_has_a_workspace_of_its_own(ear: Ear) -> None:
    assert ear.hears("hello") == InboundMessage(
        connector="discord",
        external_id="7000501",
        message_id="1000",
        author=Author("501", "Lena"),
        text="hello",
        sent_at=discord.utils.snowflake_time(1000),
        direct=True,
        addressed=True,
        routes=("discord:7000501", "discord:dm-501"),
        default_workspace="discord-dm-501",
        reply_hint=REPLY_HINT,
    )


def test_on_a_server_only_a_mention_addresses_the_bot(ear: Ear) -> None:
    """By its name or by the role that Discord made for it; the routes go from the channel to the server."""
    plain = ear.hears("nobody asks", to=TEAM)
    assert plain is not None
    assert (plain.addressed, plain.direct, plain.author.name) == (False, False, "Leni")
    for name in ("<@123>", "<@!123>", "<@&321>"):
        called = ear.hears(f"{name} what is up?", to=TEAM)
        assert called is not None
        assert (called.addressed, called.text) == (True, "what is up?")
        assert called.routes == ("discord:900/910", "discord:900")
        assert called.default_workspace == "discord-900"


def test_a_thread_is_a_place_of_its_own_below_its_channel(ear: Ear) -> None:
    said = ear.hears("<@123> and here?", to=THREAD)
    assert said is not None
    assert said.external_id == "911"
    assert said.routes == ("discord:900/911", "discord:900/910", "discord:900")


def test_in_a_thread_that_the_bot_is_a_member_of_everything_is_meant_for_it(ear: Ear) -> None:
    inside, outside = ear.hears("and now?", to=JOINED), ear.hears("and now?", to=THREAD)
    assert inside is not None
    assert outside is not None
    assert (inside.addressed, outside.addressed) == (True, False)


def test_a_reply_to_the_bot_addresses_it_and_brings_the_quote(ear: Ear) -> None:
    own = ear.discord.message_json(TEAM, ear.discord.me, "It is <@501>'s.") | {"mentions": [LENA.as_json()]}
    other = ear.discord.message_json(TEAM, Person(id=7, name="Bo"), "mine")
    reference = {"message_id": own["id"], "channel_id": "910"}
    said = ear.hears("sure?", to=TEAM, type=19, message_reference=reference, referenced_message=own)
    assert said is not None
    assert said.addressed
    assert said.quote == Quote("Helper", "It is @Lena's.")
    assert said.quote.message_id == own["id"]
    said = ear.hears("sure?", to=TEAM, type=19, message_reference=reference, referenced_message=other)
    assert said is not None
    assert (said.addressed, said.quote) == (False, Quote("Bo", "mine"))
    said = ear.hears("sure?", to=TEAM, type=19, message_reference=reference, referenced_message=None)
    assert said is not None
    assert said.quote is None


def test_names_stand_where_discord_has_ids(ear: Ear) -> None:
    said = ear.hears("<@7> see <#910> and <#912>, <@&321>", to=TEAM, mentions=[Person(id=7, name="Bo").as_json()])
    assert said is not None
    assert said.text == "@Bo see #general and #prices"


def test_own_messages_and_discords_notes_are_nobodys_words(ear: Ear) -> None:
    assert ear.hears("I said", by=ear.discord.me) is None
    assert ear.hears("", type=7, to=TEAM) is None
    assert ear.hears("", to=TEAM) is None


def test_other_bots_and_webhooks_are_marked(ear: Ear) -> None:
    bot = ear.hears("<@123> beep", to=TEAM, by=Person(id=8, name="Beep", is_bot=True))
    hook = ear.hears("<@123> boop", to=TEAM, webhook_id="55")
    assert bot is not None
    assert hook is not None
    assert bot.author.is_bot
    assert hook.author.is_bot


@pytest.mark.parametrize(
    ("media_type", "flags", "kind"),
    [
        ("image/png", 0, "image"),
        ("audio/ogg; codecs=opus", VOICE_MESSAGE, "voice"),
        ("audio/mpeg", 0, "other"),
        ("video/mp4", 0, "other"),
        ("text/markdown; charset=utf-8", 0, "document"),
        (None, 0, "document"),
    ],
)
def test_files_are_listed_by_kind(ear: Ear, media_type: str | None, flags: int, kind: Any) -> None:
    file = FILE | ({"content_type": media_type} if media_type else {})
    said = ear.hears("", attachments=[file], flags=flags)
    assert said is not None
    plain = (media_type or "").partition(";")[0]
    assert said.attachments == (Attachment(kind, "a.md", plain, 12, "7000501/1000/1"),)


def test_a_forwarded_message_comes_as_a_quote_with_its_files(ear: Ear) -> None:
    snapshot = {
        "type": 0,
        "content": "the fee is 12 euros",
        "embeds": [],
        "attachments": [FILE],
        "timestamp": "2026-01-01T00:00:00+00:00",
        "edited_timestamp": None,
        "flags": 0,
    }
    reference = {"type": 1, "message_id": "5", "channel_id": "910"}
    said = ear.hears("", message_reference=reference, message_snapshots=[{"message": snapshot}])
    assert said is not None
    assert said.quote == Quote("", "the fee is 12 euros")
    assert [(file.name, file.handle) for file in said.attachments] == [("a.md", "7000501/1000/1")]
    assert said.looks_unfinished


@pytest.mark.parametrize(("length", "unfinished"), [(1899, False), (1900, True), (2000, True)])
def test_a_message_near_the_limit_may_go_on(ear: Ear, length: int, unfinished: bool) -> None:
    said = ear.hears("a" * length)
    assert said is not None
    assert said.looks_unfinished is unfinished


def test_an_edit_is_told_and_a_preview_is_none(ear: Ear) -> None:
    """Nor is it an edit when somebody pins a message or takes its preview away."""
    told = ear.discord.message_json(LENA, LENA, "see https://example.org")
    ear.frame("MESSAGE_UPDATE", told | {"embeds": [{"type": "link", "title": "A page"}]})
    assert ear.heard == []
    edited = told | {"content": "look at https://example.org", "edited_timestamp": "2026-01-01T00:00:09+00:00"}
    ear.frame("MESSAGE_CREATE", told)
    ear.heard.clear()
    ear.frame("MESSAGE_UPDATE", edited)
    ear.frame("MESSAGE_UPDATE", edited | {"embeds": [{"type": "link", "title": "A page"}]})
    ear.frame("MESSAGE_UPDATE", edited | {"pinned": True, "edited_timestamp": "2026-01-01T00:00:10+00:00"})
    ear.frame("MESSAGE_UPDATE", edited | {"attachments": [FILE], "edited_timestamp": "2026-01-01T00:00:11+00:00"})
    assert [(m.kind, m.text, len(m.attachments)) for m in ear.heard] == [
        (InboundKind.EDIT, "look at https://example.org", 0),
        (InboundKind.EDIT, "look at https://example.org", 1),
    ]
    assert ear.heard[0].sent_at == discord.utils.parse_time("2026-01-01T00:00:09+00:00")


def test_what_is_shown_without_words_is_said_in_brackets(ear: Ear) -> None:
    """Stickers, polls and what apps wrote into embeds; a link's preview is none of its author's words."""
    sticker = ear.hears("", sticker_items=[{"id": "3", "name": "Wave", "format_type": 1}])
    poll = ear.hears("", poll=POLL)
    embeds = [{"type": "link", "title": "A page"}, {"type": "rich", "title": "Build 7", "description": "is\ngreen"}]
    embed = ear.hears("news", embeds=embeds)
    assert [said and said.text for said in (sticker, poll, embed)] == [
        "[sticker: Wave]",
        "[poll: Which harbour? – North / South]",
        "news\n[embed: Build 7 – is green]",
    ]
    assert ear.hears("", embeds=embeds[:1]) is None


def test_a_very_long_embed_is_cut(ear: Ear) -> None:
    said = ear.hears("", embeds=[{"type": "rich", "description": "word " * 400}])
    assert said is not None
    assert len(said.text) < 520
    assert said.text.endswith("…]")


def test_a_name_in_an_embed_does_not_call_the_bot(ear: Ear) -> None:
    said = ear.hears("", to=TEAM, embeds=[{"type": "rich", "description": "thanks <@123>"}])
    assert said is not None
    assert not said.addressed


def test_a_forum_post_begins_with_its_title(ear: Ear) -> None:
    """And only its first message does."""
    forum = {"id": "930", "type": 15, "name": "questions", "guild_id": "900", "position": 1, "available_tags": []}
    ear.frame("CHANNEL_CREATE", forum | {"permission_overwrites": []})
    post = Room(channel_id=931, name="How do refunds work?", parent=930)
    ear.frame("THREAD_CREATE", ear.discord._channel(post) | {"newly_created": True})
    first = ear.hears("<@123> I was charged twice.", to=post, id="931")
    next_one = ear.hears("<@123> and now?", to=post, id="932")
    assert first is not None
    assert next_one is not None
    assert (first.text, next_one.text) == ("[post: How do refunds work?]\nI was charged twice.", "and now?")
    assert first.routes == ("discord:900/931", "discord:900/930", "discord:900")


def test_a_reply_without_its_original_is_quoted_from_memory(ear: Ear) -> None:
    """Discord may leave the original out; what was heard before is known all the same."""
    own = ear.discord.message_json(TEAM, ear.discord.me, "It is mine.") | {"guild_id": "900", "id": "77"}
    ear.frame("MESSAGE_CREATE", own)
    said = ear.hears("sure?", to=TEAM, type=19, message_reference={"message_id": "77", "channel_id": "910"})
    assert said is not None
    assert (said.addressed, said.quote) == (True, Quote("Helper", "It is mine."))


def test_a_server_that_is_away_for_a_while_was_not_left(ear: Ear) -> None:
    ear.frame("GUILD_DELETE", {"id": "900", "unavailable": True})
    assert ear.heard == []


def test_a_deletion_has_the_author_of_what_is_remembered(ear: Ear) -> None:
    ear.hears("gone soon", to=TEAM)
    ear.heard.clear()
    ear.frame("MESSAGE_DELETE", {"id": "1000", "channel_id": "910", "guild_id": "900"})
    ear.frame("MESSAGE_DELETE", {"id": "999", "channel_id": "910", "guild_id": "900"})
    ear.frame("MESSAGE_DELETE", {"id": "998", "channel_id": "7000501"})
    assert [(m.kind, m.message_id, m.author.id) for m in ear.heard] == [
        (InboundKind.DELETE, "1000", "501"),
        (InboundKind.DELETE, "999", ""),
    ]


def test_many_deletions_are_told_one_by_one(ear: Ear) -> None:
    ear.frame("MESSAGE_DELETE_BULK", {"ids": ["3", "2"], "channel_id": "910", "guild_id": "900"})
    assert [m.message_id for m in ear.heard] == ["2", "3"]


def test_reactions_are_told_and_the_bots_own_are_not(ear: Ear) -> None:
    where = {"message_id": "5", "channel_id": "910", "guild_id": "900", "type": 0}
    ear.frame("MESSAGE_REACTION_ADD", where | {"user_id": "501", "emoji": {"id": None, "name": "👍"}})
    ear.frame("MESSAGE_REACTION_ADD", where | {"user_id": "501", "emoji": {"id": "88", "name": "anchor"}})
    ear.frame("MESSAGE_REACTION_REMOVE", where | {"user_id": "501", "emoji": {"id": None, "name": "👍"}})
    ear.frame("MESSAGE_REACTION_ADD", where | {"user_id": "123", "emoji": {"id": None, "name": "👀"}})
    assert [(m.kind, m.reaction, m.unreacted, m.addressed) for m in ear.heard] == [
        (InboundKind.REACTION, "👍", (), False),
        (InboundKind.REACTION, ":anchor:", (), False),
        (InboundKind.REACTION, "", ("👍",), False),
    ]


def test_coming_to_a_server_and_leaving_it_are_told(ear: Ear) -> None:
    other = ear.discord.guild(900) | {"id": "901", "system_channel_id": None, "channels": [], "threads": []}
    ear.frame("GUILD_CREATE", other)
    ear.frame("GUILD_DELETE", {"id": "901"})
    ear.frame("GUILD_DELETE", {"id": "900"})
    assert [(m.kind, m.external_id, m.default_workspace) for m in ear.heard] == [
        (InboundKind.JOINED, "901", "discord-901"),
        (InboundKind.LEFT, "901", "discord-901"),
        (InboundKind.LEFT, "910", "discord-900"),
    ]


def test_a_server_that_is_not_known_yet_is_no_direct_message(ear: Ear) -> None:
    said = ear.hears("<@123> psst", to=Room(channel_id=5, guild_id=77))
    assert said is not None
    assert (said.direct, said.routes) == (False, ("discord:77/5", "discord:77"))


@given(st.integers(1, 2**63 - 1))
def test_no_two_places_share_a_workspace(number: int) -> None:
    """A server and a person with the same number, even, have workspaces of their own, with valid names."""
    state: Any = None
    server = discord.PartialMessageable(state=state, id=1, guild_id=number)
    direct = discord.PartialMessageable(state=state, id=1)
    names = {events.default_workspace(place, number) for place in (server, direct)}
    assert len(names) == 2
    assert all(check_workspace_id(name) for name in names)


KEY = ConversationKey("acme", "discord", "910")


def answer(text: str, **more: Any) -> OutboundMessage:
    return OutboundMessage(KEY, "t1", text, **more)


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_a_nonce_is_short_stable_and_the_tokens_own(one: str, other: str) -> None:
    nonce: Callable[[str], str] = lambda token: nonce_of(OutboundPart(0, 1, "x", token))  # noqa: E731
    assert 0 < len(nonce(one)) <= NONCE_CHARACTERS
    assert nonce(one) == nonce(one)
    assert (nonce(one) == nonce(other)) == (one == other)


def test_nothing_to_be_seen_is_not_sent() -> None:
    assert to_parts(answer(" \u200b\n"), 5) == ()
    assert [part.text for part in to_parts(answer("\ud800!"), 5)] == ["\ufffd!"]


@pytest.mark.parametrize(
    "said", ["https://example.org/a<@5>", "see https://example.org/a<t:5:R> and", "<@5> https://x.org/<#6>"]
)
def test_an_address_does_not_bring_a_reference_behind_it_to_life(said: str) -> None:
    """Discord takes a backslash at an address for a part of it, so that it would escape nothing there."""
    (part,) = to_parts(answer(said), 5)
    assert "/a\\" not in part.text
    assert "/\\" not in part.text
    assert not re.search(r"(?<!\\)<[@#t](?!\u200b)", part.text)


def test_a_channel_is_public_where_everyone_may_read_it(ear: Ear) -> None:
    """By what Discord says now: a channel may be closed while it is used, and with it its threads."""
    closed = Room(channel_id=940, name="board", private=True)
    below, apart = Room(channel_id=941, parent=940), Room(channel_id=942, parent=910, private=True)
    ear.frame("CHANNEL_CREATE", ear.discord._channel(closed))
    for thread in (below, apart):
        ear.frame("THREAD_CREATE", ear.discord._channel(thread))

    def audience(to: Place) -> str | None:
        said = ear.hears("hello", to=to)
        assert said is not None
        return said.audience

    assert [audience(one) for one in (TEAM, THREAD, LENA)] == [None, None, "discord:501"]
    assert [audience(one) for one in (closed, below)] == ["place:discord:940", "place:discord:940"]
    assert audience(apart) == "place:discord:942"
    ear.frame("CHANNEL_UPDATE", ear.discord._channel(Room(channel_id=910, name="general", private=True)))
    assert [audience(one) for one in (TEAM, THREAD)] == ["place:discord:910", "place:discord:910"]


def test_a_command_in_a_channel_that_is_not_known_is_private(ear: Ear) -> None:
    """Discord describes the channel with a command, but not who is kept away from it."""

    def audience(room: Room) -> str | None:
        channel = ear.discord._channel(room)
        del channel["permission_overwrites"]
        told: Any = {
            "id": "1",
            "application_id": "124",
            "type": 2,
            "token": "t",
            "version": 1,
            "data": {"id": "2", "name": "context", "type": 1},
            "channel_id": str(room.channel_id),
            "guild_id": str(room.guild_id),
            "channel": channel,
            "member": ear.discord._member(LENA) | {"user": LENA.as_json(), "permissions": "0"},
            "attachment_size_limit": 1,
        }
        interaction: discord.Interaction[Any] = discord.Interaction(data=told, state=ear.state)
        command = from_interaction(interaction)
        assert command is not None
        return command.audience

    assert audience(TEAM) is None
    assert audience(Room(channel_id=950, name="board", private=True)) == "place:discord:950"


ME = Identity(user=123, role=321)
NAMES = Names(users={5: "Lena"}, roles={6: "crew"}, channels={7: "general"})


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("<@123> what is up?", "what is up?"),
        ("<@!123>, what is up?", "what is up?"),
        ("<@&321> what is up?", "what is up?"),
        ("what is up, <@123>?", "what is up?"),
        ("thanks, <@123>!", "thanks!"),
        ("hey <@123> what is up?", "hey what is up?"),
        ("<@123> <@123>", ""),
        ("<@123>", ""),
        ("<@123>\n```\ncode\n```", "```\ncode\n```"),
    ],
)
def test_the_bots_own_name_is_taken_out(said: str, meant: str) -> None:
    """By its account's name or its role's, wherever it stands."""
    assert without_own_mentions(said, ME) == (meant, True)


@pytest.mark.parametrize("said", ["hello", "<@5> and <@&6>", "@Helper", "<@1234>", "<@&123>", "<#123>", ""])
def test_what_calls_somebody_else_stays_as_it_is(said: str) -> None:
    assert without_own_mentions(said, ME) == (said, False)


def test_a_server_without_a_role_for_the_bot_knows_its_name_only() -> None:
    assert without_own_mentions("<@&321> hi", Identity(user=123)) == ("<@&321> hi", False)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("<@5> asked <@!5>", "@Lena asked @Lena"),
        ("<@&6> in <#7>", "@crew in #general"),
        ("<:anchor:88> and <a:wave:99>", ":anchor: and :wave:"),
        ("</deploy now:1234>", "/deploy now"),
        ("at <t:1767225600:R>", "at 2026-01-01 00:00 UTC"),
        ("at <t:999999999999>", "at <t:999999999999>"),
        ("<@404> <#404> <@&404>", "<@404> <#404> <@&404>"),
        ("a <b> c", "a <b> c"),
    ],
)
def test_references_are_read_as_names(said: str, read: str) -> None:
    """People, roles, channels, emoji, commands and moments; what is not known stays as it is."""
    assert with_names(said, NAMES) == read


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading(text: str) -> None:
    """Text without references is never changed."""
    if "<" not in text:
        assert with_names(text, NAMES) == text
        assert without_own_mentions(text, ME) == (text, False)
    else:
        assert "<@123>" not in without_own_mentions(with_names(text + "<@123>", NAMES), ME)[0]


PLAIN = st.text(st.characters(exclude_characters="<>"), max_size=60)


@given(PLAIN, PLAIN)
def test_taking_the_name_out_loses_nothing_else(before: str, after: str) -> None:
    """Words around the name stay, in their order (at its edges, space and punctuation may go)."""
    text, mentioned = without_own_mentions(f"{before}<@123>{after}", ME)
    assert mentioned
    words = [character for character in before + after if character.isalnum()]
    assert [character for character in text if character.isalnum()] == words


HINTS = st.builds(CommandHint, st.text(max_size=40), st.text(max_size=200), st.text(max_size=200))
DISCORD = "https://discord.com/api/v10"


@given(st.lists(HINTS, max_size=120))
def test_discord_is_told_only_what_it_takes(hints: list[CommandHint]) -> None:
    """Whatever the names and words: names of 32, descriptions of 1 to 100 characters, at most 100 commands."""
    commands = to_commands(hints)
    assert len(commands) <= MAX_COMMANDS
    for command in commands:
        for named in (command, *command["options"]):
            assert re.fullmatch(r"[-_\w]{1,32}", named["name"])
            assert named["name"] == named["name"].lower()
            assert 1 <= len(named["description"]) <= 100
        assert len(command["options"]) <= 1


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("[name]", "name"),
        ("[command …]", "command"),
        ("question", "question"),
        ("show|set NAME", "text"),
        ("<scope> [text]", "scope"),
        ("…", "text"),
    ],
)
def test_an_option_is_named_after_what_follows_the_word(arguments: str, option: str) -> None:
    (command,) = to_commands([CommandHint("prompt", "Directives", arguments)])
    assert [(one["name"], one["description"]) for one in command["options"]] == [(option, arguments)]


@given(st.integers(1, 2**63), st.integers(1, 2**63), st.integers(1, 2**63))
def test_a_handle_is_read_as_it_was_written(channel_id: int, message_id: int, attachment_id: int) -> None:
    assert read_handle(handle_of(channel_id, message_id, attachment_id)) == (channel_id, message_id, attachment_id)


def test_files_are_fetched_from_discord_or_where_the_settings_say_it_is() -> None:
    """An operator's own Discord may stand at a private address, and gives its files nowhere else."""
    url = "https://cdn.discordapp.com/attachments/1/2/a.md?ex=1"
    assert location(url, DISCORD) == Location(url, CDN_HOSTS)
    assert location(url, "http://10.0.0.1/api") == Location(url, CDN_HOSTS)
    own = "http://10.0.0.1:8080/attachments/1/2/a.md"
    assert location(own, "http://10.0.0.1/api") == Location(own, ("10.0.0.1",), trusts_private=True)


@pytest.mark.parametrize(
    "url",
    [
        "http://cdn.discordapp.com/a",
        "https://discord.com/a",
        "https://cdn.discordapp.com.evil.example/a",
        "https://cdn.discordapp.com@evil.example/a",
        "file:///etc/passwd",
        "http://127.0.0.1/a",
    ],
)
def test_no_other_address_is_a_file_on_discord(url: str) -> None:
    with pytest.raises(AttachmentUnavailable):
        location(url, DISCORD)


def test_a_file_that_was_taken_out_of_its_message_is_gone() -> None:
    with pytest.raises(AttachmentUnavailable):
        url_in({"attachments": [{"id": "1", "url": "https://x"}]}, 2)
