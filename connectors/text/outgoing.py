"""Turn a reply's rendered texts into numbered parts. A reply with too many becomes its beginning and a file. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from connectors.message import OutboundMessage, OutboundPart

FILE_NAME = "whole-reply.md"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})


def outbound_parts(
    message: OutboundMessage, texts: Sequence[str], payload: str, max_parts: int
) -> tuple[OutboundPart, ...]:
    """Return the parts of *message*, whose rendered *texts* are each within the platform's limit.

    More than *max_parts* texts become two parts: the first text, and a file with all of ``message.text``
    (Markdown). Rendering the same message again gives the same tokens.
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
    """Return whether *text* has any visible character. Platforms reject a message without one as empty."""
    return any(unicodedata.category(character) not in _INVISIBLE for character in text)


def _token(message: OutboundMessage, part: str) -> str:
    return f"{message.turn_id}.{message.kind}.{part}"
