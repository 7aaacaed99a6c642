"""Where the files of messages lie.

Discord signs the addresses of its files for about a day, and a file may be asked for later than that. So a
handle names the message, which is read again when the file is wanted, and has fresh addresses.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from connectors.connector import AttachmentUnavailable, Location

CDN_HOSTS = ("cdn.discordapp.com", "media.discordapp.net")
_OWN_HOST = "discord.com"


def handle_of(channel_id: int, message_id: int, attachment_id: int) -> str:
    """What is kept of a file: ``<channel>/<message>/<attachment>``."""
    return f"{channel_id}/{message_id}/{attachment_id}"


def read_handle(handle: str) -> tuple[int, int, int]:
    """Channel, message and attachment of *handle*. Raises `AttachmentUnavailable`."""
    parts = handle.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise AttachmentUnavailable("I cannot find that file on Discord.")
    channel_id, message_id, attachment_id = map(int, parts)
    return channel_id, message_id, attachment_id


def url_in(message: dict[str, Any], attachment_id: int) -> str:
    """The address of an attachment of *message* (as REST tells it), or of what was forwarded with it.

    Raises `AttachmentUnavailable` when it has been taken out.
    """
    snapshots = [one.get("message", {}) for one in message.get("message_snapshots") or ()]
    for holder in (message, *snapshots):
        for file in holder.get("attachments") or ():
            if str(file.get("id")) == str(attachment_id):
                return str(file["url"])
    raise AttachmentUnavailable("That file is no longer in its message.")


def location(url: str, api_base: str) -> Location:
    """*url* with the hosts that may be asked for it: Discord's, or where the settings say that its API is.

    Raises `AttachmentUnavailable` for any other address.
    """
    asked, api = urlsplit(url), urlsplit(api_base)
    if asked.scheme == "https" and asked.hostname in CDN_HOSTS:
        return Location(url, CDN_HOSTS)
    if asked.hostname and asked.hostname == api.hostname and api.hostname != _OWN_HOST:
        return Location(url, (asked.hostname,), trusts_private=True)
    raise AttachmentUnavailable("That file is not stored on Discord.")
