"""Find a turn by what a person types (its id, or ``last``), and print parts of its manifest for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, api_path
from runtime.cli.output import count, dollars, line, milliseconds, table
from runtime.turns import REASONS, STRATEGIES

LAST = "last"
Row = Mapping[str, Any]


class NoSuchTurn(AgentRuntimeError):
    """No workspace that was searched has the turn."""


async def find_turn(client: Client, turn: str, workspace: str | None) -> tuple[str, str]:
    """Return the workspace and id of *turn*, from all workspaces unless one is named.

    Raises `NoSuchTurn` and `ApiError`.
    """
    if workspace:
        workspaces = [workspace]
    else:
        workspaces = [row["id"] for row in (await client.get(api_path("workspaces")))["workspaces"]]
    if turn == LAST:
        return await _find_newest(client, workspaces)
    for name in workspaces:
        try:
            await client.get(turn_path(name, turn))
        except ApiError as error:
            if error.status != 404 or (workspace and error.code == "unknown_workspace"):
                raise
        else:
            return name, turn
    where = f"workspace {workspace}" if workspace else "any workspace"
    raise NoSuchTurn(f"no turn {turn!r} is known in {where}; `agent-runtime explain last` shows the newest")


async def _find_newest(client: Client, workspaces: list[str]) -> tuple[str, str]:
    turns: list[tuple[str, str, str]] = []
    for name in workspaces:
        rows = (await client.get(api_path("workspaces", name, "turns"), limit=1))["turns"]
        turns += [(row["at"], name, row["turn_id"]) for row in rows]
    if not turns:
        raise NoSuchTurn("there are no turns yet; ask something with `agent-runtime chat` first")
    _, name, turn_id = max(turns)
    return name, turn_id


def turn_path(workspace: str, turn: str) -> str:
    """Return the path of a turn's manifest."""
    return api_path("workspaces", workspace, "turns", turn)


def show_strategy(strategy: str, reason: str) -> None:
    meaning = REASONS.get(reason, "")
    line(f"strategy  {strategy}: {STRATEGIES.get(strategy, '')}", bold=True)
    line(f"reason    {reason}" + (f": {meaning}" if meaning else ""))


def show_blocks(blocks: Sequence[Row], tokens_total: int) -> None:
    line()
    table(
        ["block", "tokens", "budget", "used", "why"],
        [
            [
                block["name"],
                block["tokens"],
                block["budget"] if block["used"] and block["budget"] is not None else "–",
                "yes" if block["used"] else "no",
                block["why"] or "",
            ]
            for block in blocks
        ],
        right=["tokens", "budget"],
    )
    system_tokens = sum(block["tokens"] for block in blocks if block["used"]) - tokens_total
    line(f"user message    {count(tokens_total, 'token')} (tokens_total)")
    line(f"system message  {count(system_tokens, 'token')}")


def show_degraded(degraded: Sequence[Row]) -> None:
    for part in degraded:
        line(f"without   {part['block']}: {part['why']}", fg="yellow")


def show_sources(outcome: Row, passages: Sequence[Row]) -> None:
    """Print the passages that were found: the score of each, whether the prompt had it, whether the reply cites it."""
    sources = outcome.get("sources") or ()
    citations = outcome.get("citations") or {}
    in_prompt = {(source["source"], source["heading"]) for source in outcome.get("given") or sources}
    cited = {(source["source"], source["heading"]) for source in sources} if citations.get("cited") else set()
    rows = [
        [
            passage["source"],
            passage["heading"],
            f"{passage['score']:.4f}" if passage.get("score") is not None else "",
            "yes" if (passage["source"], passage["heading"]) in in_prompt else "no room",
            "yes" if (passage["source"], passage["heading"]) in cited else "no",
        ]
        for passage in passages
    ] or [[source["source"], source["heading"], "", "yes", "yes" if cited else "no"] for source in sources]
    if rows:
        line()
        table(["source", "heading", "score", "in the prompt", "cited"], rows, right=["score"])
    if invented := citations.get("invented"):
        line(f"unmatched {count(invented, 'citation')} match{'es' if invented == 1 else ''} no source", fg="yellow")


def show_prefix(prefix: Row) -> None:
    """Print how much of the prompt is as in the last one, so that the provider may have cached it."""
    if prefix.get("broken_by"):
        line(f"prefix    {count(prefix['tokens_kept'], 'token')} as in the last prompt, up to {prefix['broken_by']}")


def show_outcome(outcome: Row) -> None:
    usage = outcome.get("usage") or {}
    line()
    if outcome.get("error_code"):
        line(f"failed    {outcome['error_code']}", fg="red")
    if outcome.get("model"):
        attempts = outcome.get("attempts") or 1
        line(f"model     {outcome['model']}" + (f" (attempt {attempts})" if attempts > 1 else ""))
        line(
            f"tokens    {usage.get('prompt', 0)} prompt ({usage.get('cached', 0)} cached), "
            f"{usage.get('completion', 0)} reply"
        )
        line(f"cost      {dollars(float(usage.get('cost_usd') or 0))}")
        first, total = outcome.get("first_token_ms"), outcome.get("latency_ms")
        line(f"time      {milliseconds(total)}" + (f", first words after {milliseconds(first)}" if first else ""))


def show_rounds(rounds: Sequence[Row]) -> None:
    """Print the tools that the model called before it answered. Of their arguments only the digest is known."""
    rows = [
        [
            each["round"],
            tool["tool"],
            "yes" if tool["ok"] else tool["why"],
            tool["tokens"],
            milliseconds(tool["duration_ms"]),
            tool["arguments_sha256"][:12],
        ]
        for each in rounds
        for tool in each["tools"]
    ]
    if rows:
        line()
        table(["round", "tool", "ok", "tokens", "time", "arguments"], rows, right=["round", "tokens", "time"])


def show_messages(messages: Sequence[Row]) -> None:
    """Print the exact messages that the model gets."""
    for message in messages:
        line()
        line(f"── {message['role']} " + "─" * 40, dim=True)
        line(str(message["content"]))
