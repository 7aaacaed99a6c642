"""What a request sends beside plain text: images, recordings, the results of tools, and marks for a provider's cache.

Most providers find out by themselves which beginning of a prompt comes again, so that it is read, and paid for, once.
OpenAI takes a ``prompt_cache_key``, which sends the requests of one conversation to a machine that has read their
beginning. Anthropic's models cache what is marked by ``cache_control``: at most four marks, at the ends of content
parts. A part is found again only if it has the same bytes as before and is at most 20 parts before a mark. So the user
message is cut into parts at the places up to which the prompts of one conversation agree; the texts of the parts,
joined, are the message. Anthropic charges a quarter more for a prompt that it writes to the cache and a tenth for one
that it reads from there. A beginning that is too short is not cached, at no cost. Source: docs.anthropic.com, "Prompt
caching"; platform.openai.com, "Prompt caching".
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from connectors.message import ConversationKey, Usage
from grounding.prompt import cache_breakpoints
from grounding.prompt_input import SEPARATOR, Prompt, Volatility
from runtime.llm.streaming import Message, Target

MARK: Mapping[str, Any] = {"type": "ephemeral"}
KEY_BYTES = 16
TOOL_RESULTS_HEAD = "What you looked up for this answer. You cannot look up more: answer now, with what there is."


@dataclass(frozen=True, slots=True)
class Image:
    """An image for the model."""

    name: str
    media_type: str
    sha256: str
    uri: str = field(repr=False)
    """The image itself, as a data URI."""

    @classmethod
    def of(cls, name: str, media_type: str, data: bytes) -> Image:
        """Encode *data*. A large image takes milliseconds: call it in a thread."""
        encoded = base64.b64encode(data).decode()
        return cls(name, media_type, hashlib.sha256(data).hexdigest(), f"data:{media_type};base64,{encoded}")


@dataclass(frozen=True, slots=True)
class Transcription:
    """The text of a recording. ``model`` wrote it; ``usage`` is what the provider reported.

    ``call`` is unique for each request: a recording that is transcribed twice is paid for twice.
    """

    text: str
    model: str
    usage: Usage = field(default_factory=Usage)
    call: str = field(default_factory=lambda: uuid.uuid4().hex)


def with_images(messages: Sequence[Message], images: Sequence[Image]) -> list[Message]:
    """Add *images* after the text of the last message, in OpenAI's form of content parts."""
    if not images:
        return list(messages)
    parts = [{"type": "image_url", "image_url": {"url": image.uri}} for image in images]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": [{"type": "text", "text": last["content"]}, *parts]}]


def has_images(messages: Sequence[Message]) -> bool:
    """Whether any of *messages* has an image."""
    return any(not isinstance(message.get("content"), str | None) for message in messages)


def without_images(messages: Sequence[Message]) -> list[Message]:
    """Return *messages* as text only, for a model that cannot see."""
    return [{**message, "content": _text(message.get("content"))} for message in messages]


def _text(content: Any) -> Any:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    return "\n\n".join(part["text"] for part in content if part.get("type") == "text")


def without_tools(messages: Sequence[Message]) -> list[Message]:
    """Return *messages* for a call that offers no tools.

    The results of tools become text at the end of the user's last message; the tool calls are left out.
    """
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    others = [message for message in messages if message["role"] != "tool" and not message.get("tool_calls")]
    if not results:
        return others
    last = max(index for index, message in enumerate(others) if message["role"] == "user")
    content = _append_text(others[last]["content"], SEPARATOR.join([TOOL_RESULTS_HEAD, *results]))
    others[last] = {**others[last], "content": content}
    return others


def _append_text(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return content + SEPARATOR + text
    parts: list[Mapping[str, Any]] = list(content)
    last = max(index for index, part in enumerate(parts) if part.get("type") == "text")
    parts[last] = {**parts[last], "text": parts[last]["text"] + SEPARATOR + text}
    return parts


async def transcribe(
    litellm: Any, target: Target, audio: bytes, name: str, media_type: str, seconds: float
) -> Transcription:
    """Transcribe *audio* by one request. Raises whatever LiteLLM raises, and `TimeoutError`."""
    async with asyncio.timeout(seconds):
        response = await litellm.atranscription(
            model=target.litellm_id,
            file=(name, audio, media_type),
            timeout=seconds,
            max_retries=0,
            num_retries=0,
            **target.options,
        )
    usage = getattr(response, "usage", None)
    counted = Usage(
        # Models that are paid by the second report no tokens.
        prompt=getattr(usage, "input_tokens", None) or 0,
        completion=getattr(usage, "output_tokens", None) or 0,
        cost_usd=float(
            response.hidden_params.get("response_cost") or _cost_by_second(litellm, target.litellm_id, usage)
        ),
    )
    return Transcription(str(response.text or "").strip(), target.name, counted)


def _cost_by_second(litellm: Any, model: str, usage: Any) -> float:
    """Return the cost of the recording's length by LiteLLM's price list; 0.0 if the model has no such price there."""
    seconds = getattr(usage, "seconds", None) or 0.0
    try:
        prices = litellm.get_model_info(model)
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model that it does not know
        return 0.0
    by_second = float(prices.get("input_cost_per_second") or prices.get("output_cost_per_second") or 0.0)
    return seconds * by_second


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
            static += len(block.text) + len(SEPARATOR) if block.text else 0
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
