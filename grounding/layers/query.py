"""The block of the user's message in this turn, with its attachments and quotes."""

from __future__ import annotations

from collections.abc import Sequence

from grounding.run_context import AttachedText, Query
from grounding.sections import Section, as_data, neutral, one_line
from grounding.tokens import Tokens, clip

MAX_QUOTE_CHARACTERS = 600
MAX_NOTE_CHARACTERS = 300

USUAL_TOKEN_CHARACTERS = 4
"""The usual length of a token in English prose. Several files share their room by it."""
LONGEST_TOKEN_CHARACTERS = 128
"""No token of the vocabulary is longer. Text beyond budget × this need not be read."""
JOINT_TOKENS = 2
"""The most tokens of a blank line between two messages."""


def section(query: Query, tokens: Tokens, max_tokens: int) -> Section:
    """Return the user's words, then what they reply to, the names of attached files, and the files' text.

    The words are the first piece and are kept longest. Names and notes outlast the files' text. Each line of that text
    is marked as a quote, so that it is recognisable as data even if it is cut.
    """
    pieces = [neutral(_words(query, tokens, max_tokens)).strip()]
    pieces += [_quote(quote.author, quote.text) for quote in query.quotes]
    if query.attachments:
        pieces.append("Attached files: " + ", ".join(one_line(name) for name in query.attachments))
    if query.images:
        pieces.append("Shown with this message: " + ", ".join(one_line(image.name) for image in query.images))
    notes = [f"{one_line(file.name)}: {one_line(file.note)[:MAX_NOTE_CHARACTERS]}" for file in query.files if file.note]
    if notes:
        pieces.append("\n".join(notes))
    pieces += _texts([file for file in query.files if file.text], max_tokens)
    return Section(pieces=tuple(piece for piece in pieces if piece), joint="\n\n")


def words(query: Query) -> Query:
    """Return *query* without the text of its files, which is shown only if there is room: the part that is never cut
    for it."""
    return query.model_copy(update={"files": tuple(file.model_copy(update={"text": ""}) for file in query.files)})


def _words(query: Query, tokens: Tokens, max_tokens: int) -> str:
    """Return the user's words. If several messages are too long together, each gets a share of the room."""
    longest = max_tokens * LONGEST_TOKEN_CHARACTERS
    if not query.begins or tokens.fits(query.text[:longest], max_tokens):
        return query.text[:longest]
    ends = (*query.begins, len(query.text))
    said = [query.text[start:end].strip()[:longest] for start, end in zip((0, *query.begins), ends, strict=True)]
    room = max_tokens - JOINT_TOKENS * len(query.begins)
    allowed = shares([tokens.count(one) for one in said], room)
    shown = [clip(one, tokens, most) for one, most in zip(said, allowed, strict=True)]
    return "\n\n".join(one for one in shown if one)


def _quote(author: str, text: str) -> str:
    shortened = as_data(text).strip()[:MAX_QUOTE_CHARACTERS]
    return f"In reply to {one_line(author) or 'a message'}:\n{_quoted(shortened)}"


def _quoted(text: str) -> str:
    return "\n".join("> " + line for line in text.splitlines())


def _texts(files: Sequence[AttachedText], max_tokens: int) -> list[str]:
    """Return each file's text under its name. Several files share the room; a single one is cut by its tokens."""
    room = max_tokens * (USUAL_TOKEN_CHARACTERS if len(files) > 1 else LONGEST_TOKEN_CHARACTERS)
    allowed = shares([len(file.text) for file in files], room)
    return [
        f"Content of {one_line(file.name)}:\n{_quoted(as_data(file.text[:most]).strip())}"
        + ("\n> …" if most < len(file.text) else "")
        for file, most in zip(files, allowed, strict=True)
    ]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Divide *room* among the wishes: all if there is enough, else equal parts.

    What one does not need goes to the others (max-min fairness).
    """
    given = [0] * len(wanted)
    left = max(room, 0)
    by_size = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for position, index in enumerate(by_size):
        given[index] = min(wanted[index], left // (len(wanted) - position))
        left -= given[index]
    return given
