"""The line below a reply that names the documents it used. It is presentation, not the model's words. Pure."""

from __future__ import annotations

from collections.abc import Callable

from connectors.message import OutboundMessage, Source
from connectors.text.form import Block, Form, Paragraph, Span, Style
from connectors.text.split import Size, cluster_edge

WORD = "Sources:"
"""What the line begins with."""

MAX_NAMED = 4
"""How many sources are named; of the others the line says how many there are."""

MAX_PATH_CHARACTERS = 60
MAX_HEADING_CHARACTERS = 40


def sources_form(message: OutboundMessage) -> Form:
    """One paragraph, e.g. ``Sources: refunds.md › Windows · pricing.md · +2 more``; empty where people see none.

    The names are set as code, so that no platform makes a link or a mention of them (``.md`` is a country, too).
    """
    if not message.shows_sources or message.kind != "reply":
        return ()
    names = list(dict.fromkeys(map(_name, message.sources)))
    spans = [span for name in names[:MAX_NAMED] for span in (Span(" · "), Span(name, frozenset({Style.CODE})))][1:]
    if len(names) > MAX_NAMED:
        spans.append(Span(f" · +{len(names) - MAX_NAMED} more"))
    return (Block(Paragraph((Span(f"{WORD} "), *spans))),) if names else ()


def sources_line(message: OutboundMessage) -> str:
    """The same as plain text; empty where people see none."""
    return "".join(
        span.text for one in sources_form(message) if isinstance(one.content, Paragraph) for span in one.content.spans
    )


def without_sources(text: str) -> str:
    """*text*, a message of the bot as people see it, without the line of sources at its end."""
    before, _, last = text.rstrip().rpartition("\n")
    return before.rstrip() if last.removeprefix("-# ").startswith(f"{WORD} ") else text


def cut_for_sources(
    cut: Callable[[int], list[str]], limit: int, room: int, size: Size, max_parts: int
) -> tuple[list[str], int]:
    """A reply as *cut* cuts it into texts within *limit*, and the index of the text that the sources stand below, which
    measures at most *room*. It is the last one; of a reply that goes as its beginning and a file, the first."""
    texts = cut(limit)
    if texts and size(texts[_last_text(texts, max_parts)]) > room:
        texts = cut(room)
    return texts, _last_text(texts, max_parts)


def _last_text(texts: list[str], max_parts: int) -> int:
    return 0 if len(texts) > max_parts else len(texts) - 1


def _name(source: Source) -> str:
    path, heading = _on_one_line(source.source), _on_one_line(source.heading)
    if len(path) > MAX_PATH_CHARACTERS:  # its end says more than its folders
        path = "…" + path[1 - MAX_PATH_CHARACTERS :]
    if len(heading) > MAX_HEADING_CHARACTERS:
        heading = heading[: cluster_edge(heading, MAX_HEADING_CHARACTERS - 1)].rstrip() + "…"
    return f"{path} › {heading}" if heading else path


def _on_one_line(text: str) -> str:
    return " ".join(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").split())
