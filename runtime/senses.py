"""What a model takes in besides text: pictures beside its prompt, and speech that is written down for it; and whether
it calls functions. Imports no LiteLLM itself."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.message import Usage
from runtime.exchange import Message, Target
from runtime.windows import served_by_ollama

SECONDS_TO_ASK_LITELLM = 5.0
"""For some providers it asks their server what a model can do."""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture to be shown to the model."""

    name: str
    media_type: str
    sha256: str
    uri: str = field(repr=False)
    """The picture itself, as a data URI."""

    @classmethod
    def of(cls, name: str, media_type: str, data: bytes) -> Image:
        """Takes milliseconds for a large picture: call it in a thread."""
        encoded = base64.b64encode(data).decode()
        return cls(name, media_type, hashlib.sha256(data).hexdigest(), f"data:{media_type};base64,{encoded}")


@dataclass(frozen=True, slots=True)
class Heard:
    """What was said in a recording. ``model`` wrote it down; ``usage`` as far as the provider reported it. ``call`` is
    the request that this took, each by a name of its own: what is listened to twice is paid for twice."""

    text: str
    model: str
    usage: Usage = field(default_factory=Usage)
    call: str = field(default_factory=lambda: uuid.uuid4().hex)


def with_images(messages: Sequence[Message], images: Sequence[Image]) -> list[Message]:
    """*messages* with *images* behind the text of the last of them, in OpenAI's form of content parts."""
    if not images:
        return list(messages)
    shown = [{"type": "image_url", "image_url": {"url": image.uri}} for image in images]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": [{"type": "text", "text": last["content"]}, *shown]}]


def has_images(messages: Sequence[Message]) -> bool:
    """Whether any of *messages* shows a picture."""
    return any(not isinstance(message.get("content"), str | None) for message in messages)


def without_images(messages: Sequence[Message]) -> list[Message]:
    """*messages* as text only, for a model that cannot see."""
    return [{**message, "content": _text(message.get("content"))} for message in messages]


def _text(content: Any) -> Any:
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    return "\n\n".join(part["text"] for part in content if part.get("type") == "text")


async def sees_images(litellm: Any, model: str) -> bool:
    """Whether LiteLLM says that *model* sees pictures. False where it does not know, or takes too long to say."""
    return await _says(litellm.supports_vision, model)


async def calls_functions(litellm: Any, model: str, api_base: str | None) -> bool:
    """Whether LiteLLM says that *model* calls functions, or the Ollama server at *api_base* that has it. False where
    nobody knows, or it takes too long to say."""
    if not served_by_ollama(model):
        return await _says(litellm.supports_function_calling, model)

    def told(name: str) -> Any:  # `supports_function_calling` takes no address, and asks a server on this machine
        return litellm.get_model_info(name, api_base=api_base).get("supports_function_calling")

    return await _says(told, model)


async def _says(ability: Callable[[str], Any], model: str) -> bool:
    try:
        async with asyncio.timeout(SECONDS_TO_ASK_LITELLM):
            return bool(await asyncio.to_thread(ability, model))
    except Exception:  # noqa: BLE001 - it raises a bare Exception for models that it does not know
        return False


async def hear(litellm: Any, target: Target, audio: bytes, name: str, media_type: str, seconds: float) -> Heard:
    """What is said in *audio*, by one request. Raises whatever LiteLLM raises, and `TimeoutError`."""
    async with asyncio.timeout(seconds):
        response = await litellm.atranscription(
            model=target.litellm_id,
            file=(name, audio, media_type),
            timeout=seconds,
            max_retries=0,
            num_retries=0,
            **target.options,
        )
    return Heard(str(response.text or "").strip(), target.shown_as, _counted(litellm, target.litellm_id, response))


def _counted(litellm: Any, model: str, response: Any) -> Usage:
    usage = getattr(response, "usage", None)
    hidden: Mapping[str, Any] = getattr(response, "_hidden_params", None) or {}
    return Usage(
        # Models that are paid by the second report no tokens.
        prompt=getattr(usage, "input_tokens", None) or 0,
        completion=getattr(usage, "output_tokens", None) or 0,
        cost_usd=float(
            hidden.get("response_cost") or _cost_by_the_second(litellm, model, getattr(usage, "seconds", None) or 0.0)
        ),
    )


def _cost_by_the_second(litellm: Any, model: str, seconds: float) -> float:
    """By LiteLLM's price list, in US dollars; 0.0 for models it has no such price for."""
    try:
        prices = litellm.get_model_info(model)
    except Exception:  # noqa: BLE001 - it raises a bare Exception for every model it does not know
        return 0.0
    return seconds * float(prices.get("input_cost_per_second") or prices.get("output_cost_per_second") or 0.0)
