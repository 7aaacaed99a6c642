"""The line below a reply that names the documents it used. The runtime adds it; the model does not write it. Pure."""

from __future__ import annotations

from connectors.message import OutboundMessage, Source
from connectors.text.edges import cluster_edge, without_lone_surrogates
from connectors.text.markdown import Block, Paragraph, ParsedMarkdown, Span, Style

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


def _name(source: Source) -> str:
    path, heading = _to_one_line(source.source), _to_one_line(source.heading)
    if len(path) > MAX_PATH_CHARACTERS:  # the end of a path says more than its folders
        path = "…" + path[1 - MAX_PATH_CHARACTERS :]
    if len(heading) > MAX_HEADING_CHARACTERS:
        heading = heading[: cluster_edge(heading, MAX_HEADING_CHARACTERS - 1)].rstrip() + "…"
    return f"{path} › {heading}" if heading else path


def _to_one_line(text: str) -> str:
    return " ".join(without_lone_surrogates(text).split())
