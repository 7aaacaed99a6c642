"""Commands as Discord takes them, and where files on Discord lie."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.connector import AttachmentUnavailable, CommandHint, Location
from connectors.discord.events import CDN_HOSTS, handle_of, location, read_handle, url_in
from connectors.discord.interactions import MAX_COMMANDS, to_commands

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
