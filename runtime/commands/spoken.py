"""Whether a message is a command. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from connectors.message import InboundKind, InboundMessage

# Only at the very beginning, and only a whole word: "/etc/hosts is empty" is no command, nor is "1/2 cup".
_IN_TEXT = re.compile(r"([/!])([A-Za-z][A-Za-z0-9_-]{0,31})(?=\s|\Z)")
_GIVEN = re.compile(r"\s*/?([^\s/]+)(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class Spoken:
    """The word of a command, in lower case and without its mark, and what followed it, stripped.

    ``sure`` says that it was given by the platform's own means, so that it cannot be meant as a message.
    ``mark`` is ``/`` or ``!``; ``/`` where it is sure.
    """

    word: str
    rest: str
    sure: bool
    mark: str = "/"


def spoken(message: InboundMessage) -> Spoken | None:
    """The command that *message* gives, known or not; None for everything else.

    A `InboundKind.COMMAND` is one for sure, unless its word is a path. The text of a `InboundKind.MESSAGE` is one where
    it begins with ``/word`` or ``!word``, with nothing before it and white space or nothing after it.
    """
    if message.kind is InboundKind.COMMAND:
        given = _GIVEN.match(message.text)
        return given and Spoken(given[1].lower(), message.text[given.end() :].strip(), sure=True)
    if message.kind is not InboundKind.MESSAGE:
        return None
    found = _IN_TEXT.match(message.text)
    return found and Spoken(found[2].lower(), message.text[found.end() :].strip(), sure=False, mark=found[1])
