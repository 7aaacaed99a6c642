"""Finds out how much memory the attention cache of a model takes, if the model runs on this machine.

It asks in the background, never in a turn. If the size is unknown, the model is used without this information.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

import structlog

from config.settings import SMOLLM2, Settings
from grounding.prompt import CacheShape, shape_of
from grounding.prompt_input import ModelMemory
from runtime.llm import OLLAMA_PREFIXES, OLLAMA_URL, credentials
from runtime.machine.hardware import NO_GPU, MachineState

ANSWER_BYTES = 4 * 2**20
ANSWER_SECONDS = 10.0
SMOLLM2_SHAPE = CacheShape(layers=30, kv_heads=90, key_size=64, value_size=64)
"""The shape in the header of the bundled weights, which are pinned by their digest."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known:
    shape: CacheShape
    source: Literal["gguf", "ollama", "settings"]
    reserved_tokens: int = 0


class ModelMemories:
    """The memory of those of the models *names* that run here."""

    def __init__(self, settings: Settings, names: tuple[str, ...], *, every_seconds: float = 10.0) -> None:
        self._settings = settings
        self._every_seconds = every_seconds
        self._names = names
        self._known: dict[str, _Known] = {}
        self._unknown: dict[str, str] = {}
        """Why the last question about a model failed."""

    async def run(self) -> None:
        """Ask, wait, and ask again, until cancelled."""
        while True:
            await self.look()
            if not any(name.startswith(OLLAMA_PREFIXES) for name in self._names):
                return  # the memory of other models does not change
            await asyncio.sleep(self._every_seconds)

    async def look(self) -> None:
        """Ask once about each model. Bounded; raises nothing."""
        for name in self._names:
            try:
                async with asyncio.timeout(self._every_seconds):
                    known = await self._ask(name)
            except Exception as error:  # noqa: BLE001 - invalid addresses and answers raise errors of all kinds
                self._warn(name, type(error).__name__)
                continue
            if known is not None:
                self._known[name] = known
                self._unknown.pop(name, None)

    def _warn(self, name: str, why: str) -> None:
        """Log ``memory.unknown``, once for each cause."""
        if self._unknown.get(name) != why:
            self._unknown[name] = why
            _log.warning("memory.unknown", model=name, why=why, is_known_from_before=name in self._known)

    def of(self, name: str, seen: MachineState | None) -> ModelMemory | None:
        """Return the memory of the model *name* on the machine as it was *seen*; None if too little is known."""
        known = self._known.get(name)
        if known is None or seen is None:
            return None
        is_bundled = name == SMOLLM2  # its server uses no card
        devices = () if is_bundled else seen.environment.devices
        if not (is_bundled or devices) and seen.environment.note not in ("", NO_GPU):
            return None  # there are cards, but none answers: their memory is unknown
        # A cache on one card has the room of the largest; one that is split among cards has more.
        free = max((device.free_mib for device in devices), default=seen.free_memory_mib)
        if free is None:
            return None
        return ModelMemory(
            bytes_per_token=max(1, known.shape.bytes_per_token(self._settings.llm_kv_cache_type)),
            free_mib=free,
            buffer_mib=self._settings.model_memory_buffer_mib,
            reserved_tokens=known.reserved_tokens,
            where="gpu" if devices else "ram",
            source=known.source,
        )

    async def _ask(self, name: str) -> _Known | None:
        if name == SMOLLM2:
            return _Known(SMOLLM2_SHAPE, "gguf")
        if name == self._settings.llm_model and (shape := _shape_in(self._settings)):
            return _Known(shape, "settings")
        if name.startswith(OLLAMA_PREFIXES):
            return await self._ollama(name)
        return None

    async def _ollama(self, name: str) -> _Known | None:
        base = credentials(self._settings, name).get("api_base") or os.environ.get("OLLAMA_API_BASE") or OLLAMA_URL
        base = str(base).rstrip("/")
        model = name.partition("/")[2]
        if not is_here(base):
            return None
        known = self._known.get(name)
        if known is None:
            info = (await _fetch_json(f"{base}/api/show", {"model": model})).get("model_info")
            shape = shape_of(info) if isinstance(info, Mapping) else None
        else:
            shape = known.shape
        if shape is None:
            self._warn(name, "too_little")
            return None
        return _Known(shape, "ollama", _reserved(await _fetch_json(f"{base}/api/ps"), model))


def is_here(url: str) -> bool:
    """Return whether *url* names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _shape_in(settings: Settings) -> CacheShape | None:
    layers, heads, size = settings.llm_kv_layers, settings.llm_kv_heads, settings.llm_kv_head_size
    return CacheShape(layers, layers * heads, size, size) if layers and heads and size else None


def _reserved(running: Mapping[str, Any], model: str) -> int:
    """Return the tokens for which Ollama has allocated the cache of *model*: its whole window, once loaded."""
    models = running.get("models")
    for entry in models if isinstance(models, list) else ():
        if isinstance(entry, Mapping) and model in (
            entry.get("model"),
            str(entry.get("model")).removesuffix(":latest"),
        ):
            length = entry.get("context_length")
            return length if type(length) is int and length > 0 else 0
    return 0


async def _fetch_json(url: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return the JSON object at *url*. Raises OSError, and ValueError if it is none."""
    import httpx

    # Without the environment's proxy, which is not for this machine. In a thread, because a client reads certificates.
    http = await asyncio.to_thread(lambda: httpx.AsyncClient(trust_env=False, timeout=ANSWER_SECONDS))
    try:
        async with http:
            answer = await (http.get(url) if body is None else http.post(url, json=body))
            answer.raise_for_status()
            found = answer.json() if len(answer.content) <= ANSWER_BYTES else None
    except httpx.HTTPError as error:
        raise OSError(f"{url}: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{url}: not an object")  # noqa: TRY004 - the value is the server's
    return found
