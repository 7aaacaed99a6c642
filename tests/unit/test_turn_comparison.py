"""Two turns compared for people who want to know why the answers differ."""

from __future__ import annotations

from typing import Any

from runtime.turns.manifest import compare_manifests


def block(name: str, text: str, *, used: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "tokens": len(text.split()),
        "budget": 10,
        "used": used,
        "sha256": f"sha of {text}",
        "why": "",
    }


def turn(turn_id: str, *blocks: dict[str, Any], user: str = "Hello", **other: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": user}]
    return {
        "turn_id": turn_id,
        "strategy": "none",
        "reason": "no_retrieval_cue",
        "context_id": "http:default",
        "model": "openai/fake",
        "tokens_total": 1,
        "prompt_sha256": f"sha of {user}",
        "degraded": [],
        "blocks": list(blocks),
        "messages": messages,
        "sources": [],
        "context": {"frame": {"name": "question"}, "layout": "prefix_stable", "identity_versions": []},
        "outcome": {},
        **other,
    }


def test_a_turn_compared_with_itself_differs_in_nothing() -> None:
    one = turn("t1", block("identity", "Be kind."), block("query", "Hello"))
    found = compare_manifests(one, one)
    assert found["identical"] is True
    assert found["changed"] == {}
    assert [part["change"] for part in found["blocks"]] == ["same", "same"]
    assert found["diff"] == ""


def test_blocks_that_came_went_and_changed_are_told_apart() -> None:
    before = turn("t1", block("identity", "a"), block("tail", "b"), block("query", "c"), block("hint", "", used=False))
    after = turn("t2", block("identity", "a"), block("retrieved", "d e"), block("query", "f"), user="Bye")
    found = compare_manifests(before, after)
    assert {part["name"]: part["change"] for part in found["blocks"]} == {
        "identity": "same",
        "tail": "removed",
        "query": "changed",
        "retrieved": "added",
    }
    assert next(part["tokens"] for part in found["blocks"] if part["name"] == "retrieved") == [0, 2]


def test_what_was_decided_otherwise_and_the_lines_that_differ_are_named() -> None:
    before = turn("t1", user="Hello\nthere")
    after = turn("t2", user="Hello\nyou", strategy="qmd", reason="workspace_retrieval_cue")
    found = compare_manifests(before, after)
    assert found["identical"] is False
    assert found["changed"] == {
        "strategy": ["none", "qmd"],
        "reason": ["no_retrieval_cue", "workspace_retrieval_cue"],
    }
    assert "-there" in found["diff"]
    assert "+you" in found["diff"]
    assert "Be kind." not in found["diff"]
