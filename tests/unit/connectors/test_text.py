"""Markdown becomes a form, and forms become each platform's text, whole, in parts and with sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.discord import payloads
from connectors.message import ConversationKey, OutboundMessage, Source
from connectors.slack import payloads as slack_payloads
from connectors.telegram import payloads as telegram_payloads
from connectors.text import (
    DISCORD_MARKDOWN,
    SLACK_MRKDWN,
    TELEGRAM_HTML,
    Dialect,
    cluster_edge,
    cut_reply,
    outbound_parts,
    parse_markdown,
    sources_line,
    utf16_units,
    without_sources,
)
from connectors.text.edges import natural_edge
from connectors.text.markdown import MAX_CHARACTERS, Code, Heading, Paragraph, ParsedMarkdown, Span, Style, Table
from connectors.text.sources import MAX_HEADING_CHARACTERS, MAX_PATH_CHARACTERS
from connectors.text.split import FILE_NAME, SMALLEST_LIMIT, cut_form
from tests.emulators.slack_nouns import in_blocks, seen
from tests.emulators.telegram_html import parse_html

# Words that only the text has: no entity, language, tag or list marker looks like them.
WORDS = st.from_regex(r"\A[e-hk-oq-z]{2,9}é😀?\Z")
SYNTAX = st.sampled_from(
    ["*", "**", "_", "__", "~~", "`", "``", "```", "```\n", "\n", "\n\n", "- ", "\n- ", "\n1. ", "\n  - ", "\n> ",
    "> > ", "# ", "\n## ", "|", "\n|---|---|\n", "\n---\n", "\n===\n", "[", "](http://a.b/)", "](rel)", "![", "<", ">",
     "<b>", "&", "\\", "@", "\n    ", "<br>", "<!here>", "\t", "]: ", "~~~\n", "<http://a.b>", "\n1) ", "\n* ", "\n+ "]
)  # fmt: skip
HOSTILE = st.lists(WORDS | SYNTAX | st.just(" "), max_size=60).map("".join)
ANY = st.one_of(HOSTILE, st.text(max_size=300), st.lists(st.text(max_size=8) | SYNTAX, max_size=40).map("".join))

DIALECTS: dict[str, tuple[Dialect, Callable[[str], str]]] = {
    "html": (TELEGRAM_HTML, lambda text: parse_html(text)[0]),
    "mrkdwn": (SLACK_MRKDWN, str),
    "discord": (DISCORD_MARKDOWN, str),
}
EACH = pytest.mark.parametrize(("dialect", "seen"), DIALECTS.values(), ids=DIALECTS)


def shown(form: ParsedMarkdown) -> str:
    """The text of *form* without any formatting."""
    texts: list[str] = []
    for block in form:
        match block.content:
            case Paragraph(spans) | Heading(_, spans):
                texts.append("".join(span.text for span in spans))
            case Code(text, _):
                texts.append(text)
            case Table(rows, _, _):
                texts += ["".join(span.text for span in cell) for row in rows for cell in row]
    return "\n".join(texts)


def words(text: str) -> list[str]:
    """The words of `WORDS` in *text*, without the characters of no width that keep marks from working."""
    return re.findall(r"[e-hk-oq-z]{2,9}é", text.replace("\u200b", ""))


@given(HOSTILE)
@settings(max_examples=300, deadline=None)
def test_the_form_keeps_every_word_in_order(text: str) -> None:
    """Whatever stands around them, the words of the text are the words of its plain rendering."""
    assert words(shown(parse_markdown(text))) == words(text)


@EACH
@given(text=HOSTILE, limit=st.integers(SMALLEST_LIMIT, 200))
@settings(max_examples=150, deadline=None)
def test_parts_are_within_the_limit_and_lose_nothing(
    dialect: Dialect, seen: Callable[[str], str], text: str, limit: int
) -> None:
    """Each part measures at most the limit, and together they show every letter in order."""
    found = cut_form(parse_markdown(text), limit, dialect)
    assert all(dialect.size(part) <= limit for part in found)
    letters = "".join(words(text))
    assert _in_order(letters, "".join(map(seen, found)))


def _in_order(letters: str, text: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


@EACH
@given(text=ANY, limit=st.integers(SMALLEST_LIMIT, 120))
@settings(max_examples=150, deadline=None)
def test_any_text_has_parts_of_any_size(dialect: Dialect, seen: Callable[[str], str], text: str, limit: int) -> None:
    """Also with lone surrogates, controls and every script; Telegram's parser takes each part."""
    for part in cut_form(parse_markdown(text), limit, dialect):
        assert dialect.size(part) <= limit
        assert dialect.size(part) == utf16_units(seen(part)) or dialect is not TELEGRAM_HTML
        part.encode()


@EACH
def test_too_small_a_limit_is_refused(dialect: Dialect, seen: Callable[[str], str]) -> None:
    """There must be room for a character with all its marks."""
    with pytest.raises(ValueError, match="room"):
        cut_form(parse_markdown("x"), SMALLEST_LIMIT - 1, dialect)


NOTE = """\
# Windows *and* doors
Read **this _first_**, then `a < b` in the [guide](https://x.example/a?b=1&c=2) [refunds.md › Windows].

- one
  1. inner
- two

> said
> > before

```python
if a < b: "```"
```

| a | b |
|---|--:|
| 日本 | 1 | 2 |

---
@everyone <@U1> <!here> 2 * 3 snake_case"""

AS_HTML = """\
<b>Windows <i>and</i> doors</b>
Read <b>this <i>first</i></b>, then <code>a &lt; b</code> in the \
<a href="https://x.example/a?b=1&amp;c=2">guide</a> [refunds.md › Windows].

• one
  1. inner
• two

<blockquote>said
&gt; before</blockquote>

<pre><code class="language-python">if a &lt; b: &quot;```&quot;</code></pre>

<pre>a    │ b
─────┼───┼──
日本 │ 1 │ 2</pre>

———
@\u200beveryone &lt;@U1&gt; &lt;!here&gt; 2 * 3 snake_case"""

AS_MRKDWN = """\
*Windows _and_ doors*
Read *this _first_*, then `a &lt; b` in the <https://x.example/a?b=1&amp;c=2|guide> [refunds.md › Windows].

• one
  1. inner
• two

> said
> > before

```
if a &lt; b: "`\u200b`\u200b`"
```

```
a    │ b
─────┼───┼──
日本 │ 1 │ 2
```

———
@\u200beveryone &lt;@U1&gt; &lt;!here&gt; 2 * 3 snake_case"""

AS_DISCORD = """\
# Windows _and_ doors
Read **this _first_**, then `a < b` in the [guide](<https://x.example/a?b=1&c=2>) [refunds.md › Windows].

- one
  1. inner
- two

> said
> > before

```python
if a < b: "`\u200b`\u200b`"
```

```
a    │ b
─────┼───┼──
日本 │ 1 │ 2
```

———
@\u200beveryone \\<@U1> \\<!here> 2 \\* 3 snake\\_case"""


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (TELEGRAM_HTML, AS_HTML),
        (SLACK_MRKDWN, AS_MRKDWN),
        (DISCORD_MARKDOWN, AS_DISCORD),
    ],
    ids=["html", "mrkdwn", "discord"],
)
def test_one_note_as_each_platform_writes_it(dialect: Dialect, expected: str) -> None:
    """Headings, marks, links, citations, lists, quotes, code, tables, rules and mentions."""
    assert dialect.render(parse_markdown(NOTE)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](javascript:alert)", "[a](javascript:alert)"),
        ("[a](tg://user?id=1)", "a (tg://user?id=1)"),
        ("[a](http://localhost/x)", "a (http://localhost/x)"),
        ("[a](docs/a.md)", "a (docs/a.md)"),
        ("<mailto:a@b.example>", "mailto:a@b.example"),
        ("![alt](https://x.example/i.png)", '<a href="https://x.example/i.png">alt</a>'),
        ("text\n- ", "text\n-"),
        ("text\n- a", "text\n• a"),
        ("<u>x</u>", "&lt;u&gt;x&lt;/u&gt;"),
        ("ask @lena_k, `@lena_k`", "ask @\u200blena_k, <code>@lena_k</code>"),
        ("[@lena_k](https://x.example/@lena_k)", '<a href="https://x.example/@lena_k">@lena_k</a>'),
        ("a@b.example @ 5", "a@b.example @ 5"),
        ("```", "<pre></pre>"),
        ("```js\nx", '<pre><code class="language-js">x</code></pre>'),
        ("3. a\n3. b", "3. a\n4. b"),
        ("", ""),
    ],
)
def test_what_telegram_gets(text: str, expected: str) -> None:
    """Links that Telegram would drop or misread are text; unfinished Markdown is shown as far as it goes."""
    assert TELEGRAM_HTML.render(parse_markdown(text)) == expected


@pytest.mark.parametrize(
    ("text", "as_mrkdwn", "as_discord"),
    [
        ("\\*x\\* \\_y\\_", "*\u200bx* _\u200by_", "\\*x\\* \\_y\\_"),
        ("un**believ**able", "un\u200b*believ*\u200bable", "un**believ**able"),
        ("un*believ*able", "un\u200b_believ_\u200bable", "un*believ*able"),
        ("~~a~~ **b\nc**", "~a~ *b*\n*c*", "~~a~~ **b**\n**c**"),
        ("\\> a\n\\# b", "\u200b&gt; a\n# b", "\\> a\n\\# b"),
        ("1\\. a", "1. a", "1\\. a"),
        ("``a`b``", "a`b", "``a`b``"),
        ("[a](http://x.y/p|q)", "<http://x.y/p%7Cq|a>", "[a](<http://x.y/p%7Cq>)"),
        ("https://x.y/a_b_c", "https://x.y/a_b_c", "https://x.y/a_b_c"),
        ("#### deep", "*deep*", "**deep**"),
    ],
)
def test_what_slack_and_discord_get(text: str, as_mrkdwn: str, as_discord: str) -> None:
    """What looks like a mark is kept from being one, and marks work where they stand."""
    assert (SLACK_MRKDWN.render(parse_markdown(text)), DISCORD_MARKDOWN.render(parse_markdown(text))) == (
        as_mrkdwn,
        as_discord,
    )


def test_a_cut_code_block_goes_on_in_its_language() -> None:
    """Each part of it is a block of its own."""
    found = cut_form(parse_markdown("```py\n" + "x = 1\n" * 40 + "```"), 100, TELEGRAM_HTML)
    assert len(found) == 3
    assert all(part.startswith('<pre><code class="language-py">x = 1\n') for part in found)


def test_a_cut_list_counts_on_and_a_cut_item_shows_its_number_once() -> None:
    """Numbers continue over parts."""
    found = cut_form(parse_markdown("\n".join(f"{n}. item " + "word " * 20 for n in range(1, 9))), 150, TELEGRAM_HTML)
    numbers = re.findall(r"^(\d+)\.", "\n".join(found), re.MULTILINE)
    assert numbers == [str(n) for n in range(1, 9)]


def test_bold_over_a_cut_is_closed_and_opened_again() -> None:
    """Each part is bold."""
    found = cut_form(parse_markdown("**" + "word " * 60 + "end**"), 100, TELEGRAM_HTML)
    assert all(part.startswith("<b>") and part.endswith("</b>") for part in found)
    assert len(found) > 2


def test_a_heading_stays_with_what_follows() -> None:
    """No part ends with a heading that is about the next one."""
    text = "x " * 35 + "\n\n## Next\n\n" + "y " * 35
    assert [part.startswith("<b>Next</b>") for part in cut_form(parse_markdown(text), 100, TELEGRAM_HTML)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("text", ["> " * 5000 + "end", "".join("  " * n + "- a\n" for n in range(200)) + "end"])
def test_deep_nesting_keeps_its_text(text: str) -> None:
    """What stands too deep is a paragraph, however deep."""
    assert shown(parse_markdown(text)).rstrip().endswith("end")


def test_what_follows_very_much_text_is_not_parsed() -> None:
    """The rest of a text that no chat has is plain."""
    form: ParsedMarkdown = parse_markdown("**word**\n" * (MAX_CHARACTERS // 9 + 2))
    assert isinstance(form[-1].content, Paragraph)
    assert form[-1].content.spans[0].marks == frozenset()
    assert form[-1].content.spans[0].text.startswith("**word**")


def test_what_stands_behind_a_language_is_shown() -> None:
    """And a fence whose first line is no language loses nothing."""
    assert parse_markdown("```py title=x\na\n```")[0].content == Code("title=x\na", "py")
    assert parse_markdown("```»this«\na\n```")[0].content == Code("»this«\na")


def test_marks_are_told_apart() -> None:
    """Nested marks give spans with all of them."""
    content = parse_markdown("**a *b***")[0].content
    assert content == Paragraph((Span("a ", frozenset({Style.BOLD})), Span("b", frozenset({Style.BOLD, Style.ITALIC}))))


@pytest.mark.parametrize(
    ("text", "furthest", "head"),
    [
        ("one two. three\nfour\n\nfive six", 24, "one two. three\nfour\n\n"),
        ("one two. three four\nfive", 22, "one two. three four\n"),
        ("one two three. four five", 20, "one two three. "),
        ("one two three", 10, "one two "),
    ],
)
def test_cuts_fall_at_the_best_edge(text: str, furthest: int, head: str) -> None:
    edge = natural_edge(text, furthest)
    assert edge is not None
    assert text[:edge] == head


def test_a_text_without_edges_has_none() -> None:
    assert natural_edge("x" * 50, 20) is None


@pytest.mark.parametrize("cluster", ["e\u0301", "👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "각", "\r\n"])
def test_a_cluster_is_never_broken(cluster: str) -> None:
    text = "ab" + cluster + "c"
    for furthest in range(2, 2 + len(cluster)):
        assert cluster_edge(text, furthest) == 2


def test_a_cluster_longer_than_the_room_is_broken() -> None:
    assert cluster_edge("e" + "\u0301" * 9, 4) == 4


KEY = ConversationKey("acme", "telegram", "1")


@given(st.lists(st.text(min_size=1), max_size=8), st.integers(1, 6))
def test_few_texts_are_parts_and_many_a_beginning_and_the_whole_as_a_file(texts: list[str], limit: int) -> None:
    """Indexes count on, totals are true, tokens differ, and nothing is lost either way."""
    message = OutboundMessage(KEY, "t1", "".join(texts))
    parts = outbound_parts(message, texts, "html", limit)
    assert [part.index for part in parts] == list(range(len(parts)))
    assert {part.total for part in parts} <= {len(parts)}
    assert len({part.token for part in parts}) == len(parts)
    if len(texts) <= limit:
        assert [part.text for part in parts] == texts
        assert not any(part.file_name for part in parts)
    else:
        assert [part.file_name for part in parts] == ["", FILE_NAME]
        assert parts[0].text == texts[0]
        assert parts[1].text == message.text


@pytest.mark.parametrize("dialect", [TELEGRAM_HTML, SLACK_MRKDWN, DISCORD_MARKDOWN])
def test_a_beginning_says_that_the_whole_reply_is_in_the_file(dialect: Dialect) -> None:
    """And fits, with room for the sources; a reply that fits says nothing of the kind."""
    words = "\n\n".join("Plan *B* costs **12 euros**. " * 20 for _ in range(10))
    texts, sources_at = cut_reply(words, dialect, 1000, 900, 3)
    assert len(texts) > 3
    assert sources_at == 0
    assert dialect.visible_text(texts[0]).strip("_*").endswith("The whole reply follows.")
    assert dialect.size(texts[0]) <= 900
    texts, _ = cut_reply(words, dialect, 1000, 900, 30)
    assert "in the file" not in "".join(texts)


def test_a_lone_surrogate_does_not_reach_a_file() -> None:
    """Files are UTF-8."""
    message = OutboundMessage(KEY, "t1", "a\ud800b")
    assert outbound_parts(message, ["a", "b"], "html", 1)[1].text == "a\ufffdb"


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
