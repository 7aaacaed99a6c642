"""How Telegram posts updates to a webhook: those of one chat one after the other, each again until it is taken."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit, urlunsplit

Json = dict[str, Any]
Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[int]]
"""Posts a body with headers to a URL; the status of the answer."""

SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")


class BadWebhook(Exception):
    """Telegram's words for what is wrong with it."""


class Webhook:
    """One bot's webhook. ``waiting`` are the updates to be posted, oldest first."""

    def __init__(self, waiting: Callable[[], list[Json]], changed: asyncio.Condition) -> None:
        self.url = ""
        self.secret = ""
        self.post: Post | None = None
        """How posts go out: none do while nobody has said."""
        self.takes_http = False
        """As a Bot API server of one's own does."""
        self.repeat_seconds = 0.02
        self.taken: set[int] = set()
        """The ids of the updates that were answered with 2xx."""
        self.answers: list[tuple[int, int]] = []
        """Each post: the update's id and the status."""
        self._max_connections = 40
        self._last_error: tuple[int, str] | None = None
        self._waiting = waiting
        self._changed = changed

    def set(self, params: Mapping[str, str]) -> None:
        """As by ``setWebhook``. Raises `BadWebhook`."""
        url, secret = params.get("url", ""), params.get("secret_token", "")
        if url and not url.startswith(("https://", "http://") if self.takes_http else "https://"):
            raise BadWebhook("bad webhook: An HTTPS URL must be provided for webhook")
        if secret and not _SECRET.fullmatch(secret):
            raise BadWebhook("secret token contains unallowed characters")
        connections = int(params.get("max_connections") or 40)
        if not 1 <= connections <= 100:
            raise BadWebhook("max_connections is out of range")
        parts = urlsplit(url)
        self.url = urlunsplit(parts._replace(netloc=parts.netloc.lower()))  # as Telegram shows it then
        self.secret, self._max_connections = secret, connections
        self._last_error = None

    def info(self, allowed: list[str]) -> Json:
        """As by ``getWebhookInfo``. The last error stays until the webhook is set again, as Telegram's does."""
        found: Json = {
            "url": self.url,
            "has_custom_certificate": False,
            "pending_update_count": len(self._waiting()),
            "max_connections": self._max_connections,
            "allowed_updates": allowed,
        }
        if self._last_error is not None:
            found["last_error_date"], found["last_error_message"] = self._last_error
        return found

    async def deliver(self) -> None:
        """Posts what waits until cancelled."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self.url and self.post and self._waiting())
            async with asyncio.TaskGroup() as group:
                posts = [group.create_task(self._post(update)) for update in self._next()]
            if not all(post.result() for post in posts):
                await asyncio.sleep(self.repeat_seconds)

    def _next(self) -> list[Json]:
        """The oldest update of each chat, as many as may be under way at once."""
        first: dict[Any, Json] = {}
        for update in self._waiting():
            content = next(value for key, value in update.items() if key != "update_id")
            first.setdefault(content.get("chat", {}).get("id"), update)
        return list(first.values())[: self._max_connections]

    async def _post(self, update: Json) -> bool:
        assert self.post is not None
        body = json.dumps(update).encode()
        headers = {"Content-Type": "application/json"} | ({SECRET_HEADER: self.secret} if self.secret else {})
        try:
            status = await self.post(self.url, body, headers)
        except OSError as error:
            self._last_error = (int(time.time()), f"Connection failed: {type(error).__name__}")
            return False
        self.answers.append((update["update_id"], status))
        if 200 <= status < 300:
            self.taken.add(update["update_id"])
            return True
        self._last_error = (
            int(time.time()),
            f"Wrong response from the webhook: {status} {HTTPStatus(status).phrase}",
        )
        return False
