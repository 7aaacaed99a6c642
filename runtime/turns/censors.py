"""What a turn makes of its records: which the prompt showed, which the reply used, and which censors act.

A censor that blocks stops the reply or the tool call with its reason; one that warns is put to the model. Which ones a
turn has set off follows from its prompt and what was said, so that a turn that is taken up again finds the same. They
are counted where they act, never where they are read.

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
from grounding.memory.records import Type, WritesRecords
from grounding.memory.selection import triggered_censors
from grounding.pipeline import seen_in
from grounding.prompt import EXPAND, line
from grounding.prompt_input import Censor, RunContext, SelectedRecord, audience_of, one_line
from grounding.retrieval import term_set
from runtime.llm import Completion, ToolCall
from runtime.turns.batch import Batch
from runtime.turns.manifest import Manifests, RecordsOfTurn
from runtime.turns.rounds import Round, as_one
from runtime.turns.turn_state import BuiltPrompt

CENSORED = "censored"
"""Why a reply or a tool call was stopped."""
OBJECTION = "Nobody has seen your answer yet. It may go against a rule that holds here:"
AGAIN = (
    "Write the whole answer again so that it does not, and say nothing of this note; if it does not apply, repeat it."
)
NOT_MADE = frozenset({"refused", "too_many", "arguments", "interrupted"})
"""Why a call came to nothing if no censor had a part in it: none acted then. See `runtime.turns.tools`."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Acted:
    """A censor that a turn set off, and where."""

    censor: Censor
    where: Literal["reply", "tool"]


def holds_back(context: RunContext) -> bool:
    """Whether nothing of a reply may be seen before it is checked: a censor is in force."""
    return bool(context.censors)


def stopping(censors: Sequence[Censor], text: str) -> Censor | None:
    """The first of *censors* that stops *text*."""
    return next((one for one in triggered_censors(censors, text) if one.severity == "block"), None)


def objection(censors: Sequence[Censor], text: str) -> str:
    """What is said to the model of *text*, its answer, before anybody sees it: the warnings that it sets off. Empty
    if there are none, and if a censor stops it anyway."""
    found = triggered_censors(censors, text)
    if not found or any(one.severity == "block" for one in found):
        return ""
    rules = "\n".join(f"- {because(one)}" for one in found)
    return f"{OBJECTION}\n{rules}\n{AGAIN}"


def of_call(censors: Sequence[Censor], call: ToolCall) -> tuple[Censor, ...]:
    """Those of *censors* that a tool call sets off: by the tool's name, or what it is given."""
    return triggered_censors(censors, f"{call.name} {_readable(call.arguments)}") if censors else ()


def because(censor: Censor) -> str:
    """The rule and its reason, in one line."""
    rule, reason = one_line(censor.text).rstrip("."), one_line(censor.reason).rstrip(".")
    return f"{rule} ({reason})" if reason else rule


def acted(built: BuiltPrompt, rounds: Sequence[Round], last: Completion) -> tuple[Acted, ...]:
    """All that a turn set off, each once per place; the tools' first."""
    censors = built.context.censors
    if not censors:
        return ()
    by_tool = [
        Acted(censor, "tool")
        for one in rounds
        for call, result in zip(one.completion.tool_calls, one.results, strict=False)
        if result.why not in NOT_MADE
        for censor in of_call(censors, call)
    ]
    # A draft is put back with what was said beside the tool calls before it: that is written anew, too.
    drafts = [as_one(rounds[:at], one.completion).text for at, one in enumerate(rounds) if one.completion.warned]
    texts = (*drafts, as_one(rounds, last).text)
    by_reply = [Acted(censor, "reply") for text in texts for censor in triggered_censors(censors, text)]
    return tuple(dict.fromkeys([*by_tool, *by_reply]))


class RecordAccounting:
    """Notes what a turn made of its records, and counts censors that acted and procedures that were followed."""

    def __init__(self, records: WritesRecords, manifests: Manifests) -> None:
        self._records = records
        self._manifests = manifests

    async def account(self, batch: Batch, built: BuiltPrompt, rounds: Sequence[Round], last: Completion) -> None:
        """Tell and count. If the store is away that is lost, and told; never raises."""
        set_off_here = acted(built, rounds, last)
        for one in set_off_here:
            _log.info("censor.acted", record_id=one.censor.id, severity=one.censor.severity, where=one.where)
        told = used_records(built, as_one(rounds, last).text)
        censored = {one.censor.id for one in set_off_here}
        counted = sorted(censored | {one.id for one in told if one.type == Type.PROCEDURE.value})
        if not told and not censored:
            return
        context = built.context
        scope = seen_in(batch.key, audience_of(context))
        # Whoever says later what they think of the reply says it of these.
        noted = RecordsOfTurn(tuple(sorted({one.id for one in told})), tuple(sorted(censored)))
        try:
            await self._manifests.note_records(batch.key.scope, batch.turn_id, noted)
            await self._records.count_use(scope, counted)
        except (AgentRuntimeError, TimeoutError) as error:
            _log.warning("records.uncounted", why=str(error) or "timeout", records=len(counted))


def _readable(arguments: str) -> str:
    """All that stands in arguments, a line each: JSON's escapes (``\\n``, ``\\u0062``) would hide where words begin."""
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
    """The records that stand in the prompt: those that were chosen but for what had to yield."""
    block = built.prompt.block("records")
    if block is None or not block.text:
        return ()
    with_ids = EXPAND in built.context.tools
    lines = set(block.text.split("\n"))
    return tuple(one for one in built.context.records if line(one, with_id=with_ids) in lines)


def shown_record_rows(built: BuiltPrompt) -> list[Mapping[str, Any]]:
    """The same as the HTTP interface tells of them."""
    return [{"id": one.id, "type": one.type, "level": one.level, "tokens": one.tokens} for one in shown_records(built)]


def used_records(built: BuiltPrompt, reply: str) -> tuple[SelectedRecord, ...]:
    """Those of `shown_records` that *reply* used."""
    records = shown_records(built)
    if not records:
        return ()
    asked, told = term_set(built.context.query.text), term_set(reply)
    return tuple(one for one in records if one.id in reply or _is_used(term_set(one.text) - asked, told))


def _is_used(news: frozenset[str], told: frozenset[str]) -> bool:
    repeated = len(news & told)
    return bool(news) and repeated >= USED_SHARE * len(news) and repeated >= min(USED_TERMS, len(news))
