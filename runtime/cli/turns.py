"""Finding a turn by what a person types: its id, ``last``, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, segment
from runtime.cli.output import count, dollars, line, milliseconds, table
from runtime.turns.manifest import REASONS, STRATEGIES

LAST = "last"


class NoSuchTurn(AgentRuntimeError):
    """No workspace that was looked in knows the turn."""


async def find_turn(client: Client, turn: str, workspace: str | None) -> tuple[str, str]:
    """The workspace and id of *turn*, looked for in all workspaces unless one is named.

    Raises `NoSuchTurn` and `ApiError`.
    """
    workspaces = (
        [workspace] if workspace else [each["id"] for each in (await client.get("/v1/workspaces"))["workspaces"]]
    )
    if turn == LAST:
        return await _newest(client, workspaces)
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


async def _newest(client: Client, workspaces: list[str]) -> tuple[str, str]:
    found: list[tuple[str, str, str]] = []
    for name in workspaces:
        rows: list[dict[str, Any]] = (await client.get(f"/v1/workspaces/{segment(name)}/turns", limit=1))["turns"]
        found += [(row["at"], name, row["turn_id"]) for row in rows]
    if not found:
        raise NoSuchTurn("there are no turns yet; ask something with `agent-runtime chat` first")
    _, name, turn_id = max(found)
    return name, turn_id


def turn_path(workspace: str, turn: str) -> str:
    """The path of a turn's manifest."""
    return f"/v1/workspaces/{segment(workspace)}/turns/{segment(turn)}"


# ---- explaining ----
#
# A turn explained to a person: why this strategy, which blocks, from where, at what cost.


Row = Mapping[str, Any]


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
    of_system = sum(block["tokens"] for block in blocks if block["used"]) - tokens_total
    line(f"user message    {count(tokens_total, 'token')} (tokens_total)")
    line(f"system message  {count(of_system, 'token')}")


def show_degraded(degraded: Sequence[Row]) -> None:
    for part in degraded:
        line(f"without   {part['block']}: {part['why']}", fg="yellow")


def show_sources(outcome: Row, passages: Sequence[Row]) -> None:
    """The passages that were found, with their scores, which of them stood in the prompt, and which the reply cites."""
    sources = outcome.get("sources") or ()
    citations = outcome.get("citations") or {}
    shown = {(one["source"], one["heading"]) for one in outcome.get("given") or sources}
    cited = {(one["source"], one["heading"]) for one in sources} if citations.get("cited") else set()
    rows = [
        [
            passage["source"],
            passage["heading"],
            f"{passage['score']:.4f}" if passage.get("score") is not None else "",
            "yes" if (passage["source"], passage["heading"]) in shown else "no room",
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
    """What of the prompt the model may have read already."""
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
        first, whole = outcome.get("first_token_ms"), outcome.get("latency_ms")
        line(f"time      {milliseconds(whole)}" + (f", first words after {milliseconds(first)}" if first else ""))


def show_rounds(rounds: Sequence[Row]) -> None:
    """What tools the model called before it answered; of their arguments the digest."""
    rows = [
        [
            one["round"],
            tool["tool"],
            "yes" if tool["ok"] else tool["why"],
            tool["tokens"],
            milliseconds(tool["duration_ms"]),
            tool["arguments_sha256"][:12],
        ]
        for one in rounds
        for tool in one["tools"]
    ]
    if rows:
        line()
        table(["round", "tool", "ok", "tokens", "time", "arguments"], rows, right=["round", "tokens", "time"])


def show_messages(messages: Sequence[Row]) -> None:
    """The exact messages that the model gets."""
    for message in messages:
        line()
        line(f"── {message['role']} " + "─" * 40, dim=True)
        line(str(message["content"]))
