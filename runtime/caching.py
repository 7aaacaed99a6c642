"""What tells a provider which beginning of a prompt will come again, so that it is read, and paid for, once. Pure.

Most providers find that by themselves: there is nothing to say, but for OpenAI's ``prompt_cache_key``, which brings the
requests of one conversation to a machine that has read its beginning. Anthropic's models keep what is marked by
``cache_control``: at most four places, at ends of content parts, and a part is found again only where it has the same
bytes as before, at most 20 parts before a mark. The user message is therefore cut into parts where the prompts of one
conversation agree; their texts, one after the other, are the message. Writing costs a quarter more than reading anew
and reading what was kept a tenth; too short a beginning is not kept, at no cost.
Source: docs.anthropic.com, "Prompt caching"; platform.openai.com, "Prompt caching".
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from connectors.message import ConversationKey
from grounding.blocks import SEPARATOR, Prompt, Volatility
from grounding.standing import standing_ends
from runtime.exchange import Message

MARK: Mapping[str, Any] = {"type": "ephemeral"}
KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Standing:
    """What of a prompt will come again: ``static`` characters of the system message that hold for the whole workspace,
    ``ends`` as of `grounding.standing.standing_ends`, and a name for its conversation that says nothing about it."""

    static: int
    ends: tuple[int, ...]
    key: str

    @classmethod
    def of(cls, prompt: Prompt, key: ConversationKey) -> Standing:
        static = 0
        for block in prompt.blocks:
            place = block.place
            if place.message != "system" or place.volatility is not Volatility.STATIC:
                break
            static += len(block.text) + len(SEPARATOR) if block.used else 0
        digest = hashlib.blake2b(key.encoded.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES)
        return cls(static, standing_ends(prompt), digest.hexdigest())


Fitted = Callable[[int], Awaitable[tuple[Sequence[Message], Standing] | None]]
"""Messages, and what of them stands, for a model that reads so many tokens; None where there are none so small."""


def marked(messages: Sequence[Message], standing: Standing) -> list[Message]:
    """*messages* with Anthropic's marks: behind what holds for the workspace, at the end of the system message, behind
    what stands of the user's, and, in rounds of tools, at the end of it all."""
    result: list[Message] = []
    cuts: tuple[int, ...]
    for place, message in enumerate(messages):
        if place == 0 and message["role"] == "system":
            cuts, marks = (standing.static,), 2
        elif message["role"] == "user":
            cuts, marks = standing.ends, 1
        else:
            result.append(message)
            continue
        result.append({**message, "content": _parts(message["content"], cuts, marks, message["role"] == "system")})
    if result and result[-1]["role"] == "tool":
        result[-1] = {**result[-1], "cache_control": dict(MARK)}
    return result


def _parts(content: Any, cuts: Sequence[int], marks: int, is_whole: bool) -> Any:
    """*content* cut at *cuts*, with marks on the last *marks* parts of what comes again: of all of it where *is_whole*,
    else of what stands before the last cut."""
    text, others = (content, []) if isinstance(content, str) else (content[0]["text"], list(content[1:]))
    if not text.strip():
        return content
    edges = [0, *(cut for cut in cuts if 0 < cut < len(text)), len(text)]
    parts = [{"type": "text", "text": text[start:end]} for start, end in pairwise(edges)]
    if len(parts) == 1 and not is_whole:
        return content
    stays = parts if is_whole else parts[:-1]
    for part in stays[-marks:]:
        part["cache_control"] = dict(MARK)
    return [*parts, *others]


def takes_marks(litellm: Any, model: str) -> bool:
    """Whether *model* is one of Anthropic's, at whatever provider, and LiteLLM says that it caches prompts."""
    if "claude" not in model.lower():
        return False
    try:
        return bool(litellm.utils.supports_prompt_caching(model=model))
    except Exception:  # noqa: BLE001 - it raises a bare Exception for models that it does not know
        return False


def takes_key(model: str, own_server: bool) -> bool:
    """Whether *model* is OpenAI's own, there or at Azure. Other servers that speak OpenAI's protocol may refuse what
    they do not know."""
    provider, slash, _ = model.partition("/")
    return provider == "azure" or ((provider == "openai" or not slash) and not own_server)
