"""A Qdrant server for several adapters: its client's local mode, which would end with the first of them."""

from __future__ import annotations

from typing import Any

from qdrant_client import AsyncQdrantClient


class SharedQdrant(AsyncQdrantClient):
    """Stays open when an adapter closes it."""

    async def close(self, *args: Any, **options: Any) -> None:
        return None
