"""What is told of an answer while it is made."""

from __future__ import annotations

from typing import Any, cast

from connectors.message import ConversationKey, OutboundMessage
from runtime.delivery import PreviewMode, ProgressReporter

MESSAGE = OutboundMessage(ConversationKey("acme", "telegram", "1"), "t1", "")


class Elsewhere:
    """A hub whose news go to another process."""

    name = "here"

    def __init__(self) -> None:
        self.told: list[str] = []

    async def tell(self, topic: str, news: dict[str, Any], to: str = "") -> None:
        self.told.append(news["text"])


async def test_before_a_pause_the_other_process_is_told_all_that_was_written() -> None:
    """Pieces for another process are gathered; while a tool works, none comes that would bring them along."""
    hub = Elsewhere()
    told = ProgressReporter(cast("Any", hub), "there", MESSAGE, PreviewMode.REPLACEABLE)
    for piece in ("Let ", "me ", "look."):
        await told.show(piece)
    await told.flush()
    await told.flush()

    assert hub.told[0] == "Let "
    assert "".join(hub.told) == told.text == "Let me look."
    assert len(hub.told) <= 3
    assert "" not in hub.told
