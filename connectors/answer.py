"""An answer as a JSON object: what the HTTP face returns, and `chat --json` prints."""

from __future__ import annotations

from typing import Any

from connectors.message import OutboundMessage


def answer_object(message: OutboundMessage) -> dict[str, Any]:
    """*message* as ``{"turn_id", "text", "sources", "strategy", "reason", "degraded", "usage"}``."""
    return {
        "turn_id": message.turn_id,
        "text": message.text,
        "sources": [{"source": source.source, "heading": source.heading} for source in message.sources],
        "strategy": message.strategy,
        "reason": message.reason,
        "degraded": [{"block": part.block, "why": part.why} for part in message.degraded],
        "usage": {
            "prompt": message.usage.prompt,
            "cached": message.usage.cached,
            "completion": message.usage.completion,
            "cost_usd": message.usage.cost_usd,
            **({"estimated": True} if message.usage.estimated else {}),
        },
    }
