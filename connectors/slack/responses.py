"""Replies to slash commands: by the URL that came with the command, seen by who gave it. I/O.

Slack takes five posts within 30 minutes (docs.slack.dev, "Handling user interaction"). The URLs are kept in memory
only: they are worth nothing after that time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from connectors.connector import SendFailed
from connectors.message import OutboundPart, Receipt
from connectors.slack import errors, outgoing
from connectors.slack.api import Api
from connectors.slack.recent import Recent

log = structlog.get_logger()

LASTS_SECONDS = 30 * 60.0
MAX_POSTS = 5
HOST = "hooks.slack.com"

_PREFIX = "response-"
_REMEMBERED = 1000
_OVER = frozenset({"used_url", "expired_url", "expired_trigger_id", "no_such_url"})


@dataclass(slots=True)
class _Url:
    url: str
    until: float
    posts: int = 0


class Responses:
    """What may still be posted to, by the command's message id."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._urls: Recent[str, _Url] = Recent(_REMEMBERED)

    def expect(self, message_id: str, url: str) -> None:
        """Replies to *message_id* go to *url*, unless that is no address of Slack's."""
        if not self._is_slacks(url):
            log.warning("connector.request_refused", connector="slack", why="response_url of another host")
            return
        if message_id not in self._urls:
            self._urls.put(message_id, _Url(url, self._now() + LASTS_SECONDS))

    def forget(self, message_id: str) -> None:
        self._urls.drop(message_id)

    async def post(self, answers: tuple[str, ...], part: OutboundPart) -> Receipt | None:
        """Post *part* where one of *answers* is waited for; None where none is (any more).

        Raises `connectors.connector.SendFailed`.
        """
        for message_id in answers:
            known = self._urls.get(message_id)
            if known is None:
                continue
            if known.posts >= MAX_POSTS or known.until <= self._now():
                self.forget(message_id)
                continue
            if await self._post(known, part):
                known.posts += 1
                return Receipt(f"{_PREFIX}{message_id}-{known.posts}")
            self.forget(message_id)
        return None

    async def _post(self, known: _Url, part: OutboundPart) -> bool:
        """Whether Slack took it; False where the URL is over."""
        try:
            status, said, headers = await self._api.post(known.url, json=outgoing.to_respond(part))
        except errors.SLACK_ERRORS as error:
            raise errors.send_failed(error, self._api.describe(error)) from error
        word = _word(said)
        if status == 200 and word in {"", "ok"}:
            return True
        if status in {404, 410} or word in _OVER:
            return False
        asked = headers.get("Retry-After", "")
        raise SendFailed(
            f"Slack did not take the reply to a command: {word or f'HTTP {status}'}",
            retryable=status == 429 or status >= 500,
            ambiguous=status >= 500,
            retry_after_seconds=float(asked) if status == 429 and asked.isdecimal() else None,
        )

    def _is_slacks(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        if parts.username or parts.password:
            return False
        return (parts.scheme == "https" and host == HOST) or (
            parts.scheme in {"http", "https"} and bool(host) and host == self._api.host
        )


def is_response(message_id: str) -> bool:
    """Whether *message_id* is the receipt of such a reply, which can be neither edited nor deleted."""
    return message_id.startswith(_PREFIX)


def _word(said: str) -> str:
    """Slack's word for what went wrong: the answer is ``ok``, a word, or an object with ``error``."""
    try:
        told = json.loads(said)
    except ValueError:
        bare = said.strip()
        return bare if bare.replace("_", "").isalnum() and len(bare) < 64 else ("" if not bare else "unreadable")
    if isinstance(told, dict):
        return "" if told.get("ok") else str(told.get("error") or "unreadable")
    return ""
