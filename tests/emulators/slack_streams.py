"""Messages that grow, as Slack streams them: in threads only, to somebody, within limits and states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.emulators.slack_nouns import MASS_MENTION, Json, Refused, Shown

if TYPE_CHECKING:
    from tests.emulators.slack import SlackEmulator

MAX_MARKDOWN_CHARACTERS = 12_000


class Streams:
    """``chat.startStream``, ``chat.appendStream`` and ``chat.stopStream`` of one workspace."""

    def __init__(self, slack: SlackEmulator) -> None:
        self._slack = slack
        self.available = True
        """Whether the workspace has the methods at all."""
        self.begun = 0

    def start(self, asked: Json) -> Json:
        self._require()
        channel = self._slack.channel(asked.get("channel"))
        thread = asked.get("thread_ts")
        if not thread:
            raise Refused("invalid_arguments", response_metadata={"messages": ["[ERROR] missing thread_ts"]})
        if not self._slack.has(channel, str(thread)):
            raise Refused("invalid_thread_ts")
        if not channel.startswith("D"):
            for needed in ("recipient_user_id", "recipient_team_id"):
                if not asked.get(needed):
                    raise Refused(f"missing_{needed}")
        text = _markdown(asked)
        self.begun += 1
        shown = self._slack.keep(channel, text, str(thread), told=False)
        shown.streaming, shown.has_preview = True, False
        self._show(shown, text)
        return {"channel": channel, "ts": shown.ts}

    def append(self, asked: Json) -> Json:
        shown = self._streaming(asked)
        text = _markdown(asked)
        if not text:
            raise Refused("no_text")
        self._show(shown, shown.raw + text)
        return {"channel": shown.channel, "ts": shown.ts}

    def stop(self, asked: Json) -> Json:
        shown = self._streaming(asked)
        self._show(shown, shown.raw + _markdown(asked))
        shown.streaming = False
        return {"channel": shown.channel, "ts": shown.ts, "message": {"text": shown.raw, "ts": shown.ts}}

    def expire(self) -> None:
        """Slack ends all streams by itself, as it does after some minutes."""
        for shown in self._slack.all_shown:
            shown.streaming = False

    def _show(self, shown: Shown, text: str) -> None:
        shown.raw, shown.text = text, text.replace("\u200b", "")
        shown.notifies_all = bool(MASS_MENTION.search(text))

    def _streaming(self, asked: Json) -> Shown:
        self._require()
        shown = self._slack.shown_at(self._slack.channel(asked.get("channel")), str(asked.get("ts")))
        if shown is None:
            raise Refused("message_not_found")
        if not shown.streaming:
            raise Refused("message_not_in_streaming_state")
        return shown

    def _require(self) -> None:
        if not self.available:
            raise Refused("unknown_method")


def _markdown(asked: Json) -> str:
    text = str(asked.get("markdown_text") or "")
    if len(text) > MAX_MARKDOWN_CHARACTERS:
        raise Refused("msg_too_long")
    return text
