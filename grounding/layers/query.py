"""What the user said in this turn, and what came with it."""

from __future__ import annotations

from collections.abc import Sequence

from grounding.run_context import AttachedText, Query
from grounding.sections import Section, as_data, neutral, one_line
from grounding.tokens import Tokens, clip

MAX_QUOTE_CHARACTERS = 600
MAX_NOTE_CHARACTERS = 300

USUAL_TOKEN_CHARACTERS = 4
"""Of English prose. By it several files share the room that there is."""
LONGEST_TOKEN_CHARACTERS = 128
"""No token of the vocabulary is longer, so that text beyond budget × this can be left unread."""
JOINT_TOKENS = 2
"""At most, of a blank line between two messages."""


def section(query: Query, tokens: Tokens, max_tokens: int) -> Section:
    """The user's words; behind them what they reply to, the names of attached files, and those files' text.

    The words come first and are kept longest: the first piece is theirs alone. Then names and notes outlast the
    files' text, of which each line is marked as quoted, so that it is known for data also where it is cut.
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
    """*query* without the text of its files, which is shown as far as there is room: what is never cut for it."""
    return query.model_copy(update={"files": tuple(file.model_copy(update={"text": ""}) for file in query.files)})


def _words(query: Query, tokens: Tokens, max_tokens: int) -> str:
    """What was said; of several messages that are too long together each is there, as files are in `_texts`: one long
    message leaves room for those that were collected with it."""
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
    """Each file's text under its name. Of several none takes the room of all; a single one is cut by its tokens."""
    room = max_tokens * (USUAL_TOKEN_CHARACTERS if len(files) > 1 else LONGEST_TOKEN_CHARACTERS)
    allowed = shares([len(file.text) for file in files], room)
    return [
        f"Content of {one_line(file.name)}:\n{_quoted(as_data(file.text[:most]).strip())}"
        + ("\n> …" if most < len(file.text) else "")
        for file, most in zip(files, allowed, strict=True)
    ]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """How much of *room* each gets of what it wants: all where there is enough, else equal parts, where what one
    does not need goes to the others (max-min fairness)."""
    given = [0] * len(wanted)
    left = max(room, 0)
    by_size = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for position, index in enumerate(by_size):
        given[index] = min(wanted[index], left // (len(wanted) - position))
        left -= given[index]
    return given
