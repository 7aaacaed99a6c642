"""The two events of a turn, and the outcome in its manifest. None has a text of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from connectors.message import OutboundMessage
from grounding.prompt_input import RunContext
from runtime.llm import Completion
from runtime.turns import replies
from runtime.turns.censors import shown_records, used_records
from runtime.turns.rounds import Round, merge_completions, round_rows
from runtime.turns.turn_state import BuiltPrompt

_log = structlog.get_logger()


def outcome(
    reply: OutboundMessage, last: Completion | None, built: BuiltPrompt, rounds: Sequence[Round] = ()
) -> dict[str, Any]:
    """Return the outcome of a turn for its manifest. *last* is the answer that ended its *rounds*."""
    usage = reply.usage
    given = replies.available_passages(built, rounds)
    completion = merge_completions(rounds, last) if last else None
    return {
        "kind": reply.kind,
        "error_code": reply.error_code,
        "model": completion.model if completion else "",
        "attempts": completion.attempts if completion else 0,
        "first_token_ms": completion.first_token_ms if completion else None,
        "latency_ms": completion.latency_ms if completion else None,
        "usage": {
            "prompt": usage.prompt,
            "cached": usage.cached,
            "completion": usage.completion,
            "cost_usd": usage.cost_usd,
            **({"estimated": True} if usage.estimated else {}),
        },
        "rounds": round_rows(rounds),
        "sources": [{"source": source.source, "heading": source.heading} for source in reply.sources],
        "given": [{"source": passage.source, "heading": passage.heading} for passage in given],
        "citations": _citations(completion, built, rounds) if completion else None,
        "degraded": [{"block": part.block, "why": part.why} for part in reply.degraded],
    }


def _citations(completion: Completion, built: BuiltPrompt, rounds: Sequence[Round]) -> dict[str, int]:
    """Count the passages that were cited, and the labels that name no passage which the model was given."""
    checked = replies.checked_answer(completion, built, rounds)
    return {"cited": len(checked.cited), "invented": checked.invented}


def log_grounding(built: BuiltPrompt) -> None:
    """Log ``grounding.assembled``, once a turn."""
    context, prompt = built.context, built.prompt
    tokens = {block.name: block.tokens for block in prompt.blocks}
    used = {block.name for block in prompt.blocks if block.text}
    documents = len(context.passages) - (context.codex.retrieved if context.codex else 0)
    further = {
        f"tokens_{name}": count
        for name, count in tokens.items()
        if name not in ("query", "summary", "tail", "retrieved")
    }
    _log.info(
        "grounding.assembled",
        strategy=context.strategy,
        reason=context.reason,
        used_summary="summary" in used,
        used_tail="tail" in used,
        used_qmd=documents > 0 and "retrieved" in used,
        qmd_results=documents,
        summary_turns=context.summary.turns if context.summary else 0,
        tokens_user=tokens.get("query", 0),
        tokens_summary=tokens.get("summary", 0),
        tokens_tail=tokens.get("tail", 0),
        tokens_qmd=tokens.get("retrieved", 0),
        tokens_total=prompt.tokens_total,
        tokens_tools=context.budgets.tools_tokens,
        **further,
        layout=prompt.layout,
        prefix_digest=prompt.prefix_digest,
        prefix_broken_by=built.prefix.broken_by,
        prefix_tokens_kept=built.prefix.tokens_kept,
        budget_tokens=context.budgets.prompt_tokens,
        degraded=[{"block": part.block, "why": part.why} for part in context.degraded],
        summary_refreshed=built.renewed,
        frame=context.frame.name if context.frame else "",
        **_selection(built),
        **_material(context),
        duration_ms=round(built.grounding_ms, 2),
    )


def _selection(built: BuiltPrompt) -> dict[str, Any]:
    """Return the fields about records, if any were searched: why, how many were found and shown, their budget and its
    use, and their mean similarity."""
    chosen = built.context.selection
    if chosen is None or chosen.why == "nothing_kept":
        return {}
    records = shown_records(built)
    similar = [one.similarity for one in records if one.similarity]  # 0 if it was not searched for
    return {
        "records_why": chosen.why,
        "records_found": chosen.found,
        "records_shown": len(records),
        "records_similarity": round(sum(similar) / len(similar), 4) if similar else None,
        "budget_records": chosen.budget,
        "used_records_budget": sum(one.tokens for one in records),
    }


def _material(context: RunContext) -> dict[str, Any]:
    """Return the fields about codex material, if there is any: whole or searched, why, its size and the limit."""
    material = context.codex
    if material is None:
        return {}
    return {
        "codex_mode": material.mode,
        "codex_why": material.why,
        "codex_files": material.count,
        "codex_size": material.tokens,
        "codex_limit": material.limit,
        "codex_retrieved": material.retrieved,
    }


def _use(built: BuiltPrompt, text: str) -> dict[str, int]:
    """Count the records that the prompt showed and the reply used; no fields if none was shown."""
    records = shown_records(built)
    return {"records_shown": len(records), "records_used": len(used_records(built, text))} if records else {}


def log_answer(
    last: Completion,
    built: BuiltPrompt,
    elapsed_ms: float,
    rounds: Sequence[Round] = (),
) -> None:
    """Log ``turn.answered``. ``overhead_ms`` is the turn's time without the model and its tools."""
    completion = merge_completions(rounds, last)
    cites = _citations(completion, built, rounds)
    _log.info(
        "turn.answered",
        model=completion.model,
        tokens_prompt=completion.usage.prompt,
        tokens_cached=completion.usage.cached,
        tokens_completion=completion.usage.completion,
        cost_usd=completion.usage.cost_usd,
        **({"tokens_estimated": True} if completion.usage.estimated else {}),
        latency_ms=round(elapsed_ms, 1),
        overhead_ms=round(elapsed_ms - completion.latency_ms, 1),
        first_token_ms=completion.first_token_ms,
        attempts=completion.attempts,
        rounds=len(rounds) + 1,
        tools=sum(len(one.results) for one in rounds),
        strategy=built.context.strategy,
        prefix_broken_by=built.prefix.broken_by,
        citations=cites["cited"],
        citations_invented=cites["invented"],
        **_use(built, completion.text),
    )
