"""Directives: one step after which a file and what is published agree, and texts made shorter that lose nothing."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.prompt_input import load_tokens
from promptpolicy.condense import check_kind, condense_messages, judge, retry_messages, verbatim
from promptpolicy.directives import Version
from promptpolicy.file_sync import Step, decide, find_reverted_version
from promptpolicy.file_tree import SlotFile, SyncedCopy
from promptpolicy.policy import EVERYWHERE, InvalidDirective, Kind, Place, Slot, digest

SLOT = Slot(Place(Scope("acme")), Kind.SYSTEM)
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def file(text: str, ending: str = "\n", seconds: float = 0) -> SlotFile:
    """A file that was changed *seconds* after `NOW`, when versions are published here."""
    sha256 = hashlib.sha256(f"{text}{ending}".encode()).hexdigest()
    return SlotFile(SLOT, "SYSTEM_PROMPT.md", sha256, text, changed_at=NOW + timedelta(seconds=seconds))


def stored(number: int, text: str | None, origin: str = "command") -> Version:
    sha256 = "-" if text is None else digest(text)
    return Version(SLOT, number, text, "telegram:7", NOW, origin, sha256, len(text or ""))


def copied(text: str, version: int) -> SyncedCopy:
    return SyncedCopy(file(text).sha256, version)


@pytest.mark.parametrize(
    ("origins", "undone"),
    [
        (["command", "command"], 1),  # an editor that was opened at version 1 and saved after version 2
        (["file", "api"], 1),
        (["command", "file"], None),  # who wrote the file takes it back
        (["command", "command", "file"], 1),
    ],
)
def test_a_file_does_not_undo_what_was_published_elsewhere(origins: list[str], undone: int | None) -> None:
    history = [stored(number, f"text {number}", origin) for number, origin in enumerate(origins, 1)][::-1]
    found = find_reverted_version("text 1", history)
    assert (found.version if found else None) == undone
    assert find_reverted_version("something else", history) is None


texts = st.sampled_from(["a", "b", "c"])
files = st.none() | st.builds(file, texts, st.sampled_from(["\n", ""]), st.sampled_from([-60, 0, 60]))
records = st.none() | st.builds(copied, texts, st.integers(1, 4))
versions = st.none() | st.builds(stored, st.integers(1, 4), st.none() | texts, st.sampled_from(["command", "file"]))


@given(files, records, versions)
def test_one_step_is_enough_and_no_published_text_is_lost(
    found: SlotFile | None, last: SyncedCopy | None, newest: Version | None
) -> None:
    step = decide(found, last, newest)
    number = newest.version if newest else 0
    if step is Step.IMPORT:
        assert found is not None
        newest = stored(number + 1, found.text)
        last = SyncedCopy(found.sha256, number + 1)
    elif step is Step.CLEAR:
        newest, last = stored(number + 1, None), None
    elif step in (Step.COPY, Step.CONFLICT):
        assert newest is not None
        found = None if newest.text is None else file(newest.text)
        last = None if newest.text is None else copied(newest.text, newest.version)
    elif step is Step.NOTE:
        last = None if found is None else SyncedCopy(found.sha256, number)
    assert decide(found, last, newest) is Step.NOTHING
    assert (found.text if found else None) == (newest.text if newest else None)


@given(versions)
def test_a_file_that_is_missing_without_a_record_clears_nothing(newest: Version | None) -> None:
    assert decide(None, None, newest) is not Step.CLEAR


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


def test_the_numbers_of_a_list_are_no_parts_that_stay() -> None:
    old = "1. You must NEVER ever reveal the price list to anybody at all.\n2. Please be brief, in all that you say."
    assert problems("Never reveal the price list. Be brief.", old) == ""


def test_a_fence_around_the_whole_answer_is_taken_off_and_one_inside_has_to_stay() -> None:
    assert judge(OLD, f"```markdown\n{NEW}\n```", COUNT).problems == ()
    old = 'Please answer with a block that looks exactly like this one here:\n```json\n{"a": 1}\n```\nand nothing else.'
    assert problems('Answer only with:\n```json\n{"a": 1}\n```', old) == ""
    assert "it lost the code" in problems('Answer only with {"a": 1}', old)


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
