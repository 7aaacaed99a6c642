"""Tells models that can call no tools, as text, what tools answered. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grounding.blocks import SEPARATOR
from runtime.exchange import Message

LOOKED_UP = "What you looked up for this answer. You cannot look up more: answer now, with what there is."


def without_tools(messages: Sequence[Message]) -> list[Message]:
    """*messages* with what tools told as text below the user's last message; the calls themselves are left out."""
    told = [str(message["content"]) for message in messages if message["role"] == "tool"]
    kept = [message for message in messages if message["role"] != "tool" and not message.get("tool_calls")]
    if not told:
        return kept
    last = max(place for place, message in enumerate(kept) if message["role"] == "user")
    kept[last] = {**kept[last], "content": _with(kept[last]["content"], SEPARATOR.join([LOOKED_UP, *told]))}
    return kept


def _with(content: Any, text: str) -> Any:
    """*content* with *text* behind its own."""
    if isinstance(content, str):
        return content + SEPARATOR + text
    parts: list[Mapping[str, Any]] = list(content)
    last = max(place for place, part in enumerate(parts) if part.get("type") == "text")
    parts[last] = {**parts[last], "text": parts[last]["text"] + SEPARATOR + text}
    return parts
