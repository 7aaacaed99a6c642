"""Documents are cut along their own structure."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import ConversationKey
from grounding.retrieval import Chunk, Sizes, chunk_document
from grounding.transcript import EntryRole, TranscriptEntry, markdown


def words(text: str) -> int:
    return len(text.split())


def cut(text: str, target: int = 40, overlap: int = 0, path: str = "a.md") -> list[Chunk]:
    return chunk_document(path, text, words, Sizes(target, overlap))


def sentences(count: int, word: str = "word") -> str:
    return " ".join(f"{word} number {number} ends here." for number in range(count))


def test_each_chunk_knows_the_headings_above_it() -> None:
    body = sentences(9)
    text = f"# Refunds\n\n{body}\n\n## Windows\n\n{body}\n\n### Gifts\n\n{body}\n\n## Fees\n\nNone at all."
    assert [chunk.heading for chunk in cut(text, 60)] == [
        "Refunds",
        "Refunds › Windows",
        "Refunds › Windows › Gifts",
        "Refunds › Fees",
    ]


def test_a_heading_with_nothing_under_it_goes_down_into_its_first_subsection() -> None:
    (chunk,) = cut("# Refunds\n\n## Windows\n\nThirty days.")
    assert chunk.heading == "Refunds › Windows"
    assert chunk.text == "# Refunds\n\n## Windows\n\nThirty days."


def test_headings_lose_their_markup_and_there_is_none_in_code() -> None:
    (chunk,) = cut("# The `tw` *tool* and [links](x.md)\n\n```\n# not a heading\n```\n")
    assert chunk.headings == ("The tw tool and links",)


def test_a_code_fence_that_fits_is_never_cut() -> None:
    fence = "```py\n" + "\n".join(f"call({n}) # a b c" for n in range(9)) + "\n```"
    chunks = cut(f"# One\n\n{sentences(9)}\n\n{fence}\n\n{sentences(9)}", target=48)
    assert any(fence in chunk.text for chunk in chunks)


def test_rows_of_a_table_that_had_to_be_cut_carry_its_header() -> None:
    rows = "\n".join(f"| row {n} | value {n} |" for n in range(60))
    chunks = cut(f"# T\n\n| Name | Value |\n|---|---|\n{rows}\n")
    assert len(chunks) > 3
    assert all(chunk.lead == "| Name | Value |\n|---|---|\n" for chunk in chunks[1:])
    assert all(f"| row {n} | value {n} |" in "\n".join(c.text for c in chunks) for n in range(60))


def test_the_title_is_the_front_matter_s_then_the_first_heading_then_the_file_name() -> None:
    assert cut('---\ntitle: "Our prices"\nowner: x\n---\n# Other\n\nText.')[0].title == "Our prices"
    assert cut("# Other\n\nText.")[0].title == "Other"
    assert cut("Text.", path="sub/refund-rules.md")[0].title == "refund-rules"


def test_front_matter_is_not_part_of_any_chunk() -> None:
    (chunk,) = cut("---\ntitle: Prices\nsecret: x\n---\n\nText.")
    assert chunk.text == "Text."
    assert chunk.first_line == 6


def test_a_rule_at_the_top_is_no_front_matter() -> None:
    assert "open end" in cut("---\nopen end\n\nText.")[0].text


def test_small_overlap_repeats_the_end_of_the_chunk_before() -> None:
    text = "\n\n".join(f"Paragraph {n} has exactly seven words." for n in range(20))
    chunks = cut(text, target=30, overlap=10)
    assert all(after.start < before.end for before, after in pairwise(chunks))
    assert all(chunk.text == text[chunk.start : chunk.end] for chunk in chunks)


def test_plain_text_has_no_headings() -> None:
    (chunk,) = cut("# shell comment\nls", path="notes.txt")
    assert chunk.headings == ()


def test_a_chunk_keeps_its_id_when_text_elsewhere_changes() -> None:
    before = cut(f"# A\n\n{sentences(9)}\n\n# B\n\nStable.\n")
    after = cut(f"# A\n\nAll new. {sentences(9)}\n\nMore.\n\n# B\n\nStable.\n")
    assert before[-1].id == after[-1].id
    assert before[0].id != after[0].id


def test_one_huge_line_is_cut_into_pieces_under_the_cap() -> None:
    chunks = chunk_document("a.md", "x" * 50_000, len, Sizes(1000, 0))
    assert "".join(chunk.text for chunk in chunks) == "x" * 50_000
    assert max(len(chunk.text) for chunk in chunks) <= 1250


def chat(*lines: str) -> str:
    return "# Team chat\n\n" + "\n\n".join(lines) + "\n"


def exchange(number: int, answer: int = 9) -> tuple[str, str]:
    return f"user: What of number {number}?", f"assistant: {sentences(answer // 3, f'answer{number}')}"


def test_a_chat_is_cut_between_messages_and_a_question_stays_with_its_answer() -> None:
    text = chat(*(line for number in range(8) for line in exchange(number)))
    chunks = cut(text, target=60)

    assert len(chunks) > 3
    assert all(chunk.text.startswith(("user: ", "# Team chat\n\nuser: ")) for chunk in chunks)
    assert all(chunk.text.count("user: ") == chunk.text.count("assistant: ") for chunk in chunks)
    assert {(chunk.title, chunk.heading) for chunk in chunks} == {("Team chat", "Team chat")}


def test_the_later_parts_of_a_long_message_name_its_speaker() -> None:
    first, *rest = cut(chat(*exchange(0, 90), *exchange(1), *exchange(2)), target=40)
    parts = [chunk for chunk in rest if "user: " not in chunk.text]

    assert "user: What of number 0?" in first.text
    assert len(parts) > 2
    assert {chunk.lead for chunk in parts} == {"assistant: … "}


def test_a_day_in_a_chat_is_the_heading_of_what_was_said_on_it() -> None:
    days = [f"## {day} May\n\nAnna: Hello.\n\nBo: Good morning.\n\nAnna: It is {day} May.\n" for day in range(1, 4)]

    assert [chunk.heading for chunk in cut("\n".join(days), target=40)] == ["1 May", "2 May", "3 May"]


def test_a_log_of_this_runtime_is_a_chat() -> None:
    key = ConversationKey("w", "console", "c")
    roles = (EntryRole.INBOUND, EntryRole.OUTBOUND)
    entries = [
        TranscriptEntry(role, sentences(3), f"t{n}", "2026-05-08T10:00:00+00:00", author=name)
        for n in range(4)
        for role, name in zip(roles, ("Anna", "assistant"), strict=True)
    ]
    chunks = cut(markdown.title(key) + "".join(map(markdown.render, entries)), target=160)

    assert len(chunks) > 1
    assert all("INBOUND" in chunk.text.partition("OUTBOUND")[0] for chunk in chunks)


@pytest.mark.parametrize(
    "text",
    [
        "\n\n".join(f"Field {n}: value" for n in range(9)),
        "\n\n".join(f"Name: x{n}\n\n{sentences(9)}" for n in range(9)),
        "```\n" + "kind: Service\nhost: one\n" * 9 + "```",
        sentences(300) + "\n\n" + "Anna: Hello.\n\nBo: Good morning.\n\n" * 9,
    ],
    ids=["fields", "one speaker", "code", "a quotation in prose"],
)
def test_lines_with_a_colon_alone_make_no_chat(text: str) -> None:
    plain = text.replace(":", ";")
    assert [chunk.text.replace(":", ";") for chunk in cut(text)] == [chunk.text for chunk in cut(plain)]


documents = st.lists(
    st.one_of(
        st.sampled_from(
            ["# A", "## B", "### C *d*", "", "", "```", "~~~", "| a | b |", "|---|---|", "| 1 | 2 |", "---"]
        ),
        st.sampled_from(["- item", "  nested", "> quote", "title: x", "<div>", "Setext", "====", "[r]: http://x"]),
        st.sampled_from(["Anna: yes", "Bo: no", "Anna: why, and what of all the others?"]),
        st.text(max_size=60),
    ),
    max_size=40,
).map("\n".join)


@given(documents, st.integers(4, 60), st.integers(0, 10))
def test_chunks_are_slices_of_the_document_of_which_no_visible_character_is_lost(
    text: str, target: int, overlap: int
) -> None:
    chunks = cut(text, target, overlap)
    covered = {place for chunk in chunks for place in range(chunk.start, chunk.end)}
    begins_with_front_matter = text.startswith(("---", "\ufeff---"))
    start = min(covered, default=len(text)) if begins_with_front_matter else 0
    body = " " * start + text[start:]
    assert [char for place, char in enumerate(body) if place not in covered and not char.isspace()] == []
    for number, chunk in enumerate(chunks):
        assert chunk.ordinal == number
        assert chunk.text == text[chunk.start : chunk.end]
        assert chunk.first_line == text.count("\n", 0, chunk.start) + 1
        assert chunk.last_line == chunk.first_line + chunk.text.count("\n")
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    assert chunks == cut(text, target, overlap)


@given(documents, st.integers(4, 60))
def test_without_leads_no_chunk_is_more_than_a_quarter_over_the_target(text: str, target: int) -> None:
    for chunk in cut(text, target):
        if not chunk.lead:
            assert words(chunk.text) <= target + target // 4


@pytest.mark.parametrize("opening", ["![", "*a_ "])
def test_markup_that_never_closes_costs_no_more_than_words(opening: str) -> None:
    """What is inside of paragraphs is not parsed: a document made to be slow is cut as quickly as any."""
    text = "# [Title](x) **here**\n\n" + opening * (200_000 // len(opening))
    started = time.process_time()
    chunks = chunk_document("a.md", text, lambda part: len(part) // 4)

    assert time.process_time() - started < 5
    assert chunks[0].title == "Title here"
