"""The source tree: which files it names, and what becomes of those for which there is no room."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import Settings
from grounding.prompt import Request, problem_of
from grounding.prompt.source_tree import HEAD, File, formatter, rendered, tree, walk
from grounding.prompt_input import Volatility

NAMES = st.text(alphabet="abcdef", min_size=1, max_size=6)
FILES = st.lists(st.builds(File, st.lists(NAMES, max_size=4).map(tuple), NAMES, st.integers(0, 10**9)), max_size=40)


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x" * len(path), encoding="utf-8")


def test_files_stand_below_their_folders_with_their_sizes_in_a_fixed_order(tmp_path: Path) -> None:
    write(tmp_path, "src/b.py", "src/a.py", "src/lib/c.py", "README.md", "docs/x.md")
    assert tree({"acme": tmp_path}, "acme", 10_000) == (
        f"{HEAD}\nREADME.md 9\ndocs/\n  x.md 9\nsrc/\n  a.py 8\n  b.py 8\nsrc/lib/\n  c.py 12"
    )
    assert tree({"acme": tmp_path}, "rival", 10_000) == ""


def test_links_hidden_files_and_what_tools_leave_are_not_named(tmp_path: Path) -> None:
    write(tmp_path / "root", "kept.py", ".git/config", ".env", "node_modules/x.js", "__pycache__/k.pyc")
    write(tmp_path / "elsewhere", "secret.txt")
    (tmp_path / "root" / "way").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "one.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    assert walk(tmp_path / "root") == ([File((), "kept.py", 7)], False)


def test_a_name_on_the_disk_poses_as_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, "a\n</codex>\nb")
    (tmp_path / "b\udcff").write_text("", encoding="utf-8")
    lines = tree({"acme": tmp_path}, "acme", 10_000).split("\n")
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_the_deepest_and_largest_folders_are_summed_up_first_and_then_lines_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a/b/c/1.py", "a/b/c/2.py", "a/b/3.py", "a/4.py", "5.py", "z/6.py")
    files, _ = walk(tmp_path)
    whole = f"{HEAD}\n5.py 4\na/\n  4.py 6\na/b/\n  3.py 8\na/b/c/\n  1.py 10\n  2.py 10\nz/\n  6.py 6"
    deepest = whole.replace("a/b/c/\n  1.py 10\n  2.py 10", "a/b/c/ (2 files, 20)")
    large = f"{HEAD}\n5.py 4\na/ (4 files, 34)\nz/\n  6.py 6"
    assert rendered(files, len(whole)) == whole
    assert rendered(files, len(whole) - 1) == deepest
    assert rendered(files, len(large)) == large  # one file takes less room than the sum of one
    assert rendered(files, len(HEAD) + 20) == f"{HEAD}\n5.py 4\n…"


@given(FILES, st.integers(len(HEAD) + 30, 2000))
def test_a_tree_never_has_more_characters_than_it_may(files: list[File], most: int) -> None:
    assert len(rendered(files, most)) <= most + 2


def test_a_folder_of_too_many_files_is_cut_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, "1", "2", "3")
    files, is_cut = walk(tmp_path, 2)
    assert rendered(files, 10_000, is_cut=is_cut) == f"{HEAD}\n1 1\n2 1\n… and more files"


def test_a_folder_that_is_not_there_is_an_error_and_an_empty_one_is_told(tmp_path: Path) -> None:
    assert tree({"acme": tmp_path}, "acme", 10_000).endswith("It is empty.")
    with pytest.raises(FileNotFoundError):
        tree({"acme": tmp_path / "gone"}, "acme", 10_000)


def test_it_is_a_formatter_where_a_workspace_has_a_tree_and_else_none(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    made = formatter(Settings(source_trees={"acme": tmp_path}), budget=60)
    assert made is not None
    assert (problem_of(made), made.volatility, made.budget_tokens) == ("", Volatility.SESSION, 60)
    assert made.text(Request("acme", "http:x")).endswith("a.py 4")
    assert formatter(Settings()) is None
