"""What Slack's events mean, how replies become arguments of its methods, and the manifest of the app."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.connector import SendFailed
from connectors.message import (
    Attachment,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    check_workspace_id,
)
from connectors.slack import events, payloads
from connectors.slack.events import EventDetails, Handle, Identity, attachments_of
from connectors.slack.mrkdwn import emoji_name, unescape
from tests.emulators.slack import SlackEmulator, seen

ME = Identity(user_id="U0BOT", bot_id="B0BOT", team_id="T0TEAM", name="helper")
TS = "1700000001.000100"
ROOT = "1700000000.000100"


def said(text: str = "hello", channel: str = "C200", **more: Any) -> dict[str, Any]:
    return {"type": "message", "user": "U501", "text": text, "ts": TS, "channel": channel, **more}


def read(event: dict[str, Any], known: EventDetails | None = None) -> InboundMessage:
    message = events.to_inbound(event, ME, known)
    assert message is not None
    return message


def test_a_direct_message_is_for_the_bot() -> None:
    """Everything that the runtime needs to answer it."""
    message = read(said("good *morning*", "D501", channel_type="im"), EventDetails({"U501": "Lena"}))
    assert (message.external_id, message.message_id) == ("D501", TS)
    assert (message.direct, message.addressed) == (True, True)
    assert (message.author.id, message.author.name, message.author.is_bot) == ("U501", "Lena", False)
    assert message.text == "good **morning**"
    assert message.routes == ("slack:T0TEAM/D501", "slack:T0TEAM")
    assert message.default_workspace == "slack-t0team"
    assert message.sent_at == datetime(2023, 11, 14, 22, 13, 21, 100, UTC)


def test_a_mention_in_a_channel_begins_a_thread() -> None:
    """The conversation is the thread under the mention; both events about it say the same."""
    message = read(said("<@U0BOT> hello"))
    assert (message.external_id, message.text) == (f"C200/{TS}", "hello")
    assert (message.direct, message.addressed) == (False, True)
    assert read(said("<@U0BOT> hello", type="app_mention")) == message


def test_what_is_said_to_nobody_in_a_channel_is_not_for_the_bot() -> None:
    """It belongs to the channel."""
    message = read(said())
    assert (message.external_id, message.addressed) == ("C200", False)


@pytest.mark.parametrize(
    ("more", "known", "addressed"),
    [
        ({}, EventDetails(), False),
        ({}, EventDetails(takes_part=True), True),
        ({"parent_user_id": "U0BOT"}, EventDetails(), True),
        ({"parent_user_id": "U501"}, EventDetails(), False),
        ({"text": "<@U0BOT> and now?"}, EventDetails(), True),
    ],
)
def test_a_reply_in_a_thread_is_for_the_bot_where_it_takes_part(
    more: dict[str, Any], known: EventDetails, addressed: bool
) -> None:
    """As author of the first message, called now, or by what is known of the thread."""
    message = read(said(thread_ts=ROOT) | more, known)
    assert (message.external_id, message.addressed) == (f"C200/{ROOT}", addressed)


def test_threads_of_direct_messages_are_conversations_of_their_own() -> None:
    """The first message stays where it was said, also when it has replies."""
    assert read(said(channel="D501", thread_ts=ROOT)).external_id == f"D501/{ROOT}"
    assert read(said(channel="D501", thread_ts=TS)).external_id == "D501"


def test_who_takes_part_is_asked_only_where_it_matters() -> None:
    """Not for direct messages, mentions, first messages, bots and deletions."""
    assert events.thread_to_look_up(said(thread_ts=ROOT), ME) == ("C200", ROOT)
    for event in (
        said(),
        said(thread_ts=TS),
        said(thread_ts=ROOT, channel="D501"),
        said("<@U0BOT> hi", thread_ts=ROOT),
        said(thread_ts=ROOT, parent_user_id="U0BOT"),
        said(thread_ts=ROOT, bot_id="B9"),
        said(thread_ts=ROOT, user="U0BOT"),
        said(subtype="channel_topic", thread_ts=ROOT),
        {"type": "reaction_added", "user": "U501", "item": {}},
    ):
        assert events.thread_to_look_up(event, ME) is None


@pytest.mark.parametrize("more", [{"user": "U0BOT"}, {"bot_id": "B0BOT"}, {"user": "U0BOT", "subtype": "bot_message"}])
def test_what_the_bot_says_itself_is_nothing(more: dict[str, Any]) -> None:
    """Else it would talk to itself."""
    assert events.to_inbound(said() | more, ME) is None


@pytest.mark.parametrize("more", [{"bot_id": "B9"}, {"subtype": "bot_message", "user": None}, {"user": "USLACKBOT"}])
def test_other_bots_are_known_as_bots(more: dict[str, Any]) -> None:
    """So that the runtime can leave them alone."""
    message = read(said(channel="D501") | more)
    assert message.author.is_bot
    assert message.author.id


@pytest.mark.parametrize("subtype", ["channel_join", "channel_topic", "pinned_item", "assistant_app_thread", "new"])
def test_service_notes_are_nothing(subtype: str) -> None:
    """Also those that are yet to be invented."""
    assert events.to_inbound(said(subtype=subtype), ME) is None


@pytest.mark.parametrize("subtype", ["file_share", "thread_broadcast", "me_message"])
def test_other_ways_to_speak_are_messages(subtype: str) -> None:
    """With a file, into the channel as well, or in the third person."""
    assert read(said(subtype=subtype)).kind is InboundKind.MESSAGE


def changed(subtype: str, **more: Any) -> dict[str, Any]:
    at = "1700000009.000100"
    return {"type": "message", "subtype": subtype, "channel": "C200", "ts": at, "event_ts": at, **more}


def test_an_edit_is_the_same_message_with_another_text() -> None:
    """A link preview that came, or a thread that grew, is none."""
    before = {"user": "U501", "text": "<@U0BOT> hello", "ts": TS}
    message = read(changed("message_changed", message=before | {"text": "<@U0BOT> bye"}, previous_message=before))
    assert (message.kind, message.message_id, message.text) == (InboundKind.EDIT, TS, "bye")
    assert message.external_id == f"C200/{TS}"
    grown = before | {"thread_ts": TS, "reply_count": 1, "attachments": [{"title": "preview"}]}
    assert events.to_inbound(changed("message_changed", message=grown, previous_message=before), ME) is None


def test_a_deletion_names_the_message_and_its_place() -> None:
    """Also where a message with replies leaves a stone behind."""
    before = {"user": "U501", "text": "<@U0BOT> hello", "ts": TS}
    deleted = read(changed("message_deleted", deleted_ts=TS, previous_message=before))
    stone = {"subtype": "tombstone", "user": "USLACKBOT", "text": "This message was deleted.", "ts": TS}
    buried = read(changed("message_changed", message=stone, previous_message=before))
    for message in (deleted, buried):
        assert (message.kind, message.message_id) == (InboundKind.DELETE, TS)
        assert (message.external_id, message.author.id) == (f"C200/{TS}", "U501")
    assert read(changed("message_deleted", deleted_ts=TS)).message_id == TS


def test_reactions_come_as_emoji_where_they_are_known() -> None:
    """And by Slack's name else; taking one away is the empty reaction; the place is the message's own."""
    item = {"type": "message", "channel": "C200", "ts": TS}
    event = {"type": "reaction_added", "user": "U501", "reaction": "eyes", "item": item, "event_ts": ROOT}
    place = EventDetails(place=f"C200/{ROOT}")
    message = read(event, place)
    assert (message.kind, message.reaction) == (InboundKind.REACTION, "👀")
    assert (message.external_id, message.message_id, message.addressed) == (f"C200/{ROOT}", TS, False)
    assert read(event | {"reaction": "party-parrot"}).reaction == ":party-parrot:"
    assert read(event | {"reaction": "+1::skin-tone-2"}).reaction == "👍"
    removed = read(event | {"type": "reaction_removed"})
    assert (removed.reaction, removed.unreacted, message.unreacted) == ("", ("👀",), ())
    assert read(event).external_id == "C200"
    assert events.to_inbound(event | {"user": "U0BOT"}, ME) is None
    assert events.to_inbound(event | {"item": {"type": "file"}}, ME) is None


def test_the_bot_comes_and_goes() -> None:
    """Others' comings and goings are nothing."""
    joined = {"type": "member_joined_channel", "user": "U0BOT", "channel": "C200", "inviter": "U501", "event_ts": TS}
    message = read(joined)
    assert (message.kind, message.external_id, message.author.id) == (InboundKind.JOINED, "C200", "U501")
    assert read({"type": "channel_left", "channel": "C200", "actor_id": "U501"}).kind is InboundKind.LEFT
    assert events.to_inbound(joined | {"user": "U501"}, ME) is None
    assert events.to_inbound({"type": "team_join", "user": {"id": "U9"}}, ME) is None


def test_files_are_listed_with_a_handle() -> None:
    """By kind; what Slack no longer shows is left out."""
    files = [
        {"id": "F1", "name": "plan.pdf", "mimetype": "application/pdf", "size": 12},
        {"id": "F2", "name": "cat.png", "mimetype": "image/png"},
        {"id": "F3", "title": "memo", "mimetype": "audio/mp4"},
        {"id": "F4", "mimetype": "video/mp4"},
        {"id": "F5", "mode": "tombstone"},
    ]
    message = read(said("", "D501", subtype="file_share", files=files))
    assert [(a.kind, a.name, a.handle) for a in message.attachments] == [
        ("document", "plan.pdf", "F1 ask"),
        ("image", "cat.png", "F2 ask"),
        ("voice", "memo", "F3 ask"),
        ("other", "F4", "F4 ask"),
    ]


def test_a_shared_message_is_quoted() -> None:
    """Text and author come along."""
    shared = {"is_share": True, "author_name": "Omar", "text": "*ship* it"}
    quote = read(said("", "D501", attachments=[{"title": "preview"}, shared])).quote
    assert quote is not None
    assert (quote.author, quote.text) == ("Omar", "**ship** it")


def test_several_forwarded_messages_are_one_quote() -> None:
    """Each with its author, by the name that is known; one whose words are blocks, too."""
    words = {"type": "rich_text_section", "elements": [{"type": "text", "text": "no, wait"}]}
    shared = [
        {"is_share": True, "author_id": "U502", "author_name": "omar.x", "text": "ship it"},
        {
            "is_share": True,
            "author_name": "Bo",
            "message_blocks": [{"message": {"blocks": [{"type": "rich_text", "elements": [words]}]}}],
        },
        {"is_share": True, "text": " "},
    ]
    event = said("look", "D501", attachments=shared)
    quote = read(event, EventDetails({"U502": "Omar"})).quote
    assert quote is not None
    assert (quote.author, quote.text) == ("", "**Omar:** ship it\n\n**Bo:** no, wait")
    assert events.people_of(event) == {"U501", "U502"}


def test_a_message_without_anything_is_nothing() -> None:
    """One of blocks only says what they say, and can call the bot."""
    assert events.to_inbound(said("", "D501"), ME) is None
    call = {
        "type": "rich_text_section",
        "elements": [{"type": "user", "user_id": "U0BOT"}, {"type": "text", "text": " hi"}],
    }
    message = read(said("", blocks=[{"type": "rich_text", "elements": [call]}]))
    assert (message.text, message.addressed) == ("hi", True)


@pytest.mark.parametrize(
    ("length", "unfinished"), [(3_850, False), (3_950, True), (4_000, True), (4_001, False), (39_990, True), (1, False)]
)
def test_a_message_at_slacks_limit_looks_unfinished(length: int, unfinished: bool) -> None:
    """Slack's clients go on in another one; escaped characters count once."""
    assert read(said("&lt;" + "x" * (length - 1))).looks_unfinished is unfinished


def test_a_file_whose_thumbnails_are_ready_is_no_edit() -> None:
    """Another file is one."""
    before = {"user": "U501", "text": "see", "ts": TS, "files": [{"id": "F1", "name": "a.png"}]}
    ready = before | {"files": [{"id": "F1", "name": "a.png", "thumb_64": "https://x"}]}
    other = before | {"files": [{"id": "F2", "name": "b.png"}]}
    assert events.to_inbound(changed("message_changed", message=ready, previous_message=before), ME) is None
    assert read(changed("message_changed", message=other, previous_message=before)).kind is InboundKind.EDIT


def test_what_the_bot_edits_or_deletes_itself_is_nothing() -> None:
    """As a reply grows."""
    mine = {"user": "U0BOT", "bot_id": "B0BOT", "text": "a", "ts": TS}
    grown = changed("message_changed", message=mine | {"text": "ab"}, previous_message=mine)
    assert events.to_inbound(grown, ME) is None
    assert events.to_inbound(changed("message_deleted", deleted_ts=TS, previous_message=mine), ME) is None


def test_a_guest_from_another_organisation_has_a_name_and_a_team() -> None:
    """Slack Connect tells both with the message; a stream has to name the team."""
    event = said("hi", team="T0TEAM", user_team="T9", user_profile={"display_name": "", "real_name": "Ana Lima"})
    assert read(event).author.name == "Ana Lima"
    assert read(event, EventDetails({"U501": "Ana"})).author.name == "Ana"
    assert events.author_and_team(event, ME) == ("U501", "T9")
    assert events.author_and_team(said(), ME) == ("U501", "T0TEAM")


def test_an_assistants_thread_is_a_conversation_and_its_opening_nothing() -> None:
    """The pane in which people open one says so by events that need no answer."""
    opened = {"type": "assistant_thread_started", "assistant_thread": {"channel_id": "D501", "thread_ts": ROOT}}
    assert events.to_inbound(opened, ME) is None
    assert events.to_inbound(opened | {"type": "assistant_thread_context_changed"}, ME) is None
    message = read(said("hi", "D501", channel_type="im", thread_ts=ROOT, parent_user_id="U0BOT"))
    assert (message.external_id, message.direct, message.addressed) == (f"D501/{ROOT}", True, True)


def test_the_two_events_of_one_mention_have_one_identity() -> None:
    """Everything else has that of its event."""
    payload = {"event_id": "Ev1", "event": said("<@U0BOT> hi")}
    other = {"event_id": "Ev2", "event": said("<@U0BOT> hi", type="app_mention")}
    edited = {"event_id": "Ev3", "event": changed("message_changed")}
    assert events.event_identity(payload) == events.event_identity(other) == f"C200/{TS}"
    assert events.event_identity(edited) == "Ev3"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(sorted(said())), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["type", "subtype", "ts", "channel", "user", "text", "message", "item", "files", "attachments", "thread_ts"]


@given(
    st.dictionaries(st.sampled_from(FIELDS), JUNK),
    st.sampled_from(["message", "app_mention", "reaction_added", "member_joined_channel"]),
    st.sampled_from([None, "message_changed", "message_deleted"]),
)
def test_an_event_of_any_shape_raises_only_what_is_said(event: dict[str, Any], kind: str, subtype: str | None) -> None:
    """The documented errors, which the connector takes for "unreadable"."""
    try:
        events.to_inbound({**event, "type": kind, "subtype": subtype}, ME)
    except (KeyError, TypeError, ValueError, AttributeError):
        assert event.keys() <= set(FIELDS)


@given(st.lists(st.from_regex("[A-Z0-9]{2,20}", fullmatch=True), min_size=2, max_size=2, unique=True))
def test_two_teams_never_share_a_workspace(teams: list[str]) -> None:
    """The default workspace is a valid id, and another for every team."""
    one, other = (events.default_workspace(team) for team in teams)
    assert check_workspace_id(one) != check_workspace_id(other)


def reply(text: str, place: str = "C200/" + ROOT) -> OutboundMessage:
    return OutboundMessage(ConversationKey("acme", "slack", place), "turn-1", text)


@given(st.text("ab<>&\n 😀`*[](~_#-|", max_size=20))
@settings(deadline=None)
def test_any_text_is_sent_within_the_limit_for_edits(unit: str) -> None:
    """As sent, with everything escaped, and as it takes the place of another part."""
    message = reply(unit * 300)
    for part in payloads.to_parts(message):
        text = payloads.to_send(message, part)["text"]
        assert 0 < len(text) <= payloads.MAX_TEXT_CHARACTERS
        assert payloads.to_edit(message, part, TS)["text"] == text


@pytest.mark.parametrize("trick", ["<!here>", "<!channel|x>", "<@U1>", "<#C1>"])
@pytest.mark.parametrize("around", ["{}", "**{}**", "# {}", "[{}](x)", "> {}", "- {}", "`{}`", "```\n{}\n```"])
def test_a_reply_mentions_nobody(trick: str, around: str) -> None:
    """Slack's own marks are shown as characters, also where Markdown could carry them in."""
    (part,) = payloads.to_parts(reply(around.format(trick)))
    assert trick not in part.text
    assert trick in unescape(part.text)


@pytest.mark.parametrize("around", ["{}", "**{}**", "# {}", "[{}](x)", "`{}`", "```\n{}\n```"])
def test_slacks_own_links_disguise_no_address(around: str) -> None:
    """Where one works at all, its words are its whole address."""
    (part,) = payloads.to_parts(reply(around.format("<https://evil.org|bank.org>")))
    assert "<https://evil.org|" not in part.text
    assert "|bank.org>" not in part.text
    assert "https://evil.org" in seen(part.text)


@pytest.mark.parametrize("text", ["", " \n ", "\u200b"])
def test_a_text_in_which_nothing_can_be_seen_has_no_parts(text: str) -> None:
    """Slack would refuse it as "no_text"."""
    assert payloads.to_parts(reply(text)) == ()


@pytest.mark.parametrize("place", ["", "7/8", "c200", "C200/", "C200/abc", "C200/1/2", "../C1"])
def test_ids_that_are_none_of_slacks_are_refused(place: str) -> None:
    """Before anything is sent."""
    with pytest.raises(SendFailed, match="no channel"):
        payloads.split_place(place)


def test_a_part_is_found_by_its_token_among_the_bots_own_messages() -> None:
    """Nobody else's metadata counts."""
    (part,) = payloads.to_parts(reply("hi"))
    metadata = payloads.to_send(reply("hi"), part)["metadata"]
    others = {"ts": "1.1", "user": "U501", "metadata": metadata}
    mine = {"ts": "2.2", "bot_id": "B0BOT", "metadata": metadata}
    assert payloads.find_part([{"ts": "0.0", "user": "U0BOT"}, others, mine], part, ME) == "2.2"
    assert payloads.find_part([others], part, ME) is None


@pytest.mark.parametrize(
    ("emoji", "name"), [("👀", "eyes"), ("⏳", "hourglass_flowing_sand"), (":tada:", "tada"), ("🧿", None), ("", None)]
)
def test_emoji_have_slacks_names(emoji: str, name: str | None) -> None:
    """Or none, and then there is no reaction."""
    assert emoji_name(emoji) == name


@pytest.mark.parametrize(
    ("channel", "kind", "in_thread", "audience"),
    [
        ("C200", "channel", False, None),
        ("C200", "channel", True, None),
        ("G200", "group", False, "place:slack:G200"),
        ("C200", "group", True, "place:slack:C200"),
        ("G300", "mpim", False, "place:slack:G300"),
        ("D501", "im", False, "slack:U501"),
        ("D501", "im", True, "slack:U501"),
        ("C200", None, False, "place:slack:C200"),
    ],
)
def test_only_what_is_said_in_a_public_channel_is_for_all(
    channel: str, kind: str | None, in_thread: bool, audience: str | None
) -> None:
    """A thread is its channel's. A channel that Slack does not describe is private."""
    more = ({"channel_type": kind} if kind else {}) | ({"thread_ts": ROOT} if in_thread else {})
    assert read(said(channel=channel, **more)).audience == audience


def test_an_event_that_names_the_type_of_its_channel_is_believed_before_what_was_known() -> None:
    assert read(said(channel_type="group"), EventDetails(public=True)).audience == "place:slack:C200"
    assert read(said(), EventDetails(public=True)).audience is None


LONG = OutboundMessage(ConversationKey("acme", "slack", "D501"), "turn-1", "word " * 10_000)
CALLS = re.compile(r"<[!@#]|@(here|channel|everyone)\b", re.IGNORECASE)


@given(st.lists(st.text("<>!@#hercanlvyo| \ud800", max_size=12) | st.sampled_from(["<!here>", "@channel"]), max_size=6))
def test_no_pieces_of_a_stream_call_anybody_together(texts: list[str]) -> None:
    """However a mention is spread over them; no character is lost."""
    shown = "".join(piece for text in texts for piece in payloads.stream_pieces(text))
    assert not CALLS.search(shown)
    said = "".join(texts).replace("\ud800", "\ufffd")
    assert shown.replace("\u200b", "") == said


@given(st.text(max_size=100), st.integers(1, 400))
def test_no_piece_of_a_stream_is_over_the_limit(text: str, times: int) -> None:
    """And none is empty, which Slack would refuse."""
    assert all(0 < len(piece) <= payloads.MAX_STREAM_CHARACTERS for piece in payloads.stream_pieces(text * times))


def test_a_file_is_found_by_a_name_that_is_its_own() -> None:
    """Files have no metadata on Slack; nobody else's file counts."""
    _, file = payloads.to_parts(LONG, 1)
    _, other = payloads.to_parts(replace(LONG, turn_id="turn-2"), 1)
    name = payloads.upload_name(file)
    assert re.fullmatch(r"whole-reply-[0-9a-f]{10}\.md", name)
    assert payloads.upload_name(other) != name
    mine = {"ts": "2.2", "bot_id": "B0BOT", "files": [{"id": "F1", "name": name}]}
    assert payloads.find_part([{"ts": "1.1", "user": "U501", "files": mine["files"]}, mine], file, ME) == "2.2"
    assert payloads.find_part([mine], other, ME) is None


WORD = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=20)


@given(WORD, WORD, st.one_of(st.just(""), WORD))
def test_a_handle_is_read_as_it_was_written(file_id: str, access: str, url: str) -> None:
    """It waits with its message for the turn."""
    handle = Handle(file_id, access, url)
    assert Handle.decode(handle.encode()) == handle


def test_files_come_by_kind_and_also_with_what_is_forwarded() -> None:
    """A deleted one is none; a recording of Slack's own is a voice message; a link to elsewhere is no document."""
    files = [
        {"id": "F1", "mode": "tombstone"},
        {"id": "F2", "mimetype": "video/webm", "subtype": "slack_audio", "url_private": "https://files.slack.com/a"},
        {"id": "F3", "mimetype": "application/pdf", "mode": "external"},
        {"id": "F4", "mode": "hidden_by_limit"},
        {"id": "F5", "url_private": "https://files.slack.com/v", "url_private_download": "https://files.slack.com/d"},
        {"id": "F6", "url_private": "https://files.slack.com/with a space"},
    ]
    forwarded = {"is_share": True, "files": [{"id": "F7", "name": "plan.md", "size": 3}]}
    preview = {"from_url": "https://x.org", "files": [{"id": "F8"}]}
    found = attachments_of({"files": files, "attachments": [preview, forwarded]})
    assert [(one.kind, one.handle) for one in found] == [
        ("voice", "F2 hosted https://files.slack.com/a"),
        ("other", "F3 external"),
        ("document", "F4 hidden_by_limit"),
        ("document", "F5 hosted https://files.slack.com/d"),
        ("document", "F6 ask"),
        ("document", "F7 ask"),
    ]
    assert found[-1] == Attachment("document", "plan.md", size_bytes=3, handle="F7 ask")


REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def manifest() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((REPOSITORY / "deploy/slack-manifest.yaml").read_text("utf-8"))
    return read


def test_the_app_may_do_what_the_emulator_asks_scopes_for(manifest: dict[str, Any]) -> None:
    """Each call that the connector makes, and histories of every kind of place."""
    scopes = set(manifest["oauth_config"]["scopes"]["bot"])
    assert SlackEmulator().scopes <= scopes
    assert {f"{place}:history" for place in ("channels", "groups", "im", "mpim")} <= scopes
    assert {"app_mentions:read", "commands", "reactions:read"} <= scopes
    assert not any(scope.startswith(("admin", "chat:write.", "im:write", "identify")) for scope in scopes)


def test_the_app_hears_what_the_connector_understands(manifest: dict[str, Any]) -> None:
    """By Socket Mode, in channels and in private, by one command and by buttons."""
    events = set(manifest["settings"]["event_subscriptions"]["bot_events"])
    assert {f"message.{place}" for place in ("channels", "groups", "im", "mpim")} <= events
    assert {"app_mention", "reaction_added", "reaction_removed", "member_joined_channel", "tokens_revoked"} <= events
    assert manifest["settings"]["socket_mode_enabled"] is True
    assert manifest["features"]["app_home"]["messages_tab_read_only_enabled"] is False
    assert manifest["settings"]["interactivity"]["is_enabled"] is True
    assert [command["command"] for command in manifest["features"]["slash_commands"]] == ["/agent"]


def test_the_manifest_keeps_to_slacks_lengths(manifest: dict[str, Any]) -> None:
    """A name of 35 characters, a description of 140, and a command's hint of 1,000 (docs.slack.dev, "App manifest")."""
    told = manifest["display_information"]
    assert len(told["name"]) <= 35
    assert len(told["description"]) <= 140
    assert len(manifest["features"]["slash_commands"][0]["description"]) <= 2_000
    assert len(manifest["features"]["slash_commands"][0]["usage_hint"]) <= 1_000


def test_the_page_about_the_app_names_every_scope_and_event(manifest: dict[str, Any]) -> None:
    """For who makes the app by hand."""
    page = (REPOSITORY / "docs/connectors.md").read_text("utf-8")
    wanted = [
        *manifest["oauth_config"]["scopes"]["bot"],
        *manifest["settings"]["event_subscriptions"]["bot_events"],
    ]
    assert [name for name in wanted if f"`{name}`" not in page] == []
