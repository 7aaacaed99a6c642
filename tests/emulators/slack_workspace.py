"""One Slack workspace: places, people, what was said, and the methods by which a bot reads and writes it."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.emulators.slack_nouns import (
    LINK,
    MASS_MENTION,
    Delivery,
    Json,
    Person,
    Refused,
    Shown,
    buttons_in,
    in_blocks,
    seen,
)

MAX_POST_CHARACTERS = 40_000
MAX_UPDATE_CHARACTERS = 4_000

_EMOJI_NAME = re.compile(r"[a-z0-9_+'-]+")


class Workspace(ABC):
    """State and rules without any wire; `_event` is told what happens."""

    def __init__(self) -> None:
        self.user_id, self.bot_id, self.name = "U0BOT", "B0BOT", "helper"
        self.reactions: dict[tuple[str, str], list[str]] = {}
        self.statuses: list[tuple[str, str, str]] = []
        self.people: dict[str, Person] = {}
        self._channels: set[str] = set()
        self._private: set[str] = set()
        self._messages: defaultdict[str, list[Json]] = defaultdict(list)
        self._shown: list[Shown] = []
        self.first_second = int(time.time()) - 12 * 3600
        """When it all begins: each message is at least a second after the one before."""
        self._next = 0

    @property
    def methods(self) -> dict[str, Callable[[Json], Json]]:
        """Slack's methods by name; each raises `Refused`."""
        return {
            "chat.postMessage": self._post_message,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "reactions.add": self._add_reaction,
            "users.info": self._user_info,
            "conversations.info": self._channel_info,
            "conversations.history": lambda asked: self._page(asked, thread=None),
            "conversations.replies": lambda asked: self._page(asked, thread=str(asked.get("ts"))),
            "assistant.threads.setStatus": self._set_status,
        }

    def kind(self, channel: str) -> str:
        """Slack's word for the kind of place."""
        return "im" if channel.startswith("D") else "group" if channel in self._private else "channel"

    def _channel_info(self, asked: Json) -> Json:
        channel = self.channel(asked.get("channel"))
        is_im = channel.startswith("D")
        told = {"id": channel, "is_im": is_im, "is_channel": not is_im, "is_mpim": False}
        return {"channel": {**told, "is_private": channel in self._private}}

    @abstractmethod
    def _event(self, event: Json) -> Delivery:
        """Something happened of which the app is told."""

    def _post_message(self, asked: Json) -> Json:
        channel = self.channel(asked.get("channel"))
        text = _text(asked)[:MAX_POST_CHARACTERS]
        thread = asked.get("thread_ts")
        if thread is not None and not any(said["ts"] == thread for said in self._messages[channel]):
            raise Refused("invalid_thread_ts")
        metadata = asked.get("metadata")
        if metadata is not None and not (metadata.get("event_type") and isinstance(metadata["event_payload"], dict)):
            raise Refused("invalid_metadata_format")
        said, context = in_blocks(asked)
        shown = self.keep(channel, text, thread, metadata=metadata)
        shown.raw, shown.text, shown.context = said[:MAX_POST_CHARACTERS], seen(said[:MAX_POST_CHARACTERS]), context
        self._show_blocks(shown, asked)
        shown.has_preview = bool(LINK.search(text) or "http" in text) and asked.get("unfurl_links") is not False
        shown.notifies_all = bool(MASS_MENTION.search(text) or MASS_MENTION.search(shown.raw))
        return {"channel": channel, "ts": shown.ts, "message": self._find(channel, shown.ts)}

    def keep(
        self,
        channel: str,
        text: str,
        thread: str | None,
        *,
        metadata: Json | None = None,
        file: str = "",
        file_id: str = "",
        told: bool = True,
    ) -> Shown:
        """The bot says something: it is in the history, people see it, and (*told*) it comes as an event."""
        ts = self._new_ts()
        said: Json = {"type": "message", "user": self.user_id, "bot_id": self.bot_id, "ts": ts}
        said |= {"text": "", "files": [{"id": file_id, "name": file}]} if file else {"text": text}
        said |= {"metadata": metadata} if metadata else {}
        said |= {"thread_ts": thread} if thread else {}
        self._messages[channel].append(said)
        shown = Shown(channel=channel, ts=ts, text=seen(text), raw=text, thread=thread, has_preview=False)
        self._shown.append(shown)
        self.statuses = [status for status in self.statuses if status[:2] != (channel, thread)]
        if told:
            self._event({**said, "channel": channel, "channel_type": self.kind(channel), "event_ts": ts})
        return shown

    def _show_blocks(self, shown: Shown, asked: Json) -> None:
        blocks = asked.get("blocks") or []
        shown.buttons = {label: one["value"] for label, one in buttons_in(blocks).items()}
        self._find(shown.channel, shown.ts)["blocks"] = blocks

    def _update(self, asked: Json) -> Json:
        channel, text = self.channel(asked.get("channel")), _text(asked)
        if len(text) > MAX_UPDATE_CHARACTERS:
            raise Refused("msg_too_long")
        shown = self.shown_at(channel, str(asked.get("ts")))
        if shown is None:
            raise Refused("cant_update_message" if self.has(channel, str(asked.get("ts"))) else "message_not_found")
        if shown.streaming:
            raise Refused("streaming_state_conflict")
        shown.raw, shown.context = in_blocks(asked)
        shown.text = seen(shown.raw)
        self._show_blocks(shown, asked)
        shown.notifies_all = bool(MASS_MENTION.search(text) or MASS_MENTION.search(shown.raw))
        shown.edits += 1
        said = self._find(channel, shown.ts)
        said["text"] = text
        if asked.get("metadata"):
            said["metadata"] = asked["metadata"]
        return {"channel": channel, "ts": shown.ts, "text": text}

    def _delete(self, asked: Json) -> Json:
        channel, ts = self.channel(asked.get("channel")), str(asked.get("ts"))
        shown = self.shown_at(channel, ts)
        if shown is None:
            raise Refused("cant_delete_message" if self.has(channel, ts) else "message_not_found")
        if shown.streaming:
            raise Refused("cant_delete_message")
        self._remove(shown)
        return {"channel": channel, "ts": ts}

    def unshare(self, file_id: str) -> None:
        """The messages with a file of the bot's go."""
        for shown in list(self._shown):
            files = self._find(shown.channel, shown.ts).get("files") or ()
            if any(file["id"] == file_id for file in files):
                self._remove(shown)

    def _remove(self, shown: Shown) -> None:
        self._shown.remove(shown)
        self._messages[shown.channel].remove(self._find(shown.channel, shown.ts))

    def _add_reaction(self, asked: Json) -> Json:
        channel, name = self.channel(asked.get("channel")), str(asked.get("name", ""))
        if not _EMOJI_NAME.fullmatch(name):
            raise Refused("invalid_name")
        if not any(said["ts"] == asked.get("timestamp") for said in self._messages[channel]):
            raise Refused("message_not_found")
        there = self.reactions.setdefault((channel, str(asked["timestamp"])), [])
        if name in there:
            raise Refused("already_reacted")
        there.append(name)
        return {}

    def _user_info(self, asked: Json) -> Json:
        person = self.people.get(str(asked.get("user")))
        if person is None:
            raise Refused("user_not_found")
        return {"user": person.as_json()}

    def _page(self, asked: Json, thread: str | None) -> Json:
        channel = self.channel(asked.get("channel"))
        said = list(self._messages[channel])
        if thread is None:
            said = [one for one in reversed(said) if one.get("thread_ts") in (None, one["ts"])]
        else:
            said = [one for one in said if thread in (one["ts"], one.get("thread_ts"))]
            if not said:
                raise Refused("thread_not_found")
        oldest = float(asked.get("oldest") or 0)
        said = [one for one in said if float(one["ts"]) > oldest or one["ts"] == thread]
        start, limit = int(asked.get("cursor") or 0), int(asked.get("limit") or 100)
        shown = [
            one if _is_true(asked.get("include_all_metadata")) else {k: v for k, v in one.items() if k != "metadata"}
            for one in said[start : start + limit]
        ]
        more = start + limit < len(said)
        return {
            "messages": shown,
            "has_more": more,
            "response_metadata": {"next_cursor": str(start + limit) if more else ""},
        }

    def _set_status(self, asked: Json) -> Json:
        channel, thread = self.channel(asked.get("channel_id")), str(asked.get("thread_ts"))
        if not any(said["ts"] == thread for said in self._messages[channel]):
            raise Refused("invalid_thread_ts")
        self.statuses.append((channel, thread, str(asked.get("status", ""))))
        return {}

    def channel(self, channel: Any) -> str:
        """*channel*, if the bot may write there."""
        known = str(channel)
        if known not in self._messages and known not in self._channels:
            raise Refused("channel_not_found")
        if known not in self._channels:
            raise Refused("not_in_channel")
        return known

    @property
    def all_shown(self) -> list[Shown]:
        """Everything that the bot said and that still stands."""
        return list(self._shown)

    def shown_at(self, channel: str, ts: str) -> Shown | None:
        """The bot's message of that timestamp."""
        return next((one for one in self._shown if (one.channel, one.ts) == (channel, ts)), None)

    def has(self, channel: str, ts: str) -> bool:
        """Whether there is a message of that timestamp, whoever said it."""
        return any(said["ts"] == ts for said in self._messages[channel])

    def _find(self, channel: str, ts: str) -> Json:
        return next(said for said in self._messages[channel] if said["ts"] == ts)

    def number(self) -> int:
        """The next one."""
        self._next += 1
        return self._next

    def _new_ts(self) -> str:
        return f"{self.first_second + self.number()}.000100"


def _text(asked: Json) -> str:
    text = str(asked.get("text") or "")
    if not text.strip():
        raise Refused("no_text")
    return text


def _is_true(value: Any) -> bool:
    return value is True or str(value) in {"1", "true"}
