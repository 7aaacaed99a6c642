"""Censors that act: a block stops the reply or the tool call with its reason, a warn is put to the model.

Which ones a turn has set off follows from its prompt and what was said, so that a turn that is taken up again finds
the same. They are counted where they act, never where they are read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from connectors.message import AgentRuntimeError
from grounding.memory.records.port import WritesRecords
from grounding.memory.records.record import Type
from grounding.memory.selection.censoring import set_off
from grounding.remembering import seen_in
from grounding.run_context import Censor, RunContext, audience_of
from grounding.sections import one_line
from runtime.envelopes import Batch
from runtime.llm import Completion, ToolCall
from runtime.manifests import Manifests, RecordsOfTurn
from runtime.question import Built
from runtime.record_use import used
from runtime.rounds import Round, as_one

CENSORED = "censored"
"""Why a reply or a tool call was stopped."""
OBJECTION = "Nobody has seen your answer yet. It may go against a rule that holds here:"
AGAIN = (
    "Write the whole answer again so that it does not, and say nothing of this note; if it does not apply, repeat it."
)
NOT_MADE = frozenset({"refused", "too_many", "arguments", "interrupted"})
"""Why a call came to nothing where no censor had a part in it: none acted then. See `runtime.tools`."""
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
    return next((one for one in set_off(censors, text) if one.severity == "block"), None)


def objection(censors: Sequence[Censor], text: str) -> str:
    """What is said to the model of *text*, its answer, before anybody sees it: the warnings that it sets off. Empty
    where there are none, and where a censor stops it anyway."""
    found = set_off(censors, text)
    if not found or any(one.severity == "block" for one in found):
        return ""
    rules = "\n".join(f"- {because(one)}" for one in found)
    return f"{OBJECTION}\n{rules}\n{AGAIN}"


def of_call(censors: Sequence[Censor], call: ToolCall) -> tuple[Censor, ...]:
    """Those of *censors* that a tool call sets off: by the tool's name, or what it is given."""
    return set_off(censors, f"{call.name} {_readable(call.arguments)}") if censors else ()


def because(censor: Censor) -> str:
    """The rule and its reason, in one line."""
    rule, reason = one_line(censor.text).rstrip("."), one_line(censor.reason).rstrip(".")
    return f"{rule} ({reason})" if reason else rule


def acted(built: Built, rounds: Sequence[Round], last: Completion) -> tuple[Acted, ...]:
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
    by_reply = [Acted(censor, "reply") for text in texts for censor in set_off(censors, text)]
    return tuple(dict.fromkeys([*by_tool, *by_reply]))


class Accounting:
    """Notes what a turn made of its records, and counts censors that acted and procedures that were followed."""

    def __init__(self, records: WritesRecords, manifests: Manifests) -> None:
        self._records = records
        self._manifests = manifests

    async def account(self, batch: Batch, built: Built, rounds: Sequence[Round], last: Completion) -> None:
        """Tell and count. Where the store is away that is lost, and told; never raises."""
        set_off_here = acted(built, rounds, last)
        for one in set_off_here:
            _log.info("censor.acted", record_id=one.censor.id, severity=one.censor.severity, where=one.where)
        told = used(built, as_one(rounds, last).text)
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
