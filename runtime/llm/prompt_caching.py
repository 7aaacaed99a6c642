"""Tells a provider which beginning of a prompt will come again, so that it is read, and paid for, once. Pure.

Most providers find that out by themselves. OpenAI takes a ``prompt_cache_key``, which sends the requests of one
conversation to a machine that has read their beginning. Anthropic's models cache what is marked by ``cache_control``:
at most four marks, at the ends of content parts. A part is found again only if it has the same bytes as before and is
at most 20 parts before a mark. So the user message is cut into parts at the places up to which the prompts of one
conversation agree; the texts of the parts, joined, are the message. Anthropic charges a quarter more for a prompt that
it writes to the cache and a tenth for one that it reads from there. A beginning that is too short is not cached, at no
cost. Source: docs.anthropic.com, "Prompt caching"; platform.openai.com, "Prompt caching".
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from connectors.message import ConversationKey
from grounding.prompt import cache_breakpoints
from grounding.prompt_input import SEPARATOR, Prompt, Volatility
from runtime.llm.streaming import Message

MARK: Mapping[str, Any] = {"type": "ephemeral"}
KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class StablePrefix:
    """The part of a prompt that will come again.

    ``static`` is the number of characters of the system message that the whole workspace shares. ``ends`` are as of
    `grounding.prompt.session_prefix.cache_breakpoints`. ``key`` names the conversation and says nothing about it.
    """

    static: int
    ends: tuple[int, ...]
    key: str

    @classmethod
    def of(cls, prompt: Prompt, key: ConversationKey) -> StablePrefix:
        static = 0
        for block in prompt.blocks:
            place = block.place
            if place.message != "system" or place.volatility is not Volatility.STATIC:
                break
            static += len(block.text) + len(SEPARATOR) if block.used else 0
        digest = hashlib.blake2b(key.encoded.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES)
        return cls(static, cache_breakpoints(prompt), digest.hexdigest())


FitPrompt = Callable[[int], Awaitable[tuple[Sequence[Message], StablePrefix] | None]]
"""Returns messages, and their stable prefix, for a window of so many tokens; None if they cannot be made so small."""


def mark_stable_prefix(messages: Sequence[Message], prefix: StablePrefix) -> list[Message]:
    """Return *messages* with Anthropic's marks.

    They stand after the part of the system message that the workspace shares, at its end, after the stable part of the
    user message, and after the last tool result.
    """
    marked: list[Message] = []
    cuts: tuple[int, ...]
    for index, message in enumerate(messages):
        if index == 0 and message["role"] == "system":
            cuts, marks = (prefix.static,), 2
        elif message["role"] == "user":
            cuts, marks = prefix.ends, 1
        else:
            marked.append(message)
            continue
        marked.append({**message, "content": _parts(message["content"], cuts, marks, message["role"] == "system")})
    if marked and marked[-1]["role"] == "tool":
        marked[-1] = {**marked[-1], "cache_control": dict(MARK)}
    return marked


def _parts(content: Any, cuts: Sequence[int], marks: int, is_stable: bool) -> Any:
    """Cut *content* at *cuts* and mark the last *marks* of its stable parts: of all parts if *is_stable*, else of those
    before the last cut."""
    text, others = (content, []) if isinstance(content, str) else (content[0]["text"], list(content[1:]))
    if not text.strip():
        return content
    edges = [0, *(cut for cut in cuts if 0 < cut < len(text)), len(text)]
    parts = [{"type": "text", "text": text[start:end]} for start, end in pairwise(edges)]
    if len(parts) == 1 and not is_stable:
        return content
    stable = parts if is_stable else parts[:-1]
    for part in stable[-marks:]:
        part["cache_control"] = dict(MARK)
    return [*parts, *others]


def takes_cache_key(model: str, own_server: bool) -> bool:
    """Whether OpenAI itself, or Azure, serves *model*. Other servers with OpenAI's protocol may refuse the key."""
    provider, slash, _ = model.partition("/")
    return provider == "azure" or ((provider == "openai" or not slash) and not own_server)
