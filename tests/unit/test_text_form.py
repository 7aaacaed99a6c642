"""Markdown becomes a form, and forms become text, HTML, mrkdwn and Discord's Markdown, whole and in parts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.text import DISCORD_MARKDOWN, SLACK_MRKDWN, TELEGRAM_HTML, Dialect, parse_markdown, utf16_units
from connectors.text.markdown import MAX_CHARACTERS, Code, Heading, Paragraph, ParsedMarkdown, Span, Style, Table
from connectors.text.split import SMALLEST_LIMIT, cut_form
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
