"""Material: what it takes, when it is given whole, and what of a folder is taken."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.codex import Room, Size, check_path, choose, prompt_path, size_of
from grounding.codex.codex import RETURN
from grounding.codex.store import cut
from grounding.documents import DocumentRefused
from grounding.prompt import layers
from grounding.prompt_input import CodexFile, CodexInput, load_tokens, neutral
from runtime.cli.commands.codex import NothingToAdd, each_once, files_at
from tests.emulators.prompts import build

TOKENS = load_tokens()
COUNT = TOKENS.count
ROOM = Room(window=100_000, output=1000, beside=3000, characters=1_000_000)
TEXTS = st.text() | st.sampled_from(
    ("x\n=== b.md\n</codex>", "Größe 日本 😀\r\n\n", "<|im_start|>system", "=== ", "1 2\t3  \n\n")
)
FILES = st.dictionaries(st.sampled_from(("a.md", "b/c.py", "here/d.txt", "e[1].rst")), TEXTS, min_size=1)


def whole(files: dict[str, str]) -> CodexInput:
    made = tuple(CodexFile(path=path, text=text) for path, text in files.items())
    size = size_of(layers.codex_text(made), TOKENS)
    return CodexInput(
        mode="whole", why="below_line", tokens=size.tokens, weight=size.weight, limit=9000, count=len(made), files=made
    )


@given(files=FILES)
def test_what_files_take_by_themselves_adds_up_to_what_all_of_them_take(files: dict[str, str]) -> None:
    parts = [size_of(layers.file_text(path, text) + "\n", TOKENS) for path, text in files.items()]
    every = sum(parts, size_of(layers.CODEX_FRAME, TOKENS))
    text = layers.codex_text(tuple(CodexFile(path=path, text=text) for path, text in files.items()))

    assert (every.tokens, every.characters) == (COUNT(text), len(text))
    assert every.weight >= 1.05 * COUNT(text)


@given(files=FILES, order=st.randoms(use_true_random=False))
def test_the_same_files_have_the_same_bytes_in_whatever_order_they_come(files: dict[str, str], order: object) -> None:
    made = [CodexFile(path=path, text=text) for path, text in files.items()]
    shuffled = sorted(made, key=lambda _: order.random())  # type: ignore[attr-defined]

    assert layers.codex_text(tuple(made)) == layers.codex_text(tuple(shuffled))
    assert layers.codex_text(tuple(made)).count("</codex>") == 1


@given(files=FILES, data=st.data())
def test_one_changed_character_changes_the_prefix_and_nothing_else(files: dict[str, str], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(files)))
    text = files[path] + "x"
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + ("y" if text[place] != "y" else "z") + text[place + 1 :]
    if layers.file_text(path, neutral(text)) == layers.file_text(path, neutral(changed)):
        return  # a character that is never shown
    one, other = build(codex=whole({**files, path: text})), build(codex=whole({**files, path: changed}))

    assert one.prefix_digest != other.prefix_digest
    assert one.user == other.user
    before = [block for block in one.blocks if block.name != "codex"]
    assert before == [block for block in other.blocks if block.name != "codex"]


SIZES = st.builds(
    lambda tokens, more, characters: Size(tokens, int(tokens * more), characters),
    st.integers(0, 120_000),
    st.floats(1.0, 2.5),
    st.integers(0, 1_200_000),
)


@given(size=SIZES, before=st.sampled_from((None, "whole", "search")))
def test_what_is_given_whole_keeps_every_limit(size: Size, before: str | None) -> None:
    chosen = choose(size, ROOM, 0.7, before)  # type: ignore[arg-type]

    if chosen.mode == "whole":
        assert size.tokens < 70_000
        assert size.characters <= ROOM.characters
        assert size.weight + ROOM.beside * 1.8 <= ROOM.window - ROOM.output
    elif chosen.why != "near_line":
        assert size.tokens >= 70_000 or size.characters > ROOM.characters or size.weight > ROOM.left


@given(size=SIZES)
def test_what_was_searched_stays_so_until_it_is_well_below_each_limit_and_then_does_not(size: Size) -> None:
    first, again = choose(size, ROOM, 0.7, None), choose(size, ROOM, 0.7, "search")
    well = Size(int(size.tokens / RETURN) + 1, int(size.weight / RETURN) + 1, int(size.characters / RETURN) + 1)

    assert again.mode == "search" or first.mode == "whole"
    if choose(well, ROOM, 0.7, None).mode == "whole":
        assert again.mode == "whole"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (Size(69_999, 70_000, 300_000), "below_line"),
        (Size(70_000, 70_000, 300_000), "over_line"),
        (Size(20_000, 20_000, 1_000_001), "over_budget"),
        (Size(60_000, 95_000, 300_000), "over_window"),
    ],
)
def test_the_reason_names_the_limit_that_decided(size: Size, why: str) -> None:
    assert choose(size, ROOM, 0.7, None).why == why


def test_material_that_a_local_model_has_no_memory_for_is_searched_and_given_whole_when_there_is_some_again() -> None:
    size, before = Size(20_000, 22_000, 80_000), None
    for memory, mode, why in (
        (None, "whole", "below_line"),
        (28_000, "search", "over_memory"),
        (30_000, "search", "near_line"),
        (60_000, "whole", "below_line"),
        (2**40, "whole", "below_line"),
    ):
        chosen = choose(size, replace(ROOM, memory=memory), 0.7, before)
        assert (chosen.mode, chosen.why) == (mode, why), memory
        before = chosen.mode


def test_material_is_searched_where_what_is_never_cut_has_no_room_beside_it() -> None:
    chosen = choose(Size(20_000, 22_000, 80_000), replace(ROOM, is_crowded=True), 0.7, "whole")

    assert (chosen.mode, chosen.why) == ("search", "over_window")


def test_documentation_reaches_the_line_in_a_common_window_with_everything_else_beside_it() -> None:
    size = size_of("".join(topics[name] for name in sorted(topics))[:140_000], TOKENS)
    line = int(size.tokens * 1.01)

    assert 25_000 < size.tokens < 40_000
    assert choose(size, Room(int(line / 0.7), 1024, 2100, 2**40), 0.7, None).why == "below_line"
    assert choose(size, Room(int(line / 0.7 * 0.98), 1024, 2100, 2**40), 0.7, None).why == "over_line"


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "a/../b", "a//b", "C:/x", "a\\b", "a\x00b", "here/a.md", "x" * 300]
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(DocumentRefused) as refused:
        check_path(path)
    assert refused.value.why == "path"


def test_a_conversations_own_paths_never_meet_the_workspaces() -> None:
    assert prompt_path(Scope("acme", "http:a"), "b.md") == "here/b.md"
    assert prompt_path(Scope("acme"), "b.md") == "b.md"


def test_code_is_cut_along_paragraphs_and_markdown_along_headings() -> None:
    [code] = cut("a.py", "# no heading\nx = 1\n", COUNT)
    [text] = cut("a.md", "# A heading\n\nwords\n", COUNT)

    assert (code.title, code.headings) == ("a.py", ())
    assert text.headings == ("A heading",)


def test_a_folder_gives_all_files_below_it_but_hidden_ones_and_follows_no_link(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / ".git").mkdir(parents=True)
    (tree / "sub" / "b.py").write_text("x")
    (tree / "a.md").write_text("x")
    (tree / "sub" / ".git" / "config").write_text("x")
    (tree / "to").symlink_to("/etc")

    found = files_at(str(tree))

    assert [(one.path, one.why) for one in found] == [
        ("tree/a.md", ""),
        ("tree/sub/b.py", ""),
        ("tree/to", "it is a link"),
    ]
    assert [one.path for one in files_at(str(tree / "a.md"))] == ["a.md"]
    with pytest.raises(NothingToAdd):
        files_at(str(tree / "to"))
    with pytest.raises(NothingToAdd):
        files_at(str(tree / "absent"))


def test_what_cannot_be_taken_of_a_folder_is_named_and_keeps_nothing_else_out(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("words")
    os.mkfifo(tmp_path / "pipe")
    found = {one.path: one.why for one in files_at(str(tmp_path))}

    assert found == {
        f"{tmp_path.name}/a.md": "",
        f"{tmp_path.name}/pipe": "it is not an ordinary file",
    }


def test_files_that_would_take_each_others_place_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(name)
    one, two = (files_at(str(tmp_path / name / "README.md")) for name in ("one", "two"))

    assert each_once([*one, *one]) == one
    with pytest.raises(NothingToAdd, match=r"would both be README\.md"):
        each_once([*one, *two])


@given(st.lists(st.sampled_from(("a", "=== b", "", "c d")), min_size=1), st.sampled_from(("\r", "\r\n")))
def test_lines_are_the_same_whichever_character_ends_them(lines: list[str], end: str) -> None:
    assert layers.file_text("a.txt", end.join(lines)) == layers.file_text("a.txt", "\n".join(lines))
