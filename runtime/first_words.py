"""What of a part is sent first where nobody could find out whether it arrived: a few words, which an edit makes whole.

An edit may be repeated as often as need be, so that only those words are ever in doubt: where they arrived and nobody
knows of it, they stay behind, and the reply is shown below them, whole.
"""

from __future__ import annotations

from dataclasses import replace

from connectors.connector import Connector, EditsMessages, ReadsBack
from connectors.message import OutboundMessage, OutboundPart
from connectors.text.split import cluster_edge

BEGINNING_CHARACTERS = 60
"""At most so much of a text is sent first."""
_MORE = "…"


def tells_again(connector: Connector) -> bool:
    """Whether the platform knows a repetition by its token, or can be asked what it shows."""
    return isinstance(connector, ReadsBack) or connector.capabilities.idempotency == "nonce"


def can_begin(connector: Connector) -> bool:
    """Whether a part is to be begun by a few words: its sending would be in doubt, and an edit can make it whole."""
    return isinstance(connector, EditsMessages) and not tells_again(connector)


def begun(connector: Connector, message: OutboundMessage, part: OutboundPart, most: int) -> OutboundPart:
    """*part* of *message*, which may be a file, as its first *most* characters, or as a sign that it is coming."""
    words = beginning(message.text, most) if part.index == 0 else _MORE
    first = replace(message, text=words, shows_sources=False)
    rendered = connector.render(first) or connector.render(replace(first, text=_MORE))
    return replace(part, text=rendered[0].text, payload=rendered[0].payload, file_name="")


def beginning(text: str, most: int) -> str:
    """Whole words from the front of *text*, at most *most* characters of it, and a sign that there is more. A text
    that is no longer than that is returned as it is."""
    if len(text) <= most:
        return text
    begun = text[:most]
    words = (begun if text[most].isspace() else begun.rpartition(" ")[0]).rstrip()
    if not words and most >= BEGINNING_CHARACTERS:  # not all scripts put spaces
        words = text[: cluster_edge(text, most)]
    return words + _MORE


def first_words(connector: Connector, message: OutboundMessage, part: OutboundPart) -> OutboundPart:
    """What of *part* of the whole *message* is sent first: of a short text a half at most, so that it is not in doubt
    itself."""
    return begun(connector, message, part, min(BEGINNING_CHARACTERS, len(message.text) // 2))
