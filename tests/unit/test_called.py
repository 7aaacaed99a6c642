"""Calls of tools are understood in whatever pieces a server sends them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.llm.streaming import ToolCallAccumulator

OFFERED = ("find", "find_all", "go")
FIND, GO = '{"q": "x"}', '{"to": 1}'
Piece = tuple[int, str, str, str]


def put_together(*pieces: Piece) -> list[tuple[str, str, str]]:
    called = ToolCallAccumulator(OFFERED)
    for piece in pieces:
        called.add(*piece)
    return [(call.id, call.name, call.arguments) for call in called.calls]


@given(st.lists(st.tuples(st.sampled_from(OFFERED), st.text()), min_size=1, max_size=4), st.randoms())
def test_calls_of_an_index_each_come_whole_however_they_are_cut_and_mixed(
    calls: list[tuple[str, str]], random: object
) -> None:
    pieces: list[list[Piece]] = []
    for index, (name, text) in enumerate(calls):
        arguments = json.dumps({"q": text})
        cut = random.randint(0, len(arguments))  # type: ignore[attr-defined]
        rest: list[Piece] = [(index, "", "", arguments[:cut]), (index, "", "", arguments[cut:])]
        pieces.append([(index, f"id{index}", name, ""), *rest])
    mixed: list[Piece] = []
    while any(pieces):
        mixed.append(random.choice([one for one in pieces if one]).pop(0))  # type: ignore[attr-defined]

    assert put_together(*mixed) == [
        (f"id{index}", name, json.dumps({"q": text})) for index, (name, text) in enumerate(calls)
    ]


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (
            [
                (0, "a", "find", '{"q"'),
                (0, "", "", ': "x"}'),
                (0, "b", "go", "{"),
                (0, "", "", "}"),
                (1, "c", "go", GO),
            ],
            [("a", "find", FIND), ("b", "go", "{}"), ("c", "go", GO)],
        ),
        ([(0, "a", "go", ""), (0, "b", "go", "")], [("a", "go", ""), ("b", "go", "")]),
        ([(0, "", "find", FIND), (0, "", "go", GO)], [("", "find", FIND), ("", "go", GO)]),
        ([(0, "", "find", FIND), (0, "", "find", FIND)], [("", "find", FIND)] * 2),
        ([(0, "a", "find", FIND), (0, "a", "go", GO)], [("a", "find", FIND), ("a", "go", GO)]),
        ([(0, "", "go", ""), (0, "", "find", FIND)], [("", "go", ""), ("", "find", FIND)]),
    ],
    ids=["by ids", "without arguments", "no ids", "the same twice", "one id for all", "no arguments, no ids"],
)
def test_calls_that_come_under_one_index_are_told_apart(
    pieces: list[Piece], wanted: list[tuple[str, str, str]]
) -> None:
    assert put_together(*pieces) == wanted


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, "a", "fi", ""), (0, "", "nd", FIND)],
        [(0, "a", "find", ""), (0, "a", "find", FIND[:4]), (0, "a", "find", FIND[4:]), (0, "a", "find", "")],
        [(0, "a", "find", ""), (0, "b", "", FIND[:4]), (0, "c", "find", FIND[4:]), (0, "", "", "")],
        [(0, "", "", FIND), (0, "a", "find", "")],
        [(0, "a", "find", ""), (0, "", "", FIND[:4]), (0, "", "", FIND[4:]), (0, "a", "find", FIND)],
        [(0, "a", "find", ""), (0, "", "", FIND), (0, "", "", FIND)],
        [(0, "a", "find", FIND), (0, "a", "", json.dumps(FIND))],
        [(0, "a", "find", FIND), (1, "a", "find", FIND)],
    ],
    ids=[
        "name in parts",
        "all again in each piece",
        "another id for each piece",
        "name last",
        "all again at the end",
        "arguments again",
        "again as text",
        "again under another index",
    ],
)
def test_pieces_of_one_call_stay_one_call(pieces: list[Piece]) -> None:
    [(id_, name, arguments)] = put_together(*pieces)

    assert (id_, name, json.loads(arguments)) == ("a", "find", {"q": "x"})


def test_a_name_that_begins_like_another_is_read_to_its_end() -> None:
    assert put_together((0, "a", "find", ""), (0, "", "_all", FIND)) == [("a", "find_all", FIND)]
