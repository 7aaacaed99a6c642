"""What goes out to Slack besides plain parts: files, streams and replies to commands."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Attachment, ConversationKey, OutboundMessage
from connectors.slack import payloads
from connectors.slack.events import Handle, Identity, attachments_of

ME = Identity(user_id="U0BOT", bot_id="B0BOT", team_id="T0TEAM", name="helper")
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


def test_a_reply_of_too_many_parts_is_its_beginning_and_a_file() -> None:
    """How many is for the operator to say."""
    beginning, file = payloads.to_parts(LONG, 3)
    assert (beginning.payload, file.file_name, file.text) == (payloads.MRKDWN, "whole-reply.md", LONG.text)
    assert len(payloads.to_parts(LONG, 100)) == 13
    assert not any(part.file_name for part in payloads.to_parts(LONG, 100))


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


def test_a_reply_to_a_command_is_for_one_person() -> None:
    """Without previews, and beside what was there before."""
    (part,) = payloads.to_parts(replace(LONG, text="**hi**"))
    (said,) = payloads.to_responses(part)
    assert (said["response_type"], said["text"], said["replace_original"]) == ("ephemeral", "*hi*", False)
    assert (said["unfurl_links"], said["unfurl_media"]) == (False, False)


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
