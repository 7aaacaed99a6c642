"""Where a word stands in all that a bot keeps: every key of Redis, every point of the index, every file."""

from __future__ import annotations

import base64
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import qdrant_edge as edge
from redis.asyncio import Redis

from grounding.retrieval.qdrant_edge import EmbeddedIndex

STORES = ("redis", "qdrant")
"""Folders of the data directory that hold a store's own files, which are asked for what they hold instead."""


async def places_of(word: str, redis: Redis, index: EmbeddedIndex, data_dir: Path) -> set[str]:
    """The keys, points and files in which *word* stands, whatever its case."""
    word = word.lower()
    found = {f"redis {name}" async for name, text in _said(redis) if word in text}
    found |= {f"index {payload.get('source')}" for payload in await payloads(index) if word in str(payload).lower()}
    return found | {f"file {name}" for name, text in _files(data_dir) if word in text}


async def payloads(index: EmbeddedIndex) -> list[dict[str, Any]]:
    """What every point of *index* holds beside its vectors."""

    def everything(shard: Any) -> list[dict[str, Any]]:
        request = edge.ScrollRequest(limit=1_000_000, with_payload=True, with_vector=False)
        return [dict(point.payload or {}) for point in shard.scroll(request)[0]]

    return await index._run(everything)


async def _said(redis: Redis) -> AsyncIterator[tuple[str, str]]:
    async for key in redis.scan_iter(count=1000):
        kind = str(await redis.type(key))
        read: dict[str, Any] = {
            "string": lambda key=key: redis.get(key),
            "hash": lambda key=key: redis.hgetall(key),
            "set": lambda key=key: redis.smembers(key),
            "list": lambda key=key: redis.lrange(key, 0, -1),
            "zset": lambda key=key: redis.zrange(key, 0, -1),
            "stream": lambda key=key: redis.xrange(key),
        }
        yield key, f"{key} {' '.join(_plain(await read[kind]()))}".lower()


def _plain(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield _inflated(value)
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _plain(list(pair))
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _plain(one)


def _inflated(text: str) -> str:
    """Manifests are kept compressed, see `runtime.turns.manifest`."""
    if not text.startswith("64:"):
        return text
    return zlib.decompress(base64.b64decode(text.removeprefix("64:"))).decode()


def _files(data_dir: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(data_dir.rglob("*")):
        if path.is_file() and path.relative_to(data_dir).parts[0] not in STORES:
            yield str(path.relative_to(data_dir)), path.read_bytes().decode("utf-8", "replace").lower()
