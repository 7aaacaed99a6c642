"""What a reply cites is what the model was given, or is marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt import check_citations, passage_label
from grounding.prompt_input import Passage

MARK = " ⚠ unverified"
WINDOWS = Passage(
    source="refunds.md", heading="Refunds › Windows", text="Thirty days.\n\n### Of gifts\n\nTen.", score=1
)
COSTS = Passage(source="policies/costs (2026).md", heading="", text="Five.", score=0.5)
NOTES = Passage(source="notes.txt", heading="", text="Boats; blue.", score=0.4)
GIVEN = (WINDOWS, COSTS, NOTES)
PROMPT = "\n".join(f"{passage_label(one.source, one.heading)}\n{one.text}" for one in GIVEN)


def cited(reply: str) -> list[str]:
    """The sources that *reply* cites; nothing of it is marked."""
    checked = check_citations(reply, GIVEN, PROMPT)
    assert checked.text == reply
    assert checked.invented == 0
    return [passage.source for passage in checked.cited]


@pytest.mark.parametrize(
    "said",
    [
        "[refunds.md]",
        "[refunds.md › Refunds › Windows]",
        "[refunds.md › Windows]",
        "[docs/refunds.md › Windows]",
        "[Refunds.md > windows]",
        "[refunds.md ›\nWindows]",
        "[refunds.md#windows]",
        "[refunds.md: Windows]",
        "[refunds › Windows]",
        '["refunds.md" › “Windows”]',
        "[**refunds.md** › Windows]",
        "[`refunds.md` › Windows]",
        "[refunds.md › Of gifts]",
        "[refunds.md › A heading that it does not have]",
        "[source: refunds.md › Windows]",
        "[see refunds.md]",
        "(refunds.md › Windows)",
        "(refunds.md)",
        "【refunds.md › Windows】",
        "【4:0†refunds.md†L1-L9】",
        "[[refunds.md › Windows]]",
        "[../refunds.md › Windows]",
        "[docs\\refunds.md › Windows]",
        "[refunds.md, Windows]",
    ],
)
def test_a_passage_is_cited_in_the_ways_in_which_models_write_it(said: str) -> None:
    assert cited(f"Thirty days {said}.") == ["refunds.md"]


@pytest.mark.parametrize(
    ("said", "heading"),
    [
        ("[refunds.md › Of gifts]", "Of gifts"),
        ("[refunds.md › Refunds › Windows › of gifts]", "Of gifts"),
        ("[refunds.md › Windows › Of gifts]", "Of gifts"),
        ("[refunds.md › Windows]", "Refunds › Windows"),
        ("[refunds.md]", "Refunds › Windows"),
    ],
)
def test_a_passage_that_is_cited_with_a_heading_inside_of_it_is_named_by_that_heading(said: str, heading: str) -> None:
    (passage,) = check_citations(f"Ten {said}.", GIVEN, PROMPT).cited
    assert (passage.source, passage.heading) == ("refunds.md", heading)


def test_what_a_passage_repeats_of_the_heading_above_it_is_cited_as_that() -> None:
    """A passage begins where its document does, and its best part has a heading of its own."""
    whole = Passage(source="a.md", heading="Crew › First day", text="# Crew\n\nAll.\n\n## First day\n\nOne.", score=1)
    assert [one.heading for one in check_citations("All [a.md › Crew].", (whole,), "").cited] == ["Crew"]
    assert check_citations("One [a.md › First day].", (whole,), "").cited == (whole,)


def test_several_labels_in_one_bracket_are_cited_in_their_order() -> None:
    assert cited("So [notes.txt; docs/refunds.md › Windows].") == ["notes.txt", "refunds.md"]
    assert cited("So [notes.txt, refunds.md].") == ["notes.txt", "refunds.md"]
    assert cited("So [notes.txt][refunds.md].") == ["notes.txt", "refunds.md"]
    assert cited("So [refunds.md › Windows; notes.txt › Boats].") == ["refunds.md", "notes.txt"]
    assert cited("So [refunds.md › Windows, notes.txt › Boats].") == ["refunds.md", "notes.txt"]


def test_an_invented_label_cannot_hide_behind_a_real_one() -> None:
    checked = check_citations("So [refunds.md › Windows; gifts.md › Rules].", GIVEN, PROMPT)
    assert checked.text == f"So [refunds.md › Windows; gifts.md › Rules{MARK}]."
    assert (checked.cited, checked.invented) == ((WINDOWS,), 1)


def test_each_source_counts_once_in_the_order_of_its_first_citation() -> None:
    assert cited("A [notes.txt]. B [refunds.md]. C [notes.txt].") == ["notes.txt", "refunds.md"]


def test_a_file_is_known_by_the_end_of_its_path_and_with_brackets_in_its_name() -> None:
    assert cited("Five [policies/costs (2026).md], five [costs (2026).md].") == ["policies/costs (2026).md"]


def test_a_file_of_any_ending_is_cited_by_its_whole_path_and_by_nothing_less() -> None:
    code = Passage(source="src/api.py", heading="", text="x = 1", score=0.3)
    checked = check_citations(
        "As [src/api.py] has it, unlike [api.py], [src/other.py] and `[src/api.py]`.", (*GIVEN, code), PROMPT
    )

    assert checked.cited == (code,)
    assert checked.invented == 0


PAGE = Passage(source="app/[id]/page.md", heading="Props", text="One id.", score=0.9)
SLUG = Passage(source="src/[[...slug]]/page.tsx", heading="", text="export", score=0.8)


@pytest.mark.parametrize(
    ("said", "passage"),
    [
        ("[app/[id]/page.md]", PAGE),
        ("[app/[id]/page.md › Props]", PAGE),
        ("[app/(id)/page.md › Props]", PAGE),
        ("[[id]/page.md]", PAGE),
        ("(app/[id]/page.md › Props)", PAGE),
        ("[src/[[...slug]]/page.tsx]", SLUG),
    ],
)
def test_a_path_with_brackets_of_its_own_is_cited(said: str, passage: Passage) -> None:
    checked = check_citations(f"It takes an id {said}, [see [1]/[2]].", (*GIVEN, PAGE, SLUG), PROMPT)

    assert (checked.cited, checked.invented) == ((passage,), 0)


def test_an_invented_path_with_brackets_of_its_own_is_marked() -> None:
    checked = check_citations("It takes an id [app/[name]/page.md], not [2] [app/[id]/page.md](x).", (PAGE,), PROMPT)

    assert checked.text == f"It takes an id [app/[name]/page.md{MARK}], not [2] [app/[id]/page.md](x)."


def test_what_was_never_given_is_marked_and_nothing_is_lost() -> None:
    checked = check_citations(
        "Ten [gifts.md › Rules], thirty [refunds.md; old/terms.txt] 【x.md】 (y.md › Z).", GIVEN, PROMPT
    )
    assert checked.text == (
        f"Ten [gifts.md › Rules{MARK}], thirty [refunds.md; old/terms.txt{MARK}] 【x.md{MARK}】 (y.md › Z{MARK})."
    )
    assert (checked.cited, checked.invented) == ((WINDOWS,), 4)


def test_what_was_cited_in_an_earlier_turn_that_is_shown_may_be_cited_again() -> None:
    checked = check_citations("As said [gifts.md › Rules].", (), "assistant: ten days [gifts.md › Rules]")
    assert (checked.text, checked.cited, checked.invented) == ("As said [gifts.md › Rules].", (), 0)
    assert check_citations("As said [gifts.md › Rules].", (), "what do gifts.md › Rules say?").invented == 1


@pytest.mark.parametrize(
    "said",
    [
        "[the rules](gifts.md)",
        "[gifts.md](https://example.org/gifts.md)",
        "[gifts.md › Rules](x)",
        "![gifts.md](x.png)",
        "`[gifts.md]`",
        "``a ` [gifts.md] b``",
        "```\n[gifts.md]\n```",
        "~~~~text\n[gifts.md]\n~~~\n[x.md]\n~~~~",
        "```\n[gifts.md] in a fence that nobody closed",
        "Like this:\n\n    open [gifts.md]\n",
        "[^1] and [^gifts.md]",
        "[gifts.md]: https://example.org",
        "[ ] to do, [x] done, [1], [sic], [TODO: ask]",
        "[I wrote this in gifts.md]",
        "[gifts.md is missing]",
        "(see gifts.md for more) and (gifts.md)",
        "press [Settings › Privacy] (Tools > Options)",
        "a[i] = b[j > 1], f(x.md5)",
        r"\[gifts.md\]",
    ],
)
def test_links_code_footnotes_and_prose_in_brackets_are_no_citations(said: str) -> None:
    assert check_citations(said, (), "").text == said
    assert check_citations(said, GIVEN, PROMPT).invented == 0


def test_a_marked_reply_is_not_marked_again_nor_makes_its_label_known() -> None:
    once = check_citations("So [gifts.md › Rules].", (), "").text
    assert check_citations(once, (), "").text == once
    assert check_citations("So [gifts.md › Rules].", (), f"assistant: {once}").invented == 1


REPLY = st.lists(
    st.sampled_from(
        ["[", "]", "(", ")", "【", "】", "`", "```\n", "~~~\n", "\n", "    ", "a.md", "refunds.md", " › ", "; ", ", ",
         "†", "Windows", "![", "](", ":", " ", "\\", "日本", "👩‍👩‍👧", MARK]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(REPLY)
def test_checking_only_ever_adds_marks_and_a_second_check_adds_none(reply: str) -> None:
    checked = check_citations(reply, GIVEN, PROMPT)
    assert checked.text.replace(MARK, "") == reply.replace(MARK, "")
    assert checked.text.count(MARK) - reply.count(MARK) == checked.invented
    assert check_citations(checked.text, GIVEN, PROMPT).invented == 0
    assert set(checked.cited) <= set(GIVEN)
    if not any(bracket in reply for bracket in "[【("):
        assert checked.text == reply


@given(st.lists(st.sampled_from(GIVEN), min_size=1, max_size=6), st.text(st.sampled_from("ab \n.,日"), max_size=20))
def test_labels_as_they_stand_in_the_prompt_are_all_found(chosen: list[Passage], between: str) -> None:
    reply = between.join(["", *(passage_label(one.source, one.heading) for one in chosen), ""])
    if "\n  " not in reply:
        assert check_citations(reply, GIVEN, PROMPT).cited == tuple(dict.fromkeys(chosen))
