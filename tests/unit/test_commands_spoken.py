"""What counts as a command, and what is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Author, InboundKind, InboundMessage
from runtime.commands import ParsedCommand, parse_command

words = st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True)


def said(text: str, kind: InboundKind = InboundKind.MESSAGE) -> InboundMessage:
    return InboundMessage("telegram", "1", "m1", Author("501", "Lena"), text, kind)


@given(st.text().filter(lambda text: text[:1] not in ("/", "!")))
def test_no_text_without_a_leading_mark_is_ever_a_command(text: str) -> None:
    assert parse_command(said(text)) is None


@given(words, st.text(), st.sampled_from("/!"), st.sampled_from(" \n\t\u00a0"))
def test_a_marked_word_and_all_that_follows_it_are_told_apart(word: str, rest: str, mark: str, gap: str) -> None:
    found = parse_command(said(f"{mark}{word}{gap}{rest}"))

    assert found == ParsedCommand(word, rest.strip(), sure=False, mark=mark)


@given(words, st.text(min_size=1).filter(lambda text: not text[0].isspace()))
def test_a_mark_alone_or_a_word_with_something_stuck_to_it_is_text(word: str, stuck: str) -> None:
    found = parse_command(said(f"/{word}{stuck}"))

    assert found is None or found.word == (word + stuck.split()[0]).lower()


@pytest.mark.parametrize(
    "text",
    ["/etc/hosts is empty", "/ help", "//help", "help", " /help", "I said /help", "/1", "!!", "/héllo", "/" + "a" * 33],
)
def test_what_people_write_with_slashes_is_no_command(text: str) -> None:
    assert parse_command(said(text)) is None


@pytest.mark.parametrize("text", ["/HELP", "!Help", "/help\n", "/help  "])
def test_case_and_what_follows_do_not_matter(text: str) -> None:
    found = parse_command(said(text))

    assert found is not None
    assert (found.word, found.rest) == ("help", "")


def test_lines_of_an_argument_stay_lines() -> None:
    found = parse_command(said("/prompt set soul\nBe kind.\n\n  Always.\n"))

    assert found is not None
    assert found.rest == "set soul\nBe kind.\n\n  Always."


@given(words, st.text())
def test_what_the_platform_calls_a_command_is_one_for_sure(word: str, rest: str) -> None:
    found = parse_command(said(f"{word.upper()} {rest}", InboundKind.COMMAND))

    assert found == ParsedCommand(word, rest.strip(), sure=True)


@pytest.mark.parametrize(
    "kind", [kind for kind in InboundKind if kind not in (InboundKind.MESSAGE, InboundKind.COMMAND)]
)
def test_nothing_else_that_happens_is_a_command(kind: InboundKind) -> None:
    assert parse_command(said("/help", kind)) is None


@pytest.mark.parametrize("text", ["  ", "etc/hosts is empty", "/etc/hosts"])
def test_a_command_without_a_word_is_none(text: str) -> None:
    assert parse_command(said(text, InboundKind.COMMAND)) is None
