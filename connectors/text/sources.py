"""The line below a reply that names the documents it used. The runtime adds it; the model does not write it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from connectors.message import OutboundMessage, Source
from connectors.text.parse import Block, Paragraph, ParsedMarkdown, Span, Style
from connectors.text.split import Size, cluster_edge

WORD = "Sources:"
"""The beginning of the line."""

MAX_NAMED = 4
"""How many sources the line names. It only counts the others."""

MAX_PATH_CHARACTERS = 60
MAX_HEADING_CHARACTERS = 40


def sources_form(message: OutboundMessage) -> ParsedMarkdown:
    """Return one paragraph, e.g. ``Sources: refunds.md › Windows · pricing.md · +2 more``.

    The form is empty if the message shows no sources. The names are code, so that no platform turns them into links
    or mentions (``.md`` is also a top-level domain).
    """
    if not message.shows_sources or message.kind != "reply":
        return ()
    names = list(dict.fromkeys(map(_name, message.sources)))
    spans = [span for name in names[:MAX_NAMED] for span in (Span(" · "), Span(name, frozenset({Style.CODE})))][1:]
    if len(names) > MAX_NAMED:
        spans.append(Span(f" · +{len(names) - MAX_NAMED} more"))
    return (Block(Paragraph((Span(f"{WORD} "), *spans))),) if names else ()


def sources_line(message: OutboundMessage) -> str:
    """Return the same line as plain text, or an empty text if the message shows no sources."""
    return "".join(
        span.text
        for block in sources_form(message)
        if isinstance(block.content, Paragraph)
        for span in block.content.spans
    )


def without_sources(text: str) -> str:
    """Remove the line of sources from the end of *text*, a message of the bot as people see it."""
    before, _, last = text.rstrip().rpartition("\n")
    return before.rstrip() if last.removeprefix("-# ").startswith(f"{WORD} ") else text


def cut_for_sources(
    cut: Callable[[int], list[str]], limit: int, room: int, size: Size, max_parts: int
) -> tuple[list[str], int]:
    """Cut a reply into texts and choose the text that the sources follow.

    *cut* cuts the reply into texts within a limit: *limit*, or *room* if the sources would not fit otherwise.
    Returns the texts and the index of the chosen one, which measures at most *room*. It is the last text, or the
    first if the reply is sent as its beginning and a file (more than *max_parts* texts).
    """
    texts = cut(limit)
    if texts and size(texts[_last_text(texts, max_parts)]) > room:
        texts = cut(room)
    return texts, _last_text(texts, max_parts)


def _last_text(texts: list[str], max_parts: int) -> int:
    return 0 if len(texts) > max_parts else len(texts) - 1


def _name(source: Source) -> str:
    path, heading = _to_one_line(source.source), _to_one_line(source.heading)
    if len(path) > MAX_PATH_CHARACTERS:  # the end of a path says more than its folders
        path = "…" + path[1 - MAX_PATH_CHARACTERS :]
    if len(heading) > MAX_HEADING_CHARACTERS:
        heading = heading[: cluster_edge(heading, MAX_HEADING_CHARACTERS - 1)].rstrip() + "…"
    return f"{path} › {heading}" if heading else path


def _to_one_line(text: str) -> str:
    return " ".join(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").split())


# ---- mentions ----
#
# Clean up a text from which mentions were removed. Pure.


_PUNCTUATION_AFTER_NAME = re.compile(r"^[\s,:;–—-]+")


def join_around(fragments: list[str]) -> str:
    """Join the fragments of a text around removed mentions, without the gaps that the mentions would leave."""
    text = fragments[0]
    for fragment in fragments[1:]:
        if not text.strip():
            text = _PUNCTUATION_AFTER_NAME.sub("", fragment)
        elif not fragment.strip() or fragment.startswith((".", "!", "?")):
            text = text.rstrip(" ,") + fragment  # "thanks, @bot!"
        elif text[-1].isspace() and (fragment[0].isspace() or fragment[0] in ",;:"):
            text = text.rstrip(" ") + fragment
        else:
            text += fragment
    return text.strip()
