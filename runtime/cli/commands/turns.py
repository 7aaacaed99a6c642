"""``agent-runtime ground``, ``explain``, ``replay`` and ``diff``: what goes into turns, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, api_path, run_with_client
from runtime.cli.invocation import Invocation, data_command, only_workspace_option, workspace_option
from runtime.cli.output import count, dollars, emit, line, milliseconds, show_diff, table
from runtime.cli.progress import index_if_pending, status_line
from runtime.turns import REASONS, SAME, STRATEGIES, compare_manifests

LAST = "last"
Row = Mapping[str, Any]


class NoSuchTurn(AgentRuntimeError):
    """No workspace that was searched has the turn."""


@click.command()
@click.argument("text")
@workspace_option
@click.option(
    "--connector", default=None, help="With --external-id: build the prompt as if TEXT was said in that place."
)
@click.option("--external-id", default=None, help="The platform's id of the place.")
@data_command
def ground(invocation: Invocation, text: str, workspace: str, connector: str | None, external_id: str | None) -> None:
    """Show the prompt for TEXT: strategy, blocks, budgets and the exact messages.

    No model is called, and nothing is stored.
    """
    if (connector is None) != (external_id is None):
        raise click.UsageError("give both --connector and --external-id, or neither")
    body = {"text": text}
    if connector is not None and external_id is not None:
        body |= {"connector": connector, "external_id": external_id}
    with status_line("opening the stores …") as status:

        async def ground(client: Client) -> dict[str, Any]:
            await index_if_pending(client, workspace, status)
            return await client.call("POST", api_path("workspaces", workspace, "ground"), body)

        answer = run_with_client(invocation, ground)
    emit(invocation, answer, _show_prompt)


def _show_prompt(prompt: dict[str, Any]) -> None:
    _show_strategy(prompt["strategy"], prompt["reason"], prompt["translation"])
    _show_degraded(prompt["degraded"])
    _show_blocks(prompt["blocks"], prompt["tokens_total"])
    _show_prefix(prompt["prefix"])
    line(f"prefix digest  {prompt['prefix_digest']}", dim=True)
    _show_messages(prompt["messages"])


@click.command()
@click.argument("turn", default=LAST)
@only_workspace_option
@click.option("--prompt", is_flag=True, help="Also print the exact messages.")
@data_command
def explain(invocation: Invocation, turn: str, workspace: str | None, prompt: bool) -> None:
    """Show what went into TURN (a turn id; default: `last`), and why."""
    name, _, manifest = _get_turn(invocation, turn, workspace, prompt=prompt)
    emit(invocation, manifest, lambda manifest: _show_turn(name, manifest))


def _get_turn(
    invocation: Invocation, turn: str, workspace: str | None, *more: str, **parameters: Any
) -> tuple[str, str, dict[str, Any]]:
    """Return the workspace and id of *turn*, and what the API has at its path and *more*."""

    async def get(client: Client) -> tuple[str, str, dict[str, Any]]:
        name, turn_id = await find_turn(client, turn, workspace)
        return name, turn_id, await client.get(turn_path(name, turn_id, *more), **parameters)

    with status_line("opening the stores …"):
        return run_with_client(invocation, get)


def _show_turn(workspace: str, manifest: dict[str, Any]) -> None:
    context, outcome, marks = manifest["context"], manifest["outcome"], manifest["marks"]
    line(f"turn      {manifest['turn_id']}", bold=True)
    line(f"when      {manifest['at']}")
    line(f"where     {workspace}, {manifest['context_id']}")
    _show_strategy(manifest["strategy"], manifest["reason"], context["translation"])
    if frame := context.get("frame"):
        cue = f", by {frame['cue']!r}" if frame["cue"] else ""
        line(f"frame     {frame['name']} ({frame['reason'].replace('_', ' ')}{cue})")
    if sigil := context.get("sigil"):
        line(f"sigil     {sigil['name']} ({', '.join(sigil['scopes']) or 'nothing'})")
    if any(marks.values()):
        line(f"marked    good by {marks['good']}, bad by {marks['bad']}")
    _show_degraded(manifest["degraded"])
    _show_blocks(manifest["blocks"], manifest["tokens_total"])
    _show_prefix(manifest["prefix"])
    _show_sources(outcome, context["passages"])
    _show_rounds(outcome.get("rounds", ()))
    _show_outcome(outcome)
    _show_messages(manifest.get("messages", ()))


@click.command()
@click.argument("turn", default=LAST)
@only_workspace_option
@data_command
def replay(invocation: Invocation, turn: str, workspace: str | None) -> int:
    """Rebuild the prompt of TURN (a turn id; default: `last`) and check that it is identical, byte for byte.

    Calls of tools are listed, without what the tools answered. The exit code is 1 if the prompt is not identical.
    """
    _, turn_id, replayed = _get_turn(invocation, turn, workspace, "replay")
    emit(invocation, replayed, lambda replayed: _show_replay(turn_id, replayed))
    return 0 if replayed["identical"] else 1


def _show_replay(turn_id: str, replayed: dict[str, Any]) -> None:
    _show_messages(replayed["messages"])
    _show_rounds(replayed["rounds"])
    line()
    if replayed["identical"]:
        line(f"{turn_id}: identical, sha256 {replayed['sha256']}", fg="green")
        return
    if cut := replayed["cut"]:
        line(f"{count(cut, 'record')} of this prompt {'was' if cut == 1 else 'were'} forgotten since.")
    line(f"{turn_id}: NOT identical: sent {replayed['stored_sha256']}, rebuilt {replayed['sha256']}", fg="red")


@click.command()
@click.argument("turn_a")
@click.argument("turn_b")
@only_workspace_option
@data_command
def diff(invocation: Invocation, turn_a: str, turn_b: str, workspace: str | None) -> None:
    """Compare what went into TURN_A and TURN_B (turn ids, or `last`): strategy, blocks, sources and messages."""

    async def get(client: Client) -> list[dict[str, Any]]:
        paths = [turn_path(*await find_turn(client, turn, workspace)) for turn in (turn_a, turn_b)]
        return [await client.get(path, prompt=True) for path in paths]

    with status_line("opening the stores …"):
        a, b = run_with_client(invocation, get)
    emit(invocation, compare_manifests(a, b), _show_comparison)


def _show_comparison(comparison: dict[str, Any]) -> None:
    line(f"{comparison['a']} → {comparison['b']}", bold=True)
    for name, (before, after) in comparison["changed"].items():
        line(f"{name:<13} {_as_text(before)} → {_as_text(after)}")
    line()
    rows = [[block["name"], block["change"], *block["tokens"]] for block in comparison["blocks"]]
    table(["block", "change", "tokens before", "after"], rows, right=["tokens before", "after"])
    line()
    if comparison["identical"]:
        line("The prompts are identical, byte for byte.", fg="green")
        return
    same = sum(block["change"] == SAME for block in comparison["blocks"])
    line(f"The prompts differ. Same: {same} of {count(len(comparison['blocks']), 'block')}.")
    line()
    show_diff(comparison["diff"])


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return str(value) or "–"


# ---- Find a turn ----


async def find_turn(client: Client, turn: str, workspace: str | None) -> tuple[str, str]:
    """Return the workspace and id of *turn*, from all workspaces unless one is named.

    Raises `NoSuchTurn` and `ApiError`.
    """
    workspaces = [workspace] if workspace else await client.workspaces()
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


def turn_path(workspace: str, turn: str, *more: str) -> str:
    """Return the path of a turn, and of *more* below it."""
    return api_path("workspaces", workspace, "turns", turn, *more)


# ---- Parts of a turn, for people ----


def _show_strategy(strategy: str, reason: str, translation: str) -> None:
    meaning = REASONS.get(reason, "")
    line(f"strategy  {strategy}: {STRATEGIES.get(strategy, '')}", bold=True)
    line(f"reason    {reason}" + (f": {meaning}" if meaning else ""))
    if translation:
        line(f"searched  {translation}")


def _show_blocks(blocks: Sequence[Row], tokens_total: int) -> None:
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


def _show_degraded(degraded: Sequence[Row]) -> None:
    for part in degraded:
        line(f"without   {part['block']}: {part['why']}", fg="yellow")


def _show_sources(outcome: Row, passages: Sequence[Row]) -> None:
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


def _show_prefix(prefix: Row) -> None:
    """Print how much of the prompt is as in the last one, so that the provider may have cached it."""
    if prefix.get("broken_by"):
        line(f"prefix    {count(prefix['tokens_kept'], 'token')} as in the last prompt, up to {prefix['broken_by']}")


def _show_outcome(outcome: Row) -> None:
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


def _show_rounds(rounds: Sequence[Row]) -> None:
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


def _show_messages(messages: Sequence[Row]) -> None:
    """Print the exact messages that the model gets."""
    for message in messages:
        line()
        line(f"── {message['role']} " + "─" * 40, dim=True)
        line(str(message["content"]))
