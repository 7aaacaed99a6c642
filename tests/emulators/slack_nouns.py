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
    private: bool = False

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
    context: str = ""
    """What stands below the text in a context block, small and grey."""
    file: str | None = None
    """The title of the file, whose content ``raw`` then is."""
    buttons: dict[str, str] = field(default_factory=dict)
    """The labels of the buttons below it, and the command that each gives."""


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
    failed: bool = False
    """Whether who gave the command or pressed the button saw that it failed: it was not acknowledged in time."""
    told: Json | None = None
    """What came with the acknowledgement."""


class Refused(Exception):
    """A call that Slack refuses, with its word; ``more`` goes into the answer."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.more = more


MAX_ELEMENTS, MAX_LABEL_CHARACTERS, MAX_VALUE_CHARACTERS, MAX_ACTION_ID_CHARACTERS = 25, 75, 2000, 255
"""Of an actions block, and of a button."""

MAX_SECTION_CHARACTERS, MAX_CONTEXT_ELEMENTS, MAX_CONTEXT_CHARACTERS, MAX_BLOCKS = 3000, 10, 2000, 50


def in_blocks(asked: Json) -> tuple[str, str]:
    """The mrkdwn of a message's section blocks, or its text if it has no blocks, and the plain text of its context
    blocks. Raises `Refused` for blocks that Slack refuses, or that this emulator does not know."""
    blocks = asked.get("blocks") or []
    if not blocks:
        return str(asked.get("text") or ""), ""
    said: list[str] = []
    below: list[str] = []
    for block in blocks:
        match block:
            case {"type": "section", "text": {"type": "mrkdwn", "text": str(text)}}:
                fits = 0 < len(text) <= MAX_SECTION_CHARACTERS
                said.append(text)
            case {"type": "context", "elements": [*elements]}:
                texts = [str(one["text"]) for one in elements if one["type"] == "plain_text"]
                fits = 0 < len(texts) == len(elements) <= MAX_CONTEXT_ELEMENTS
                fits = fits and all(0 < len(text) <= MAX_CONTEXT_CHARACTERS for text in texts)
                below += texts
            case {"type": "actions"}:
                fits = bool(buttons_in([block]))
            case _:
                fits = False
        if not fits:
            raise Refused("invalid_blocks")
    if len(blocks) > MAX_BLOCKS:
        raise Refused("invalid_blocks")
    return "\n".join(said), " ".join(below)


def buttons_in(blocks: list[Json]) -> dict[str, Json]:
    """The buttons of a message's actions blocks by their labels. Raises `Refused` for those that Slack refuses."""
    buttons: dict[str, Json] = {}
    for elements in [block["elements"] for block in blocks if block["type"] == "actions"]:
        ids = [one["action_id"] for one in elements]
        fits = 0 < len(elements) <= MAX_ELEMENTS and len(set(ids)) == len(ids)
        fits = fits and all(0 < len(one) <= MAX_ACTION_ID_CHARACTERS for one in ids)
        for one in elements:
            label = one["text"]["text"]
            fits = fits and one["type"] == "button" and one["text"]["type"] == "plain_text"
            fits = fits and 0 < len(label) <= MAX_LABEL_CHARACTERS and len(one["value"]) <= MAX_VALUE_CHARACTERS
            buttons[label] = one
        if not fits:
            raise Refused("invalid_blocks")
    return buttons


def seen(text: str) -> str:
    """What people read of mrkdwn: links by their words, entities as characters, nothing of a zero-width space.

    Emphasis stays as it is written.
    """
    text = LINK.sub(lambda match: match[2] or match[1], text).replace("\u200b", "")
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
