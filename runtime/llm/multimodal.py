"""Images and speech for models, and messages for models that take neither images nor tools."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.message import Usage
from grounding.prompt_input import SEPARATOR
from runtime.llm.streaming import Message, Target

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
