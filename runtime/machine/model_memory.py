"""Finds out how much memory the attention cache of a model takes, if the model runs on this machine.

It asks in the background, never in a turn. If the size is unknown, the model is used without this information.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO, Literal
from urllib.parse import urlsplit

import structlog

from config.settings import SMOLLM2, Settings
from grounding.prompt import CacheShape, shape_of
from grounding.prompt_input import ModelMemory
from runtime.embedded import installed_weights
from runtime.llm import OLLAMA_PREFIXES, OLLAMA_URL, credentials
from runtime.machine.hardware import NO_GPU, MachineState

ANSWER_BYTES = 4 * 2**20
ANSWER_SECONDS = 10.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known:
    shape: CacheShape
    source: Literal["gguf", "ollama", "settings"]
    reserved_tokens: int = 0


class ModelMemories:
    """The memory of those of the models *names* that run here. *weights* finds the bundled model's file."""

    def __init__(
        self, settings: Settings, names: tuple[str, ...], weights: Callable[[], Path | None] = installed_weights
    ) -> None:
        self._settings = settings
        self._names = names
        self._weights = weights
        self._known: dict[str, _Known] = {}
        self._unknown: dict[str, str] = {}
        """Why the last question about a model failed."""

    async def run(self) -> None:
        """Ask, wait, and ask again, until cancelled."""
        while True:
            await self.look()
            if not any(name.startswith(OLLAMA_PREFIXES) for name in self._names):
                return  # the memory of other models does not change
            await asyncio.sleep(self._settings.environment_sample_seconds)

    async def look(self) -> None:
        """Ask once about each model. Bounded; raises nothing."""
        for name in self._names:
            try:
                async with asyncio.timeout(self._settings.environment_sample_seconds):
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
            return self._known.get(name) or await asyncio.to_thread(self._bundled)
        if name == self._settings.llm_model and (shape := _shape_in(self._settings)):
            return _Known(shape, "settings")
        if name.startswith(OLLAMA_PREFIXES):
            return await self._ollama(name)
        return None

    def _bundled(self) -> _Known | None:
        path = self._weights()
        shape = shape_of(read_header(path)) if path is not None else None
        return _Known(shape, "gguf") if shape else None

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


# The header of a GGUF file, described in docs/gguf.md of ggml-org/ggml. Of 100 MB of weights only the header is read.
# The package ``gguf`` reads it too, but it needs numpy and maps the whole file; this takes 60 lines.

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_ENTRIES = 10_000
MOST_STRING_BYTES = 16 * 2**20
MOST_ITEMS = 4_000_000
"""A larger count means a broken file: no vocabulary has so many words."""
KEPT_ITEMS = 4096
"""Longer lists (vocabularies, scores) are skipped; one number per layer is read."""
_NUMBERS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _LIST = 8, 9


class NotGguf(Exception):
    """The file is not GGUF, is broken, or of an unknown version."""


def read_header(path: Path) -> dict[str, Any]:
    """Return the header: numbers, texts, and lists of at most `KEPT_ITEMS` items by their keys.

    Blocks (50 ms for a vocabulary of 49,000 words). Raises `NotGguf` and OSError.
    """
    with path.open("rb") as file:
        if _exactly(file, 4) != MAGIC:
            raise NotGguf(f"{path.name} is no GGUF file")
        version, _, entries = struct.unpack("<IQQ", _exactly(file, 20))
        if version not in VERSIONS or entries > MOST_ENTRIES:
            raise NotGguf(f"{path.name} is of a version that is not read here ({version})")
        return dict(_entry(file) for _ in range(entries))


def _entry(file: BinaryIO) -> tuple[str, Any]:
    key = _string(file)
    (kind,) = struct.unpack("<I", _exactly(file, 4))
    return key, _value(file, kind)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _LIST:
        return _list(file)
    form = _NUMBERS.get(kind)
    if form is None:
        raise NotGguf(f"a value of the unknown type {kind}")
    return struct.unpack(form, _exactly(file, struct.calcsize(form)))[0]


def _list(file: BinaryIO) -> list[Any] | None:
    """Read a list; skip it and return None if it is longer than `KEPT_ITEMS`."""
    kind, count = struct.unpack("<IQ", _exactly(file, 12))
    if count > MOST_ITEMS or kind == _LIST:
        raise NotGguf(f"a list of {count} items of type {kind}")
    if count <= KEPT_ITEMS:
        return [_value(file, kind) for _ in range(count)]
    if kind in _NUMBERS:
        file.seek(count * struct.calcsize(_NUMBERS[kind]), 1)
    else:
        for _ in range(count):
            _value(file, kind)
    return None


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", _exactly(file, 8))
    if length > MOST_STRING_BYTES:
        raise NotGguf(f"a text of {length} bytes")
    return _exactly(file, length).decode("utf-8", "replace")


def _exactly(file: BinaryIO, count: int) -> bytes:
    found = file.read(count)
    if len(found) != count:
        raise NotGguf("the file ends in its header")
    return found
