"""Numbers the texts of a reply as a platform's parts; a reply of too many goes as its beginning and a file. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from connectors.message import OutboundMessage, OutboundPart

FILE_NAME = "whole-reply.md"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})


def outbound_parts(
    message: OutboundMessage, texts: Sequence[str], payload: str, max_parts: int
) -> tuple[OutboundPart, ...]:
    """*texts*, rendered from *message* and within the platform's limit, as its parts.

    More than *max_parts* become two: the first text, and a file that holds the whole of ``message.text``
    (Markdown). Tokens are the same whenever the same message is rendered.
    """
    if len(texts) <= max_parts:
        return tuple(
            OutboundPart(index, len(texts), text, _token(message, str(index)), payload)
            for index, text in enumerate(texts)
        )
    whole = message.text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return (
        OutboundPart(0, 2, texts[0], _token(message, "0"), payload),
        OutboundPart(1, 2, whole, _token(message, "file"), file_name=FILE_NAME),
    )


def can_be_seen(text: str) -> bool:
    """Whether a reader sees anything of *text*; platforms refuse messages in which nobody does as empty."""
    return any(unicodedata.category(character) not in _INVISIBLE for character in text)


def _token(message: OutboundMessage, what: str) -> str:
    return f"{message.turn_id}.{message.kind}.{what}"
