"""The emulator reads Telegram's HTML as TDLib's parser does; the expected answers are that parser's."""

from __future__ import annotations

import pytest

from tests.emulators.telegram_html import CannotParse, Entity, parse_html


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
