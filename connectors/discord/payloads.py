"""Our parts as bodies of Discord's calls. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from connectors.message import OutboundMessage, OutboundPart
from connectors.text import (
    can_be_seen,
    cut_for_sources,
    outbound_parts,
    parse,
    parts,
    render,
    sources_form,
    utf16_units,
)

MAX_TEXT_UNITS = 2000
"""Reference, "Create Message": content of up to 2000 characters. It does not say which; counted in UTF-16
code units a text is within the limit whatever is meant."""

SUBTEXT = "-# "
"""Begins a line that Discord's apps show small and grey ("Markdown Text 101")."""

NONCE_CHARACTERS = 25
"""Reference, "Create Message": a nonce has at most 25 characters."""

MAX_BUTTONS = 5
"""Reference, "Action Row": so many buttons in a row."""

BUTTON_PREFIX = "command:"
"""Begins the ``custom_id`` of a button that gives a command."""

NO_BUTTONS: dict[str, Any] = {"components": []}
"""The body that takes a message's buttons away and leaves the rest of it."""

_ROW, _BUTTON, _SECONDARY = 1, 2, 2
"""Reference, "Component Types" and "Button Styles"."""

EPHEMERAL = 1 << 6
SUPPRESS_EMBEDS = 1 << 2
"""Reference, "Message Flags"."""

_NOBODY: dict[str, list[str]] = {"parse": []}


def to_parts(message: OutboundMessage, max_parts: int) -> tuple[OutboundPart, ...]:
    """*message* as Discord's kind of Markdown, within its limit; none for a text in which nothing can be seen.

    Parts without anything visible are left out: Discord refuses them as empty. Surrogates without
    their other half, which no protocol can carry, are replaced by U+FFFD. More than *max_parts* become the
    first and a file. The sources stand below the last text, as a line of subtext.
    """
    text = message.text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    form = parse(text)

    def cut(limit: int) -> list[str]:
        return [part for part in parts(form, limit, utf16_units, render.discord_markdown_render) if can_be_seen(part)]

    sources = render.discord_markdown_render(sources_form(message))
    below = f"\n{SUBTEXT}{sources}" if sources else ""
    texts, last = cut_for_sources(cut, MAX_TEXT_UNITS, MAX_TEXT_UNITS - utf16_units(below), utf16_units, max_parts)
    if texts:
        texts[last] += below
    return outbound_parts(message, texts, "markdown", max_parts)


def nonce_of(part: OutboundPart) -> str:
    """*part*'s token in at most `NONCE_CHARACTERS`, the same for the same token."""
    return hashlib.sha256(part.token.encode("utf-8", "surrogatepass")).hexdigest()[:NONCE_CHARACTERS]


def to_send(message: OutboundMessage, part: OutboundPart, reply_to: int | None = None) -> dict[str, Any]:
    """The body that says *part*, once for one token; the first part hangs at the message *reply_to*."""
    body: dict[str, Any] = {**_body(part), **buttons(message, part), "nonce": nonce_of(part), "enforce_nonce": True}
    if reply_to is not None and part.index == 0:
        body["message_reference"] = {"message_id": str(reply_to), "fail_if_not_exists": False}
    return body


def buttons(message: OutboundMessage, part: OutboundPart) -> dict[str, Any]:
    """What *part*'s body needs besides for the buttons of *message*, which stand below its last part."""
    if not message.buttons or part.index < part.total - 1:
        return {}
    row = [
        {"type": _BUTTON, "style": _SECONDARY, "label": one.label, "custom_id": BUTTON_PREFIX + one.command}
        for one in message.buttons[:MAX_BUTTONS]
    ]
    return {"components": [{"type": _ROW, "components": row}]}


def to_edit(part: OutboundPart) -> dict[str, Any]:
    """The body that replaces a message by *part*, with its file, or without any that it had."""
    return {**_body(part), "content": _content(part), "attachments": _attachments(part)}


def to_answer(part: OutboundPart) -> dict[str, Any]:
    """The body that says *part* to the one person who gave a command."""
    return {**_body(part), "flags": SUPPRESS_EMBEDS | EPHEMERAL}


def as_request(body: dict[str, Any], part: OutboundPart) -> dict[str, Any]:
    """How *body* goes with *part*'s file, as `discord.http.HTTPClient.request` takes it: JSON, or a form."""
    if not part.file_name:
        return {"json": body}
    kind = "text/markdown" if part.file_name.endswith(".md") else "text/plain"
    return {
        "form": [
            {"name": "payload_json", "value": json.dumps(body)},
            {
                "name": "files[0]",
                "value": part.text.encode(),
                "filename": part.file_name,
                "content_type": f"{kind}; charset=utf-8",
            },
        ]
    }


def _body(part: OutboundPart) -> dict[str, Any]:
    body: dict[str, Any] = {"allowed_mentions": _NOBODY, "flags": SUPPRESS_EMBEDS}
    if part.file_name:
        return {**body, "attachments": _attachments(part)}
    return {"content": _content(part), **body}


def _content(part: OutboundPart) -> str:
    return "" if part.file_name else part.text


def _attachments(part: OutboundPart) -> list[dict[str, Any]]:
    return [{"id": 0, "filename": part.file_name}] if part.file_name else []
