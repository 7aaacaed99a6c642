"""What `search --explain` says of a passage: where each arm put it."""

from __future__ import annotations

from runtime.cli.commands.search import explained

BOTH = {"score": 1.5, "sparse": {"rank": 2, "score": 7.25}, "dense": None}


def test_an_arm_says_its_rank_and_its_own_score() -> None:
    assert explained(1, BOTH) == [
        "bm25   rank 2    score 7.2500",
        "dense  not among its candidates",
        "fused  rank 1    score 1.5000",
    ]


def test_a_second_look_is_told_where_there_was_one() -> None:
    assert explained(1, BOTH | {"deep": {"rank": 3, "score": 0.5}})[2] == "deep   rank 3    score 0.5000"
    assert explained(1, BOTH | {"deep": None})[2] == "deep   not among its candidates"
