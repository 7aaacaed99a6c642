"""The difference of two prompts, word by word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt import build_prompt
from runtime.preview import Segment, compare_prompts, compare_words
from tests.emulators.prompts import ANY_TEXT, TOKENS, context


def test_a_changed_word_is_marked_between_what_stays() -> None:
    assert compare_words("Answer in English, always.", "Answer in German, always.") == (
        Segment("equal", "Answer in"),
        Segment("delete", " English,"),
        Segment("insert", " German,"),
        Segment("equal", " always."),
    )


@given(before=ANY_TEXT | st.just("one two three"), after=ANY_TEXT | st.just("one three  four\n"))
def test_the_segments_are_both_texts(before: str, after: str) -> None:
    segments = compare_words(before, after)

    assert "".join(one.text for one in segments if one.kind != "insert") == before
    assert "".join(one.text for one in segments if one.kind != "delete") == after
    assert all(one.text for one in segments)


def test_a_very_long_text_is_compared_by_its_lines() -> None:
    lines = [f"Rule {number} is a rule of eight words or so.\n" for number in range(1500)]
    changed = [*lines[:700], "Another rule.\n", *lines[701:]]

    assert [one.kind for one in compare_words("".join(lines), "".join(changed))] == [
        "equal", "delete", "insert", "equal",
    ]  # fmt: skip


def test_blocks_with_the_same_bytes_are_told_from_those_that_changed() -> None:
    before = build_prompt(context(), TOKENS)
    after = build_prompt(context(identity="You are a good helper.", summary=None), TOKENS)
    compared = compare_prompts(before, after)
    changes = {block.name: block.change for block in compared.blocks}

    assert (changes.pop("identity"), changes.pop("summary")) == ("changed", "removed")
    assert set(changes.values()) == {"same"}
    assert [block.name for block in compared.blocks] == [block.name for block in before.blocks if block.text]
    assert not compared.is_same
    identity = compared.blocks[0]
    assert [one.text for one in identity.segments if one.kind == "insert"] == [" good"]
    assert identity.tokens == tuple(prompt.blocks[0].tokens for prompt in (before, after))
    assert compared.row()["blocks"][0]["segments"][1] == {"kind": "insert", "text": " good"}
    assert compare_prompts(before, before).is_same
