"""What the Slack on loopback is made of: people, channels, messages as people see them, faults and deliveries."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LINK = re.compile(r"<((?:https?://|mailto:)[^<>|]+)(?:\|([^<>]*))?>")
MASS_MENTION = re.compile(r"<!(here|channel|everyone)(\|[^>]*)?>")

Json = dict[str, Any]
Post = Callable[[bytes, Mapping[str, str]], Awaitable[int]]
"""Brings an event over HTTP to the app: body and headers, the status of its answer."""


@dataclass(frozen=True)
class Person:
    """Someone with an account; also stands for the direct messages with them."""

    id: str = "U501"
    name: str = "Lena"

    @property
    def channel_id(self) -> str:
        return "D" + self.id[1:]

    def as_json(self) -> Json:
        profile = {"display_name": self.name, "real_name": f"{self.name} Example"}
        return {"id": self.id, "name": self.name.lower(), "is_bot": False, "profile": profile}


SOMEBODY = Person()


@dataclass(frozen=True)
class Channel:
    """A channel; the bot is in it."""

    id: str = "C200"
    name: str = "team"

    @property
    def channel_id(self) -> str:
        return self.id


@dataclass
class Shown:
    """A message of the bot as people see it. ``raw`` is what was sent."""

    channel: str
    ts: str
    text: str
    raw: str
    thread: str | None = None
    has_preview: bool = True
    notifies_all: bool = False
    edits: int = 0
    streaming: bool = False
    file: str | None = None
    """The title of the file, whose content ``raw`` then is."""


@dataclass(frozen=True)
class Whisper:
    """What the bot told one person about a command of theirs."""

    trigger: str
    user: str
    channel: str
    text: str


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one call. ``lost`` drops the connection, ``before`` or ``after`` doing the work."""

    status: int = 200
    error: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: Literal["before", "after"] | None = None
    body: str | None = None
    content_type: str = "text/html"


def rate_limited(seconds: int) -> Fault:
    return Fault(429, "ratelimited", {"Retry-After": str(seconds)})


def refused(error: str) -> Fault:
    return Fault(error=error)


LOST_ANSWER = Fault(lost="after")
LOST_REQUEST = Fault(lost="before")
SERVER_ERROR = Fault(500, body="oops")
GATEWAY_PAGE = Fault(502, body="<html>Bad Gateway</html>")
PLAIN_TEXT = Fault(200, body="ok?", content_type="text/plain")


@dataclass
class Delivery:
    """One event on its way to the app, until it is acknowledged."""

    payload: Json
    kind: str = "events_api"
    attempt: int = 0
    sent_at: float = 0.0
    acknowledged: bool = False
    told: Json | None = None
    """What came with the acknowledgement."""


class Refused(Exception):
    """A call that Slack refuses, with its word; ``more`` goes into the answer."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.more = more


def seen(text: str) -> str:
    """What people read of mrkdwn: links by their words, entities as characters, nothing of a zero-width space.

    Emphasis stays as it is written.
    """
    text = LINK.sub(lambda match: match[2] or match[1], text).replace("\u200b", "")
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
