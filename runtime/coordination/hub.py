"""Carries short-lived news between processes: that there is work, how an answer grows, that it is to stop.

All news may be lost. What must not be lost is in the mailbox and the outbox, which their readers sweep from time to
time. Within a process, news arrive at once and without Redis.

Channels (owner ``hub``): ``all`` for every process, and one for each process by its name.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import StoreUnavailable, redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis


News = Mapping[str, Any]
Listener = Callable[[News], None]
EVERYBODY = "all"
_VERSION = 1
_RETRY_SECONDS = 1.0
_POLL_SECONDS = 1.0
_log = structlog.get_logger()


class Hub:
    """Sends and receives news for the process *name*. *shared*: other processes use the same Redis."""

    def __init__(self, redis: Redis, *, shared: bool, name: str = "") -> None:
        self.name = name or uuid.uuid4().hex
        self._redis = redis
        self._shared = shared
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)

    def hear(self, topic: str, listener: Listener) -> None:
        """Call *listener* with all news of *topic*. It must not block or raise."""
        self._listeners[topic].append(listener)

    async def tell(self, topic: str, news: News, to: str = EVERYBODY) -> None:
        """Send *news* to all processes or to one. They may be lost; this raises nothing."""
        if to in (EVERYBODY, self.name):
            self._dispatch(topic, news)
        if self._shared and to != self.name:
            body = json.dumps({"v": _VERSION, "from": self.name, "topic": topic, "news": news})
            with suppress(StoreUnavailable):
                await self._redis.publish(_channel(to), body)

    async def run(self) -> None:
        """Receive the news of other processes, until cancelled."""
        while self._shared:
            try:
                await self._listen()
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(_channel(EVERYBODY), _channel(self.name))
            while True:
                message: Any = await subscription.get_message(timeout=_POLL_SECONDS)
                if message is not None:
                    self._receive(message["data"])

    def _receive(self, body: str) -> None:
        try:
            message = json.loads(body)
            if message["v"] == _VERSION and message["from"] != self.name:
                self._dispatch(message["topic"], message["news"])
        except (ValueError, KeyError, TypeError):
            _log.warning("hub.unreadable")

    def _dispatch(self, topic: str, news: News) -> None:
        for listener in self._listeners[topic]:
            listener(news)


def _channel(name: str) -> str:
    return redis_key("hub", "{hub}", name)
