"""Markdown as elements for a page: nothing is lost, and nothing of it can become anything but text."""

import json
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.text import Node, link_addresses, to_page_tree
from tests.emulators.web_page import shown

TAGS = {
    *("p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "table", "thead", "tbody", "tr"),
    *("th", "td", "hr", "a", "strong", "em", "s", "br"),
}
ATTRIBUTES = {"a": {"href"}, "li": {"value"}, "pre": {"language"}, "th": {"align"}, "td": {"align"}}
PIECES = [
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x](data:text/html,y)"),
    *('[x](https://e.example/a"b)', "<https://e.example>", "`", "```", "**", "_", "~~", "> ", "- ", "1. ", "# ", "| "),
    *("|-|\n", "\n", "\n\n", "&lt;", "\\", "\0", "\ud800", "---\n"),
]
MARKDOWN = st.lists(st.text(max_size=12) | st.sampled_from(PIECES), max_size=30).map("".join)
PROSE = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\\`~*_[]<>#&|-+=!:.)0123456789\0"), max_size=300
)


def elements(nodes: list[Node]) -> Iterator[list[Any]]:
    for node in nodes:
        if not isinstance(node, str):
            yield node
            yield from elements(node[2])


def visible(text: str) -> str:
    return "".join(character for character in text if unicodedata.category(character)[0] not in "CZ")


@given(MARKDOWN)
def test_only_known_elements_and_attributes_ever_appear(text: str) -> None:
    """Whatever the text: known tags, known attributes, addresses of the web or of mail, and JSON."""
    nodes = to_page_tree(text)
    json.dumps(nodes)
    for tag, attributes, _ in elements(nodes):
        assert tag in TAGS
        assert set(attributes) <= ATTRIBUTES.get(tag, set())
        if tag == "a":
            assert attributes["href"].split(":")[0].lower() in {"http", "https", "mailto"}


@given(PROSE)
def test_prose_is_shown_whole(text: str) -> None:
    """No character of a text without Markdown is lost."""
    assert visible(shown(to_page_tree(text))) == visible(text)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("See https://a.example/x_y_z?q=1#top.", ["https://a.example/x_y_z?q=1#top"]),
        ("(https://a.example/w_(b)) and **HTTP://b.example**!", ["https://a.example/w_(b)", "HTTP://b.example"]),
        ("`https://a.example`", []),
        ("```\nhttps://a.example\n```", []),
        ("javascript://a.example/%0Aalert(1) file:///etc/passwd ftp://a.example", []),
        ("https:// and https://.", []),
        ("Visit www.test.org, or (WWW.a.example/b_c).", ["https://www.test.org", "https://WWW.a.example/b_c"]),
        ("www. www.. www.x me@www.a.example `www.a.example` xwww.a.example", []),
        ("[x](https://a.example) https://b.example", ["https://a.example", "https://b.example"]),
    ],
)
def test_a_bare_address_is_a_link(text: str, addresses: list[str]) -> None:
    """Of the web only, without the sentence's punctuation, and never in code."""
    assert [attributes["href"] for tag, attributes, _ in elements(to_page_tree(text)) if tag == "a"] == addresses


@given(st.text(max_size=40) | st.lists(st.sampled_from(["https://", "a.example", "(", ")", ". ", "x"])).map("".join))
def test_what_a_person_wrote_stays_whole_around_its_links(text: str) -> None:
    nodes = link_addresses(text)
    assert "".join(node if isinstance(node, str) else node[2][0] for node in nodes) == text


def test_html_is_text() -> None:
    """Tags in a reply are shown as they were written."""
    assert to_page_tree("a <b>c</b> <img src=x onerror=y>") == [["p", {}, ["a <b>c</b> <img src=x onerror=y>"]]]


@pytest.mark.parametrize("address", ["javascript:alert(1)", "docs/refunds.md", "ftp://e.example/x", "//e.example/x"])
def test_what_a_browser_must_not_follow_is_no_link(address: str) -> None:
    """Addresses of other schemes and of this site stay readable, and lead nowhere."""
    nodes = to_page_tree(f"[here]({address})")
    assert "a" not in {element[0] for element in elements(nodes)}
    assert "here" in shown(nodes)


def test_a_link_is_one_element_however_it_is_set() -> None:
    """Bold words inside a link do not cut it."""
    assert to_page_tree("[a **b** c](https://e.example)") == [
        ["p", {}, [["a", {"href": "https://e.example"}, ["a ", ["strong", {}, ["b"]], " c"]]]]
    ]


def test_headings_leave_out_no_level() -> None:
    """The highest level is h3, whatever it was written as, and the next is h4."""
    assert [element[0] for element in to_page_tree("## A\n\n#### B\n\n## C")] == ["h3", "h4", "h3"]


def test_lists_nest_and_count_on() -> None:
    """Items keep their numbers and their inner lists."""
    outer = ["li", {"value": 3}, [["p", {}, ["a"]], ["ul", {}, [["li", {}, [["p", {}, ["b"]]]]]]]]
    assert to_page_tree("3. a\n   - b\n4. c") == [["ol", {}, [outer, ["li", {"value": 4}, [["p", {}, ["c"]]]]]]]


def test_a_table_has_a_head_and_aligned_cells() -> None:
    """A table's first row is its head; columns keep their alignment."""
    head = ["thead", {}, [["tr", {}, [["th", {}, ["a"]], ["th", {"align": "right"}, ["b"]]]]]]
    body = ["tbody", {}, [["tr", {}, [["td", {}, ["1"]], ["td", {"align": "right"}, ["2"]]]]]]
    assert to_page_tree("|a|b|\n|-|-:|\n|1|2|") == [["table", {}, [head, body]]]


def test_code_keeps_its_language_and_lines() -> None:
    """A code block is its text, with its language."""
    assert to_page_tree("```python\nif a:\n    b <c>\n```") == [
        ["pre", {"language": "python"}, [["code", {}, ["if a:\n    b <c>"]]]]
    ]
