"""When a silent connection is tested, and against which messages."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from connectors.slack.api import Api
from connectors.slack.backfill import GRACE_SECONDS, History, Silence, is_overdue
from connectors.slack.lookups import Lookups


class RecordedHistory(History):
    """A history without messages that records what was read."""

    def __init__(self, api: Api) -> None:
        super().__init__(api, Lookups(api))
        self.read: list[tuple[str, str | None, str]] = []

    async def after(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        self.read.append((channel, thread, ts))
        return []


def recorded_history() -> RecordedHistory:
    return RecordedHistory(Api(SecretStr("xoxb"), "http://127.0.0.1:1/", 1.0))


def event(ts: str, channel: str = "C200", **more: Any) -> dict[str, Any]:
    return {"event": {"type": "message", "channel": channel, "ts": ts, **more}}


async def test_a_silence_is_tested_only_after_an_event_and_again_after_the_same_time() -> None:
    silence = Silence(recorded_history(), 60.0)
    assert not silence.is_due(1e9)
    silence.note_heard({}, 0.0)
    assert not silence.is_due(60.0)
    assert silence.is_due(61.0)
    assert await silence.unheard(61.0) == []
    assert not silence.is_due(120.0)
    assert silence.is_due(122.0)


async def test_the_places_that_spoke_last_are_read_from_their_newest_message() -> None:
    """Only by messages: an ``app_mention`` says nothing about whether others would come, an edit is no news."""
    history = recorded_history()
    silence = Silence(history, 60.0)
    payloads: list[dict[str, Any]] = [
        event("5.0", "C1"),
        event("3.0", "C1"),
        event("6.0", "C2", thread_ts="1.0"),
        event("7.0", "C3", thread_ts="7.0"),
        event("8.0", "C4", type="app_mention"),
        event("9.0", "C1", subtype="message_changed"),
        event("not a time", "C5"),
        {"event": []},
        {},
    ]
    for payload in payloads:
        silence.note_heard(payload, 1.0)
    await silence.unheard(2.0)
    assert history.read == [("C3", None, "7.0"), ("C2", "1.0", "6.0"), ("C1", None, "5.0")]


def test_a_young_message_was_not_missed() -> None:
    """It may still be on its way. Nor was a service note missed, or the message of an app."""
    assert is_overdue({"ts": "100.0"}, 100.0 + GRACE_SECONDS + 1)
    assert not is_overdue({"ts": "100.0"}, 100.0 + GRACE_SECONDS - 1)
    assert not is_overdue({"ts": "100.0", "subtype": "channel_topic"}, 1e9)
    assert not is_overdue({"ts": "100.0", "bot_id": "B0BOT"}, 1e9)
