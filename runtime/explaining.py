"""Explains turns from their manifests: what strategy and reason mean, and how two turns differ. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

STRATEGIES = {
    "none": "no retrieval",
    "tail": "this conversation's earlier turns",
    "qmd": "the workspace's documents",
}
REASONS = {
    "empty": "the message has no text",
    "small_talk": "a greeting, thanks or the like: nothing needs to be looked up",
    "chat_memory_cue": "the message refers to what was said before",
    "workspace_retrieval_cue": "the message asks for the workspace's documents",
    "implicit_workspace_question": "a question that the workspace's documents may answer",
    "workspace_match": "the workspace's documents have passages that are relevant to the message",
    "workspace_vocabulary": "the message uses words of the workspace's documents",  # of turns before
    "no_retrieval_cue": "nothing in the message asks for documents or earlier turns",
    "skip_grounding": "grounding was switched off for this message",
}
"""What the reasons mean."""

Manifest = Mapping[str, Any]
"""A turn as ``GET …/turns/{id}?prompt=true`` tells it."""

SAME, CHANGED, ADDED, REMOVED = "same", "changed", "added", "removed"


def compare(a: Manifest, b: Manifest) -> dict[str, Any]:
    """How turn *b* differs from turn *a*.

    ``{"a", "b", "identical", "changed": {FIELD: [in a, in b]}, "blocks": [{"name", "change", "tokens": [in a, in b],
    "sha256": [in a, in b]}], "degraded": [of a, of b], "diff"}``. ``identical`` is about the bytes of the prompts;
    ``diff`` is the unified difference of their messages.
    """
    facts_a, facts_b = _facts(a), _facts(b)
    return {
        "a": a["turn_id"],
        "b": b["turn_id"],
        "identical": a["prompt_sha256"] == b["prompt_sha256"],
        "changed": {name: [facts_a[name], facts_b[name]] for name in facts_a if facts_a[name] != facts_b[name]},
        "blocks": _blocks(a["blocks"], b["blocks"]),
        "degraded": [a["degraded"], b["degraded"]],
        "diff": _diff(a, b),
    }


def _facts(turn: Manifest) -> dict[str, Any]:
    context: Mapping[str, Any] = turn.get("context") or {}
    outcome: Mapping[str, Any] = turn.get("outcome") or {}
    return {
        "strategy": turn["strategy"],
        "reason": turn["reason"],
        "frame": (context.get("frame") or {}).get("name", ""),
        "layout": context.get("layout", ""),
        "context_id": turn["context_id"],
        "directives": context.get("identity_versions", []),
        "model": turn["model"],
        "tokens_total": turn["tokens_total"],
        "sources": [f"{one['source']} › {one['heading']}" for one in turn.get("sources") or ()],
        "usage": outcome.get("usage") or {},
    }


def _blocks(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    before, after = ({one["name"]: one for one in blocks if one["used"]} for blocks in (a, b))
    names = [*before, *(name for name in after if name not in before)]
    return [
        {
            "name": name,
            "change": _change(before.get(name), after.get(name)),
            "tokens": [side.get(name, {}).get("tokens", 0) for side in (before, after)],
            "sha256": [side.get(name, {}).get("sha256", "") for side in (before, after)],
        }
        for name in names
    ]


def _change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if before is None:
        return ADDED
    if after is None:
        return REMOVED
    return SAME if before["sha256"] == after["sha256"] else CHANGED


def _diff(a: Manifest, b: Manifest) -> str:
    parts: list[str] = []
    for before, after in zip(a["messages"], b["messages"], strict=False):
        role = before["role"]
        parts += difflib.unified_diff(
            str(before["content"]).splitlines(),
            str(after["content"]).splitlines(),
            f"{role} {a['turn_id']}",
            f"{role} {b['turn_id']}",
            lineterm="",
        )
    return "\n".join(parts)
