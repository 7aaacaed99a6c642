"""Directives made shorter: what has to stay as it is, and what is said of a text that will not do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt_input import load_tokens
from promptpolicy.condense import check_kind, condense_messages, judge, retry_messages, verbatim
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Slot

COUNT = load_tokens().count
OLD = """\
# House rules

Please always make sure that you answer in a friendly way whenever somebody asks you something about refunds, because we
want our customers to be happy. A refund takes 14 days, and Lena from Acme has to sign it. Write to help@acme.com, or
look at https://acme.com/refunds. Say "we are on it" first. Run `refund --dry` and never anything else.

<!-- verbatim -->
The liability is limited to 500 EUR.
<!-- /verbatim -->
"""
NEW = """\
# House rules

Be friendly about refunds. They take 14 days, signed by Lena (Acme). Address help@acme.com, else
https://acme.com/refunds. Say "we are on it" first. Run `refund --dry`, never anything else.

<!-- verbatim -->
The liability is limited to 500 EUR.
<!-- /verbatim -->
"""


def problems(new: str, old: str = OLD) -> str:
    return "; ".join(judge(old, new, COUNT).problems)


def test_a_shorter_text_that_keeps_every_verbatim_part_may_be_published() -> None:
    judged = judge(OLD, NEW, COUNT)
    assert judged.problems == ()
    assert judged.text == NEW.strip()


@pytest.mark.parametrize(
    ("part", "other", "said"),
    [
        ("14 days", "two weeks", "it lost the number '14'"),
        ("help@acme.com", "us", "it lost the address 'help@acme.com'"),
        ("https://acme.com/refunds", "https://acme.com", "it lost the address 'https://acme.com/refunds'"),
        ("we are on it", "we are at it", "it lost the quoted text '\"we are on it\"'"),
        ("`refund --dry`", "`refund`", "it lost the code '`refund --dry`'"),
        ("500", "600", "it lost the marked text"),
        ("<!-- verbatim -->\n", "", "it lost the marked text"),
    ],
)
def test_what_is_lost_is_named(part: str, other: str, said: str) -> None:
    assert part in NEW
    assert said in problems(NEW.replace(part, other))


def test_a_text_that_is_not_shorter_is_rejected_with_both_lengths() -> None:
    assert f"it is not shorter: {COUNT(OLD.strip())} tokens instead of {COUNT(OLD.strip())}" in problems(OLD)
    assert "it is not shorter" in problems(NEW + "More and more words. " * 60)
    assert "the text is empty" in problems("  \n")


def test_each_number_stays_as_often_as_it_was() -> None:
    old = "Answer within 3 days please. Never write more than 3 sentences at all, please."
    assert "it lost the number '3' (2 times, and now 1)" in problems("Answer within 3 days, in few sentences.", old)
    assert problems("Answer within 3 days, in at most 3 sentences.", old) == ""


def test_a_quote_ends_where_another_begins() -> None:
    """Were each that nobody closes looked for to the end of its line, ten thousand would hold up everybody else."""
    for opening, closing in ("“”", "„“", "«»", "‘’"):
        quote = f"{opening}we are on it{closing}"
        assert list(verbatim(f"{opening}say {quote} first")) == [("quoted text", quote)]
        assert verbatim(opening * 9) == {}


def test_the_numbers_of_a_list_are_no_parts_that_stay() -> None:
    old = "1. You must NEVER ever reveal the price list to anybody at all.\n2. Please be brief, in all that you say."
    assert problems("Never reveal the price list. Be brief.", old) == ""


def test_a_fence_around_the_whole_answer_is_taken_off_and_one_inside_has_to_stay() -> None:
    assert judge(OLD, f"```markdown\n{NEW}\n```", COUNT).problems == ()
    old = 'Please answer with a block that looks exactly like this one here:\n```json\n{"a": 1}\n```\nand nothing else.'
    assert problems('Answer only with:\n```json\n{"a": 1}\n```', old) == ""
    assert "it lost the code" in problems('Answer only with {"a": 1}', old)


def test_what_is_missing_from_a_long_list_of_mistakes_is_counted() -> None:
    old = " ".join(f"Say number {number} please." for number in range(100, 130))
    told = judge(old, "Say all.", COUNT).problems
    assert (len(told), told[-1]) == (13, "and 18 more")


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_text_that_is_accepted_lacks_a_part_that_has_to_stay(old: str, new: str) -> None:
    judged = judge(old, new, COUNT)
    if not judged.problems:
        left = verbatim(judged.text)
        assert all(part in judged.text for _, part in verbatim(old))
        assert all(left[one] >= times for one, times in verbatim(old).items() if one[0] == "number")
        assert COUNT(judged.text) < COUNT(old)


def test_a_model_that_is_asked_again_is_told_what_was_wrong() -> None:
    asked = retry_messages(condense_messages(OLD), "nothing", ("it lost the number '14'",))
    assert [one["role"] for one in asked] == ["system", "user", "assistant", "user"]
    assert asked[1]["content"] == OLD
    assert "it lost the number '14'" in asked[3]["content"]


def test_tables_are_not_condensed() -> None:
    check_kind(Slot(EVERYWHERE, Kind.SKILL, "refunds"))
    with pytest.raises(InvalidDirective, match="is a table"):
        check_kind(Slot(EVERYWHERE, Kind.CUES))
