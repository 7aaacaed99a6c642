"""What people set in bold, as code or as a link in Telegram is Markdown to the model."""

from __future__ import annotations

from typing import Any

import pytest
from aiogram.types import MessageEntity
from hypothesis import given
from hypothesis import strategies as st

from connectors.telegram.updates import Identity, to_markdown

ME = Identity(900, "our_bot")

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
    assert to_markdown(text, [at(kind, text, part, **more) for kind, part, more in entities], ME)[0] == expected


def test_the_bots_name_is_removed_behind_marks() -> None:
    text = "see docs, @our_bot"
    entities = [at("text_link", text, "docs", url="https://x.example"), at("mention", text, "@our_bot")]
    assert to_markdown(text, entities, ME) == ("see [docs](https://x.example)", True)


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
    marked, _ = to_markdown(text, entities, ME)
    rest = iter(marked)
    assert all(character in rest for character in text)
    assert to_markdown(text, [], ME) == (text, False)
