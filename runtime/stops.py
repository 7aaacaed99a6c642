"""Lets people stop an answer that is being written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from connectors.message import ConversationKey


class Stops:
    """The answers that are being written in this process, by conversation."""

    def __init__(self) -> None:
        self._writing: dict[ConversationKey, asyncio.Event] = {}

    def stop(self, key: ConversationKey) -> bool:
        """Have the answer in *key* end where it is; False where none is being written."""
        event = self._writing.get(key)
        if event is None:
            return False
        event.set()
        return True

    @contextmanager
    def heard(self, key: ConversationKey) -> Iterator[asyncio.Event]:
        """While inside, an answer is being written in *key*; the event says that it is to stop."""
        event = self._writing[key] = asyncio.Event()
        try:
            yield event
        finally:
            if self._writing.get(key) is event:
                del self._writing[key]
