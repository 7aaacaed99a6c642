"""The line of sources: what it names, how it is kept from doing anything, and where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from connectors.discord import payloads
from connectors.message import ConversationKey, OutboundMessage, Source
from connectors.slack import payloads as slack_payloads
from connectors.telegram import payloads as telegram_payloads
from connectors.text import sources_line, without_sources
from connectors.text.sources import MAX_HEADING_CHARACTERS, MAX_PATH_CHARACTERS
from tests.emulators.slack_nouns import in_blocks, seen
from tests.emulators.telegram_html import parse_html

LONG = "They float because they push water away.\n\n" * 400
EVIL = Source("<@U1>/@everyone/`x`/*b*.md", "[a](https://x.y) <!here>\n-# <b>:smile:</b> @lena_bot")


def reply(text: str, *sources: Source, **more: Any) -> OutboundMessage:
    key = ConversationKey("acme", "slack", "C1/1.1")
    return replace(OutboundMessage(key, "t1", text, shows_sources=True), sources=sources, **more)


def test_the_line_names_each_source_once_and_of_many_the_first() -> None:
    sources = [Source(f"{name}.md", "") for name in "abbcdef"]
    assert sources_line(reply("hi", Source("refunds.md", "Windows"))) == "Sources: refunds.md › Windows"
    assert sources_line(reply("hi", *sources)) == "Sources: a.md · b.md · c.md · d.md · +2 more"


def test_there_is_no_line_without_sources_where_none_is_wanted_and_below_an_apology() -> None:
    source = Source("a.md", "")
    assert sources_line(reply("hi")) == ""
    assert sources_line(reply("hi", source, shows_sources=False)) == ""
    assert sources_line(reply("hi", source, kind="apology")) == ""


def test_long_names_are_shortened_to_what_tells_them_apart() -> None:
    line = sources_line(reply("hi", Source("folder/" * 40 + "refunds.md", "Windows " * 40)))
    path, heading = line.removeprefix("Sources: ").split(" › ")
    assert path.startswith("…")
    assert path.endswith("folder/refunds.md")
    assert len(path) <= MAX_PATH_CHARACTERS
    assert heading.startswith("Windows Windows")
    assert heading.endswith("…")
    assert len(heading) <= MAX_HEADING_CHARACTERS


@pytest.mark.parametrize("shown", ["yes\n\nSources: a.md · b.md", "yes\n-# Sources: `a.md`", "yes"])
def test_who_quotes_a_reply_does_not_quote_its_sources(shown: str) -> None:
    assert without_sources(shown) == "yes"


def test_on_telegram_the_name_of_a_document_does_nothing() -> None:
    """No mention, and no link to ``pricing.md``, which Telegram takes for a host."""
    (part,) = telegram_payloads.to_parts(reply("yes", Source("pricing.md", ""), EVIL), 5)
    text, entities = parse_html(part.text)
    quote = next(one for one in entities if one.kind == "expandable_blockquote")
    assert quote.of(text) == sources_line(reply("yes", Source("pricing.md", ""), EVIL))
    assert next(one.of(text) for one in entities if one.kind == "code") == "pricing.md"
    assert {one.kind for one in entities} == {"expandable_blockquote", "code"}


def test_on_discord_the_name_of_a_document_does_nothing() -> None:
    """It is code, of which Discord makes neither a mention nor a link."""
    (part,) = payloads.to_parts(reply("yes", Source("pricing.md", ""), EVIL), 5)
    text, line = part.text.split("\n")
    assert text == "yes"
    assert line.startswith("-# Sources: `pricing.md` · ``<@U1>/@everyone/`x`/")
    assert line.endswith("``")
    assert payloads.to_send(reply("yes"), part)["allowed_mentions"] == {"parse": []}


def test_on_slack_the_name_of_a_document_does_nothing() -> None:
    """It is plain text, of which Slack makes nothing; the reply's own text stays for notifications."""
    message = reply("**yes**", EVIL)
    (part,) = slack_payloads.to_parts(message)
    arguments = slack_payloads.to_send(message, part)
    assert arguments["text"] == part.text == "*yes*"
    assert arguments["blocks"][1]["elements"] == [{"type": "plain_text", "text": part.sources, "emoji": False}]
    for asked in (arguments, slack_payloads.to_edit(message, part, "1.2"), *slack_payloads.to_responses(part)):
        assert in_blocks(asked) == ("*yes*", sources_line(message))


def test_without_sources_slack_gets_no_blocks() -> None:
    (part,) = slack_payloads.to_parts(reply("yes"))
    assert "blocks" not in slack_payloads.to_send(reply("yes"), part)


TO_PARTS: dict[str, Callable[[OutboundMessage, int], Any]] = {
    "telegram": telegram_payloads.to_parts,
    "discord": payloads.to_parts,
    "slack": slack_payloads.to_parts,
}


def has_line(part: Any) -> bool:
    return "Sources: " in part.text or bool(part.sources)


@pytest.mark.parametrize("to_parts", TO_PARTS.values(), ids=TO_PARTS.keys())
def test_a_long_reply_has_its_sources_below_the_last_part(to_parts: Callable[[OutboundMessage, int], Any]) -> None:
    message = reply(LONG, Source("a.md", "Boats"))
    parts = to_parts(message, 100)
    assert len(parts) > 2
    assert [has_line(part) for part in parts] == [False] * (len(parts) - 1) + [True]
    assert to_parts(message, 100) == parts


@pytest.mark.parametrize("to_parts", TO_PARTS.values(), ids=TO_PARTS.keys())
def test_a_reply_that_goes_as_a_file_has_its_sources_in_the_chat(
    to_parts: Callable[[OutboundMessage, int], Any],
) -> None:
    """And the file is what the model said, to the letter."""
    beginning, file = to_parts(reply(LONG, Source("a.md", "Boats")), 2)
    assert has_line(beginning)
    assert file.text == LONG


def test_a_section_of_slack_is_never_too_long() -> None:
    text = "x" * 3900
    parts = slack_payloads.to_parts(reply(text, Source("a.md", "")))
    assert [has_line(part) for part in parts] == [False, True]
    assert "".join(seen(part.text) for part in parts) == text
    assert len(parts[-1].text) <= 3000
