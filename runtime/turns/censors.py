"""Finds the censors that act on a turn, and the records that its prompt showed and its reply used.

A censor that blocks stops the reply or the tool call, and its reason is shown; one that warns is put to the model. The
censors that a turn sets off depend only on its prompt and its texts, so a resumed turn finds the same. A censor is
counted when it acts, not when it is read.

Whether a reply used a record is judged by words: of the terms that the record has and the question has not, at least
`USED_SHARE`, and no fewer than `USED_TERMS` if there are as many, stand in the reply; or its id does. Terms are stemmed
words without function words. That counts what was repeated in other words too low, and a word that came from elsewhere
too high; no model is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from connectors.message import AgentRuntimeError
from grounding.memory.records import Records, Type
from grounding.memory.selection import triggered_censors
from grounding.pipeline import records_scope
from grounding.prompt import EXPAND, record_line
from grounding.prompt_input import Censor, RunContext, SelectedRecord, audience_of, one_line
from grounding.retrieval import term_set
from runtime.llm import Completion, ToolCall
from runtime.turns.batch import Batch
from runtime.turns.manifest import Manifests, RecordsOfTurn
from runtime.turns.rounds import Round, merge_completions
from runtime.turns.turn_state import BuiltPrompt

CENSORED = "censored"
"""The error code of a reply or a tool call that a censor stopped."""
OBJECTION = "Nobody has seen your answer yet. It may go against a rule that holds here:"
AGAIN = (
    "Write the whole answer again so that it does not, and say nothing of this note; if it does not apply, repeat it."
)
NOT_MADE = frozenset({"refused", "too_many", "arguments", "interrupted"})
"""The errors of tool calls that failed before censors were checked, or after they allowed the call but before it ran:
then no censor counts. See `runtime.turns.tools`."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CensorAction:
    """A censor that acted, on a reply or on a tool call."""

    censor: Censor
    where: Literal["reply", "tool"]


def needs_check(context: RunContext) -> bool:
    """Whether the whole reply must be checked before any of it is shown: a censor is in force."""
    return bool(context.censors)


def blocking_censor(censors: Sequence[Censor], text: str) -> Censor | None:
    """Return the first of *censors* that stops *text*; None if none does."""
    return next((censor for censor in triggered_censors(censors, text) if censor.severity == "block"), None)


def objection(censors: Sequence[Censor], text: str) -> str:
    """Return the note to the model with the warnings that its answer *text* sets off. It is empty if there are none, or
    if a censor stops the answer anyway."""
    triggered = triggered_censors(censors, text)
    if not triggered or any(censor.severity == "block" for censor in triggered):
        return ""
    rules = "\n".join(f"- {rule_and_reason(censor)}" for censor in triggered)
    return f"{OBJECTION}\n{rules}\n{AGAIN}"


def triggered_by_call(censors: Sequence[Censor], call: ToolCall) -> tuple[Censor, ...]:
    """Return the *censors* that a tool call sets off, by the tool's name or its arguments."""
    return triggered_censors(censors, f"{call.name} {_readable(call.arguments)}") if censors else ()


def rule_and_reason(censor: Censor) -> str:
    """Return the rule and its reason, in one line."""
    rule, reason = one_line(censor.text).rstrip("."), one_line(censor.reason).rstrip(".")
    return f"{rule} ({reason})" if reason else rule


def censor_actions(built: BuiltPrompt, rounds: Sequence[Round], last: Completion) -> tuple[CensorAction, ...]:
    """Return the censors that acted in a turn: first on tool calls, then on replies, each once for either."""
    censors = built.context.censors
    if not censors:
        return ()
    by_tool = [
        CensorAction(censor, "tool")
        for one in rounds
        for call, result in zip(one.completion.tool_calls, one.results, strict=False)
        if result.why not in NOT_MADE
        for censor in triggered_by_call(censors, call)
    ]
    # A draft includes the texts beside the tool calls before it: the model writes them again, too.
    drafts = [
        merge_completions(rounds[:at], one.completion).text for at, one in enumerate(rounds) if one.completion.warned
    ]
    texts = (*drafts, merge_completions(rounds, last).text)
    by_reply = [CensorAction(censor, "reply") for text in texts for censor in triggered_censors(censors, text)]
    return tuple(dict.fromkeys([*by_tool, *by_reply]))


class RecordAccounting:
    """Stores which records a turn used, and counts the censors that acted and the procedures that were followed."""

    def __init__(self, records: Records, manifests: Manifests) -> None:
        self._records = records
        self._manifests = manifests

    async def account(self, batch: Batch, built: BuiltPrompt, rounds: Sequence[Round], last: Completion) -> None:
        """Log, store and count. Never raises: if the store is away, the counts are lost, and that is logged."""
        actions = censor_actions(built, rounds, last)
        for action in actions:
            _log.info("censor.acted", record_id=action.censor.id, severity=action.censor.severity, where=action.where)
        used = used_records(built, merge_completions(rounds, last).text)
        censors = {action.censor.id for action in actions}
        if not used and not censors:
            return
        counted = sorted(censors | {record.id for record in used if record.type == Type.PROCEDURE.value})
        scope = records_scope(batch.key, audience_of(built.context))
        # Later marks of the reply count for these records.
        records = RecordsOfTurn(tuple(sorted({record.id for record in used})), tuple(sorted(censors)))
        try:
            await self._manifests.note_records(batch.key.scope, batch.turn_id, records)
            await self._records.count_use(scope, counted)
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("records.uncounted", why=str(error) or "timeout", records=len(counted))


def _readable(arguments: str) -> str:
    """Return all values in JSON arguments, a line each: its escapes (``\\n``, ``\\u0062``) would hide words."""
    try:
        left = [json.loads(arguments)]
    except (ValueError, RecursionError):
        return arguments
    found: list[str] = []
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [part for pair in reversed(one.items()) for part in reversed(pair)]
        elif isinstance(one, list):
            left += reversed(one)
        else:
            found.append(one if isinstance(one, str) else json.dumps(one))
    return "\n".join(found)


USED_SHARE = 0.34
USED_TERMS = 2


def shown_records(built: BuiltPrompt) -> tuple[SelectedRecord, ...]:
    """Return the records that the prompt shows: the selected ones, without those that had no room."""
    block = built.prompt.block("records")
    if block is None or not block.text:
        return ()
    with_ids = EXPAND in built.context.tools
    lines = set(block.text.split("\n"))
    return tuple(one for one in built.context.records if record_line(one, with_id=with_ids) in lines)


def record_rows(built: BuiltPrompt) -> list[Mapping[str, Any]]:
    """Return `shown_records` as the HTTP interface shows them."""
    return [{"id": one.id, "type": one.type, "level": one.level, "tokens": one.tokens} for one in shown_records(built)]


def used_records(built: BuiltPrompt, reply: str) -> tuple[SelectedRecord, ...]:
    """Return those of `shown_records` that *reply* used."""
    records = shown_records(built)
    if not records:
        return ()
    asked, told = term_set(built.context.query.text), term_set(reply)
    return tuple(one for one in records if one.id in reply or _is_used(term_set(one.text) - asked, told))


def _is_used(news: frozenset[str], told: frozenset[str]) -> bool:
    repeated = len(news & told)
    return bool(news) and repeated >= USED_SHARE * len(news) and repeated >= min(USED_TERMS, len(news))
