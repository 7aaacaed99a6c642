"""Carries short-lived news between processes: that there is work, how an answer grows, that it is to stop.

Everything here may be lost: what must not be is in the mailbox and the outbox, and those who work look there from time
to time. Within a process news arrive at once and without Redis.

Channels (owner ``hub``): ``all`` for everybody, and one for each process by its name.
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
Hears = Callable[[News], None]
EVERYBODY = "all"
_VERSION = 1
_RETRY_SECONDS = 1.0
_POLL_SECONDS = 1.0
_log = structlog.get_logger()


class Hub:
    """News of this process, called *name*, and to it. With *shared* other processes use the same Redis."""

    def __init__(self, redis: Redis, *, shared: bool, name: str = "") -> None:
        self.name = name or uuid.uuid4().hex
        self._redis = redis
        self._shared = shared
        self._hears: defaultdict[str, list[Hears]] = defaultdict(list)

    def hear(self, topic: str, hears: Hears) -> None:
        """Have *hears* called with each news of *topic*. It must not block or raise."""
        self._hears[topic].append(hears)

    async def tell(self, topic: str, news: News, to: str = EVERYBODY) -> None:
        """Pass *news* on to everybody or to one process. May be lost; raises nothing."""
        if to in (EVERYBODY, self.name):
            self._heard(topic, news)
        if self._shared and to != self.name:
            body = json.dumps({"v": _VERSION, "from": self.name, "topic": topic, "news": news})
            with suppress(StoreUnavailable):
                await self._redis.publish(_channel(to), body)

    async def run(self) -> None:
        """Hear what other processes tell, until cancelled."""
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
                    self._take(message["data"])

    def _take(self, body: str) -> None:
        try:
            told = json.loads(body)
            if (
                told["v"] == _VERSION and told["from"] != self.name
            ):  # of another version: its sender knows it may be lost
                self._heard(told["topic"], told["news"])
        except (ValueError, KeyError, TypeError):
            _log.warning("hub.unreadable")

    def _heard(self, topic: str, news: News) -> None:
        for hears in self._hears[topic]:
            hears(news)


def _channel(name: str) -> str:
    return redis_key("hub", "{hub}", name)
