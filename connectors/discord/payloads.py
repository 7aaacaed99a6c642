"""Replies as bodies of Discord's calls. Pure. (`connectors.discord.events` is the way in.)

`to_parts` renders a reply and cuts it. `to_send`, `to_edit` and `to_private_answer` are bodies for one part, and
`as_request` adds the part's file.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from connectors.message import OutboundMessage, OutboundPart
from connectors.text import (
    DISCORD_MARKDOWN,
    cut_reply,
    outbound_parts,
    sources_form,
    utf16_units,
)

MAX_TEXT_UNITS = 2000
"""Reference, "Create Message": content of up to 2000 characters. Discord does not define them. A text of 2000 UTF-16
code units is within the limit in any case."""

NONCE_CHARACTERS = 25
"""Reference, "Create Message": a nonce has at most 25 characters."""

MAX_BUTTONS = 5
"""Reference, "Action Row": the buttons that one row takes."""

BUTTON_PREFIX = "command:"
"""Begins the ``custom_id`` of a button that gives a command."""

NO_BUTTONS: dict[str, Any] = {"components": []}
"""The body that removes a message's buttons and leaves the rest of it."""

EPHEMERAL = 1 << 6
SUPPRESS_EMBEDS = 1 << 2
"""Reference, "Message Flags"."""

_SUBTEXT = "-# "
"""Begins a line that Discord's apps show small and grey ("Markdown Text 101")."""
_ROW, _BUTTON, _SECONDARY = 1, 2, 2
"""Reference, "Component Types" and "Button Styles"."""
_MENTION_NOBODY: dict[str, list[str]] = {"parse": []}


def to_parts(message: OutboundMessage, max_parts: int) -> tuple[OutboundPart, ...]:
    """Render *message* as parts within Discord's limit; none if nothing in its text can be seen.

    More than *max_parts* parts become the first part and a file. The sources follow the last text, as a line of
    subtext.
    """
    sources = DISCORD_MARKDOWN.render(sources_form(message))
    footer = f"\n{_SUBTEXT}{sources}" if sources else ""
    limit_with_sources = MAX_TEXT_UNITS - utf16_units(footer)
    texts, sources_at = cut_reply(message.text, DISCORD_MARKDOWN, MAX_TEXT_UNITS, limit_with_sources, max_parts)
    if texts:
        texts[sources_at] += footer
    return outbound_parts(message, texts, "markdown", max_parts)


def to_send(message: OutboundMessage, part: OutboundPart, reply_to: int | None = None) -> dict[str, Any]:
    """Return the body that sends *part*. The first part replies to the message *reply_to*.

    Discord creates only one message for one nonce.
    """
    body = {**_body(part), **button_row(message, part), "nonce": nonce_of(part), "enforce_nonce": True}
    if reply_to is not None and part.index == 0:
        body["message_reference"] = {"message_id": str(reply_to), "fail_if_not_exists": False}
    return body


def nonce_of(part: OutboundPart) -> str:
    """Return a digest of *part*'s token with `NONCE_CHARACTERS`."""
    return hashlib.sha256(part.token.encode("utf-8", "surrogatepass")).hexdigest()[:NONCE_CHARACTERS]


def button_row(message: OutboundMessage, part: OutboundPart) -> dict[str, Any]:
    """Return the fields for the buttons of *message*, which are below its last part."""
    if not message.buttons or part.index < part.total - 1:
        return {}
    buttons = [
        {"type": _BUTTON, "style": _SECONDARY, "label": button.label, "custom_id": BUTTON_PREFIX + button.command}
        for button in message.buttons[:MAX_BUTTONS]
    ]
    return {"components": [{"type": _ROW, "components": buttons}]}


def to_edit(part: OutboundPart) -> dict[str, Any]:
    """Return the body that replaces a message and its file with *part*."""
    return {**_body(part), "content": _content(part), "attachments": _attachments(part)}


def to_private_answer(part: OutboundPart) -> dict[str, Any]:
    """Return the body that shows *part* only to the person who gave a command."""
    return {**_body(part), "flags": SUPPRESS_EMBEDS | EPHEMERAL}


def as_request(body: dict[str, Any], part: OutboundPart) -> dict[str, Any]:
    """Return *body* with *part*'s file as arguments of `discord.http.HTTPClient.request`: JSON, or a form."""
    if not part.file_name:
        return {"json": body}
    media_type = "text/markdown" if part.file_name.endswith(".md") else "text/plain"
    return {
        "form": [
            {"name": "payload_json", "value": json.dumps(body)},
            {
                "name": "files[0]",
                "value": part.text.encode(),
                "filename": part.file_name,
                "content_type": f"{media_type}; charset=utf-8",
            },
        ]
    }


def _body(part: OutboundPart) -> dict[str, Any]:
    body: dict[str, Any] = {"allowed_mentions": _MENTION_NOBODY, "flags": SUPPRESS_EMBEDS}
    if part.file_name:
        return {**body, "attachments": _attachments(part)}
    return {"content": _content(part), **body}


def _content(part: OutboundPart) -> str:
    return "" if part.file_name else part.text


def _attachments(part: OutboundPart) -> list[dict[str, Any]]:
    return [{"id": 0, "filename": part.file_name}] if part.file_name else []
