"""What the user said in this turn."""

from __future__ import annotations

from grounding.run_context import Query
from grounding.sections import Section, as_data, neutral, one_line

MAX_QUOTE_CHARACTERS = 600


LONGEST_TOKEN_CHARACTERS = 128
"""No token of the vocabulary is longer, so that text beyond budget × this can be left unread."""


def section(query: Query, max_tokens: int) -> Section:
    """The user's words; behind them what they reply to and the names of attached files.

    The words come first and are kept longest: the first piece is theirs alone.
    """
    pieces = [neutral(query.text[: max_tokens * LONGEST_TOKEN_CHARACTERS]).strip()]
    pieces += [_quote(quote.author, quote.text) for quote in query.quotes]
    if query.attachments:
        pieces.append("Attached files: " + ", ".join(one_line(name) for name in query.attachments))
    return Section(pieces=tuple(piece for piece in pieces if piece), joint="\n\n")


def _quote(author: str, text: str) -> str:
    shortened = as_data(text).strip()[:MAX_QUOTE_CHARACTERS]
    lines = "\n".join("> " + line for line in shortened.splitlines())
    return f"In reply to {one_line(author) or 'a message'}:\n{lines}"
