"""Lets people stop an answer that is being written, by whichever process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from connectors.message import ConversationKey
from runtime.hub import Hub, News
from runtime.mailbox import Mailbox

STOP = "stop"
"""The hub's topic."""


class Stops:
    """The answers that are being written in this process, by conversation; *mailbox* knows of all others."""

    def __init__(self, hub: Hub, mailbox: Mailbox) -> None:
        self._hub = hub
        self._mailbox = mailbox
        self._writing: dict[str, asyncio.Event] = {}
        hub.hear(STOP, self._hear)

    async def stop(self, key: ConversationKey) -> bool:
        """Have the answer in *key* end where it is; False where none is being written.

        Raises `connectors.message.StoreUnavailable`.
        """
        writing = bool(await self._mailbox.at_hand(key))
        await self._hub.tell(STOP, {"key": key.encoded})
        return writing

    @contextmanager
    def heard(self, key: ConversationKey) -> Iterator[asyncio.Event]:
        """While inside, an answer is being written in *key*; the event says that it is to stop."""
        event = self._writing[key.encoded] = asyncio.Event()
        try:
            yield event
        finally:
            if self._writing.get(key.encoded) is event:
                del self._writing[key.encoded]

    def _hear(self, news: News) -> None:
        event = self._writing.get(news["key"])
        if event is not None:
            event.set()
