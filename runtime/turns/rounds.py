"""The rounds of one answer: the model's texts and tool calls, and the tools' results. Pure.

The messages of rounds follow the prompt's one system and one user message in OpenAI's form. Models without tools get
the same as text (`runtime.llm.messages.without_tools`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from connectors.message import Usage
from grounding.prompt_input import SEPARATOR, Passage, Tokens
from runtime.llm import Completion, Message, ToolCall

CALL_TOKENS = 12
"""The tokens that a provider adds for a call and its result: ids, roles, ends. OpenAI and Anthropic count fewer."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one tool call. ``text`` is for the model. ``tool`` is empty if no tool has the called name; ``why``
    is one word for the reason if the call is not ``ok``."""

    tool: str
    text: str
    ok: bool = True
    why: str = ""
    tokens: int = 0
    duration_ms: int = 0
    passages: tuple[Passage, ...] = ()
    """The document passages in ``text``, which a reply may cite."""


@dataclass(frozen=True, slots=True)
class Round:
    """An answer of the model with tool calls, and their results in the order of the calls; fewer while they run. Or a
    draft of the answer with its warning (`Completion.warned`)."""

    completion: Completion
    results: tuple[Result, ...] = ()
    tools_ms: int = 0
    """How long all of them took together."""

    @property
    def is_over(self) -> bool:
        return len(self.results) == len(self.completion.tool_calls)

    def messages(self, number: int, taken: set[str] | None = None) -> list[Message]:
        """Return the messages of this round, which has *number* (from 0), for the next call of the model. Its calls get
        ids that are not in *taken*, and are added there."""
        if self.completion.warned:
            return [
                {"role": "assistant", "content": self.completion.text},
                {"role": "user", "content": self.completion.warned},
            ]
        taken = set() if taken is None else taken
        calls = [
            {"id": _id(call, number, place, taken), "type": "function", "function": _function(call)}
            for place, call in enumerate(self.completion.tool_calls)
        ]
        said: list[Message] = [{"role": "assistant", "content": self.completion.text or None, "tool_calls": calls}]
        return said + [
            {"role": "tool", "tool_call_id": call["id"], "content": result.text}
            for call, result in zip(calls, self.results, strict=True)
        ]

    def count(self, tokens: Tokens) -> int:
        """Estimate the tokens of the round in a window."""
        calls = self.completion.tool_calls
        texts = [self.completion.text, self.completion.warned, *(call.name + call.arguments for call in calls)]
        texts += [result.text for result in self.results]
        return sum(tokens.count(text) for text in texts) + CALL_TOKENS * (len(calls) + 1)


def with_rounds(prompt: Sequence[Message], rounds: Sequence[Round]) -> list[Message]:
    """Return the messages of *prompt* and of the *rounds* after it."""
    taken: set[str] = set()
    return [*prompt, *(message for number, one in enumerate(rounds) for message in one.messages(number, taken))]


def text_of_rounds(rounds: Sequence[Round]) -> str:
    """Return the model's texts beside its tool calls: people have seen them, and they are part of the reply."""
    return SEPARATOR.join(one.text for one in _standing(rounds) if one.text.strip())


def merge_completions(rounds: Sequence[Round], last: Completion) -> Completion:
    """Return all model calls of an answer as one: their texts, the sums of tokens and times, the end of *last*."""
    if not rounds:
        return last
    completions = [*(one.completion for one in rounds), last]
    spans = [*(one.completion.latency_ms + one.tools_ms for one in rounds), last.latency_ms]
    firsts = [
        sum(spans[:place]) + one.first_token_ms
        for place, one in enumerate(completions)
        if one.first_token_ms is not None
    ]
    return replace(
        last,
        text=SEPARATOR.join(one.text for one in (*_standing(rounds), last) if one.text.strip()),
        usage=total_usage(one.usage for one in completions),
        first_token_ms=min(firsts, default=None),
        latency_ms=sum(spans),
        attempts=1 + sum(max(one.attempts, 1) - 1 for one in completions),
    )


def _standing(rounds: Sequence[Round]) -> list[Completion]:
    """Return the completions whose texts are part of the answer: those after the last draft with a warning."""
    standing: list[Completion] = []
    for past in rounds:
        standing = [] if past.completion.warned else [*standing, past.completion]
    return standing


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Return the sum of *usages*."""
    prompt, cached, completion, cost, estimated = 0, 0, 0, 0.0, False
    for one in usages:
        prompt, cached, completion = prompt + one.prompt, cached + one.cached, completion + one.completion
        cost, estimated = cost + one.cost_usd, estimated or one.estimated
    return Usage(prompt, cached, completion, cost, estimated)


def round_rows(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return the rounds for a manifest: no argument and no result, only their sizes and the arguments' digests."""
    return [
        {
            "round": number,
            "model": one.completion.model,
            "latency_ms": one.completion.latency_ms,
            "tokens_prompt": one.completion.usage.prompt,
            "tokens_cached": one.completion.usage.cached,
            "tokens_completion": one.completion.usage.completion,
            "warned": bool(one.completion.warned),
            "tools": [_row(call, result) for call, result in zip(one.completion.tool_calls, one.results, strict=False)],
        }
        for number, one in enumerate(rounds)
    ]


def _row(call: ToolCall, result: Result) -> dict[str, Any]:
    return {
        "tool": result.tool or "unknown",
        "arguments_sha256": hashlib.sha256(call.arguments.encode("utf-8", "surrogatepass")).hexdigest(),
        "ok": result.ok,
        "why": result.why,
        "tokens": result.tokens,
        "duration_ms": result.duration_ms,
    }


def _id(call: ToolCall, number: int, place: int, taken: set[str]) -> str:
    """Return the provider's own id if it is not *taken*: some providers need it back. Some give the same ids in each
    answer, or one id to all calls; other providers would refuse a request with such ids."""
    made = f"call_{number}_{place}"
    found = next(
        one for one in (call.id, made, *(f"{made}_{more}" for more in range(len(taken)))) if one not in ("", *taken)
    )
    taken.add(found)
    return found


def _function(call: ToolCall) -> dict[str, str]:
    """Return the call for the next request. The provider would refuse it if the name were not valid or the arguments
    were not a JSON object."""
    try:
        good = isinstance(json.loads(call.arguments, parse_constant=_no_constant), dict)
    except (ValueError, RecursionError):  # a model that repeats one bracket nests deeper than anything reads
        good = False
    name = _NOT_IN_NAMES.sub("_", call.name)[:64] or "unknown"
    return {"name": name, "arguments": call.arguments if good else "{}"}


def _no_constant(name: str) -> object:
    """Reject NaN and Infinity, which Python reads but JSON lacks. Raises ValueError."""
    raise ValueError(f"{name} is no JSON")
