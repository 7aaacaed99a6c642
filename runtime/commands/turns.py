"""``explain``, ``usage``: what went into a reply, and its cost. ``good``, ``bad``, ``unmark``: marks on replies."""

from __future__ import annotations

from functools import partial
from typing import Any

from connectors.message import Role, Scope
from grounding.memory.karma import Marked, Sign
from grounding.transcript import Transcript
from runtime.background import Marker, Marking
from runtime.billing import Budgets, BudgetState, BudgetTerm, ModelUsage, UsageCounters, Whose
from runtime.commands.registry import (
    Command,
    CommandRefused,
    Invocation,
    bullet_list,
    code,
    escape_markdown,
    format_count,
    format_number,
    may_see_turn,
)
from runtime.turns import REASONS, STRATEGIES, Manifest, Manifests, UnknownTurn

NOTHING_SAID = "I have not answered anything here yet."
UNKNOWN = "I do not know this turn. The turn id is wrong, or the turn is too old."
NOT_ALLOWED = "You may not mark answers here."
NOT_MINE = "The message that you replied to is not an answer of mine, or it is too old."
GOOD = "Marked as good: I use this answer as an example."
BAD = "Marked as bad: I do not use this answer as an example."
TAKEN_BACK = "Your mark is removed."
NOTHING_TO_TAKE_BACK = "You have not marked that answer."
_WHICH_ANSWER = (
    "Reply to one of my answers with the command, or I take my last answer here. You can also give a turn id."
)


class TurnFacts:
    """Facts about answered turns. No text of a prompt is shown."""

    def __init__(
        self, transcript: Transcript, manifests: Manifests, usage: UsageCounters, budgets: Budgets, marking: Marking
    ) -> None:
        self._transcript = transcript
        self._marking = marking
        self._manifests = manifests
        self._usage = usage
        self._budgets = budgets

    def commands(self) -> list[Command]:
        return [
            Command(
                "explain",
                "show why I answered as I did",
                self.explain,
                "[turn]",
                details="Shows what I looked at and why, the sources, and the parts of the prompt. "
                "For an earlier answer give its turn id.",
            ),
            Command("usage", "show what my last answer cost, and what is left of budgets", self.usage),
        ]

    async def explain(self, invocation: Invocation) -> str:
        manifest = await self._manifest(invocation, invocation.rest.strip("`"))
        if manifest is None:
            return NOTHING_SAID
        marked = await self._marking.of_turn(Scope(invocation.key.workspace_id), manifest.turn_id)
        return explanation(manifest, marked)

    async def usage(self, invocation: Invocation) -> str:
        manifest = await self._manifest(invocation, "")
        lines = [_cost(manifest.outcome)] if manifest else [NOTHING_SAID]
        if invocation.role is Role.ADMIN:
            lines.append(totals(await self._usage.totals(Scope(invocation.key.workspace_id))))
        state = await self._budgets.state(Scope(invocation.key.workspace_id), invocation.user)
        if invocation.role is Role.ADMIN:
            lines.append(left(state, "workspace"))
        lines.append(left(state, "user"))
        return "\n\n".join(filter(None, lines))

    async def _manifest(self, invocation: Invocation, turn_id: str) -> Manifest | None:
        """Return the manifest of *turn_id*, or of the conversation's last turn; None if it has none. Raises
        `CommandRefused`."""
        if turn_id in ("", "last"):
            turn_id = await self._transcript.last_turn(invocation.key) or ""
        return await _manifest(self._manifests, invocation, turn_id) if turn_id else None


class Marks:
    """Marks on replies. A reaction to a reply does the same."""

    def __init__(self, transcript: Transcript, manifests: Manifests, marking: Marking) -> None:
        self._transcript = transcript
        self._manifests = manifests
        self._marking = marking

    def commands(self) -> list[Command]:
        return [
            Command(
                "good",
                "mark my last answer as good",
                partial(self._mark, sign="good"),
                "[turn]",
                role=Role.MEMBER,
                details=f"I use it as an example for similar questions. {_WHICH_ANSWER} `/unmark` removes your mark.",
            ),
            Command(
                "bad",
                "mark my last answer as bad",
                partial(self._mark, sign="bad"),
                "[turn]",
                role=Role.MEMBER,
                details=f"I do not use it as an example, also if others marked it as good. {_WHICH_ANSWER} "
                "`/unmark` removes your mark.",
            ),
            Command(
                "unmark",
                "remove your mark from my last answer",
                partial(self._mark, sign=None),
                "[turn]",
                role=Role.MEMBER,
                details=_WHICH_ANSWER,
            ),
        ]

    async def _mark(self, invocation: Invocation, sign: Sign | None) -> str:
        by = Marker(invocation.user, invocation.role, "command", is_vouched_for=invocation.message.is_vouched_for)
        if not self._marking.may(by, invocation.key):
            raise CommandRefused(NOT_ALLOWED)
        turn_id = await self._turn_id(invocation)
        if sign is None and await self._has_no_mark(invocation, turn_id):
            return f"{NOTHING_TO_TAKE_BACK}\n\nTurn {code(turn_id)}"
        try:
            marked = await self._marking.mark_by_command(invocation.key, turn_id, by, sign, invocation.idempotency_key)
        except UnknownTurn:
            raise CommandRefused(UNKNOWN) from None
        return f"{_mark_text(marked, invocation.user)}\n\nTurn {code(turn_id)}"

    async def _has_no_mark(self, invocation: Invocation, turn_id: str) -> bool:
        """Return whether the person has no mark there, and this command, if delivered again, has removed none."""
        marked = await self._marking.of_turn(Scope(invocation.key.workspace_id), turn_id)
        opinion = marked.opinion_of(invocation.user) if marked else None
        return opinion is None or (opinion.mark is None and opinion.command != invocation.idempotency_key)

    async def _turn_id(self, invocation: Invocation) -> str:
        """Return the turn to mark: the given one, that of the quoted message, or the last. Raises `CommandRefused`."""
        key, named, quote = invocation.key, invocation.rest.strip("`"), invocation.message.quote
        if named:
            return (await _manifest(self._manifests, invocation, named)).turn_id
        if quote is not None and quote.message_id:
            if turn_id := await self._marking.turn_of(key, quote.message_id):
                return turn_id
            raise CommandRefused(NOT_MINE)
        if turn_id := await self._transcript.last_turn(key):
            return turn_id
        raise CommandRefused(NOTHING_SAID)


def _mark_text(marked: Marked, user: str) -> str:
    mark = marked.opinion_of(user).mark
    return {"good": GOOD, "bad": BAD}[mark] if mark else TAKEN_BACK


async def _manifest(manifests: Manifests, invocation: Invocation, turn_id: str) -> Manifest:
    """Return the manifest of *turn_id*. Raises `CommandRefused` if it is unknown or the person may not see it."""
    try:
        manifest = await manifests.get(Scope(invocation.key.workspace_id), turn_id)
    except UnknownTurn:
        raise CommandRefused(UNKNOWN) from None
    if not may_see_turn(invocation, manifest.context):
        raise CommandRefused(UNKNOWN)
    return manifest


def explanation(manifest: Manifest, marked: Marked | None = None) -> str:
    """Return a turn in words, with its marks."""
    context, outcome = manifest.context, manifest.outcome
    lines = [
        f"I looked at: {STRATEGIES.get(context.strategy, escape_markdown(context.strategy))}.",
        f"Because: {REASONS.get(context.reason, escape_markdown(context.reason))}.",
    ]
    if context.translation:
        lines.append(f"I searched the documents for: {escape_markdown(context.translation)}")
    if sources := [_source(source) for source in outcome.get("sources", ())]:
        lines.append(f"Sources: {', '.join(sources)}.")
    elif context.wants_documents and all(part.block != "retrieved" for part in context.degraded):
        lines.append("Sources: no passage of the documents was relevant.")
    if invented := (outcome.get("citations") or {}).get("invented"):
        lines.append(
            "1 citation matches no source; it is marked in the reply."
            if invented == 1
            else f"{format_number(invented)} citations match no source; they are marked in the reply."
        )
    used = [f"{block['name']} {format_number(block['tokens'])}" for block in manifest.blocks if block["used"]]
    whole = sum(block["tokens"] for block in manifest.blocks if block["used"])
    lines.append(f"The prompt in tokens: {', '.join(used)}; {format_number(whole)} in all.")
    if tools := [_tool(call) for round_ in outcome.get("rounds", ()) for call in round_["tools"]]:
        lines.append(f"I called tools: {', '.join(tools)}.")
    degraded = outcome.get("degraded") or [{"block": part.block, "why": part.why} for part in context.degraded]
    if degraded:
        lines.append(
            "I had to do without: "
            + ", ".join(f"{part['block']} ({escape_markdown(part['why'])})" for part in degraded)
            + "."
        )
    if outcome.get("error_code"):
        lines.append(f"It failed: {code(outcome['error_code'])}.")
    if outcome.get("model"):
        lines.append(f"The model: {code(outcome['model'])}.")
    if context.karma or context.karma_floor:
        count = len(context.karma_floor) + len(context.karma)
        lines.append(f"Earlier answers marked as good that I looked at: {count}.")
    if marked is not None and marked.is_marked:
        lines.append(f"Marked as good by {marked.good}, as bad by {marked.bad}.")
    return f"{bullet_list(lines)}\n\nTurn {code(manifest.turn_id)}"


def totals(models: list[ModelUsage]) -> str:
    """Return a workspace's usage, one line for each model."""
    if not models:
        return "This workspace has not used anything yet."
    lines = [
        f"{code(model.model)}: {format_count(model.replies, 'reply', 'replies')}, {format_count(model.calls, 'call')}, "
        f"{format_number(model.prompt)} prompt tokens ({format_number(model.cached)} cached), "
        f"{format_number(model.completion)} completion tokens, {_dollars(model.cost_usd)}"
        for model in models
    ]
    return f"This workspace so far:\n\n{bullet_list(lines)}"


def left(state: BudgetState, whose: Whose) -> str:
    """Return the rest of the workspace's or the person's budget; "" if there is none."""
    lines = [
        f"{_amount(term, state.left(term))} of {_amount(term, state.limits[term])} "
        + ("today" if term.period == "day" else "this month")
        for term in reversed(state.bounded(whose))
    ]
    head = "Left of this workspace's budget:" if whose == "workspace" else "Left of your budget here:"
    return f"{head}\n\n{bullet_list(lines)}" if lines else ""


def _amount(term: BudgetTerm, units: int | None) -> str:
    amount = term.amount(units or 0)
    return _dollars(amount) if term.what == "usd" else f"{format_number(int(amount))} tokens"


def _cost(outcome: dict[str, Any]) -> str:
    usage = outcome.get("usage") or {}
    asked = f" by {code(outcome['model'])}" if outcome.get("model") else ""
    prompt, cached, completion = (format_number(usage.get(name, 0)) for name in ("prompt", "cached", "completion"))
    return (
        f"The last reply here{asked}: {prompt} prompt tokens ({cached} cached), {completion} completion tokens, "
        f"{_dollars(float(usage.get('cost_usd') or 0))}."
    )


def _source(source: dict[str, str]) -> str:
    return code(f"{source['source']} › {source['heading']}" if source["heading"] else source["source"])


def _tool(call: dict[str, Any]) -> str:
    return code(call["tool"]) + ("" if call["ok"] else f" ({escape_markdown(call['why'])})")


def _dollars(amount: float) -> str:
    """Return *amount* in dollars; less than a dollar gets six decimal places."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.6f}".rstrip("0")
