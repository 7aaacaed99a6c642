"""Convert between the chat page's JSON and the connectors' messages. Pure.

A conversation's ``external_id`` is ``<person>/<conversation>``: the person's id and an id that the page created. In
earlier versions people chose a name after signing in, and the id was ``<person>.<name>/<conversation>``. The page's id
of such a conversation is ``<name>~<conversation>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from connectors.connector import CommandHint
from connectors.http_requests import RequestError
from connectors.message import (
    CALLER_PREFIX,
    Attachment,
    Author,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
)
from connectors.text import Node, link_addresses
from connectors.web.backend import ChatPerson, File, ListedConversation, Mark, PastMessage, Session

NAME = "web"
MAX_NAME_CHARACTERS = 200
"""Longest file name."""
MAX_FILES = 10
"""Most files of one message."""
_CONVERSATION = re.compile(r"([^/~\x00-\x1f]{1,120}~)?[a-z0-9][a-z0-9-]{0,63}")
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]{1,100}")
_COMMAND = re.compile(r"/(?P<word>[A-Za-z][\w-]*)(\s.*)?", re.DOTALL)
_MESSAGE_ID = re.compile(r"[A-Za-z0-9-]{8,64}")


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse *body* as a JSON object. An empty body is an empty object. Raises `RequestError` 400."""
    try:
        value = json.loads(body.decode("utf-8")) if body.strip() else {}
    except (ValueError, RecursionError):
        raise RequestError(400, "bad_request", "the body is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise RequestError(400, "bad_request", "the body must be a JSON object")
    return value


def parse_workspace(fields: dict[str, Any], only_workspace: str | None, default_workspace: str) -> str:
    """Return the workspace that a person signs in to: the requested one, else the token's only one, else the default.

    Raises `RequestError` if the token is not for it.
    """
    requested = fields.get("workspace") or ""
    if not isinstance(requested, str):
        raise RequestError(400, "bad_request", "the workspace must be a string")
    workspace_id = requested.strip() or only_workspace or default_workspace
    if only_workspace not in (None, workspace_id):
        raise RequestError(403, "forbidden", f"This sign-in is for the workspace {only_workspace}.")
    return workspace_id


def person_id(session: Session) -> str:
    """Return the signed-in person's id, the first part of their conversations' ids. It contains no ``/`` and ``.``."""
    return session.person or session.caller_id.removeprefix(CALLER_PREFIX)


def author_of(session: Session) -> Author:
    """Return the author of the session's messages: the person, else the holder of the token."""
    return Author(session.person or session.caller_id, name=session.name)


def person_of(session: Session) -> ChatPerson:
    return ChatPerson(author_of(session).user(NAME), session.role)


def conversation_key(session: Session, conversation: Any) -> ConversationKey:
    """Return the key of the page's conversation id. Raises `RequestError` 400 if the id is malformed."""
    if not isinstance(conversation, str) or not _CONVERSATION.fullmatch(conversation):
        raise RequestError(400, "bad_request", "a conversation's id is 1 to 64 of a-z, 0-9 and '-'")
    return conversation_in(session.workspace_id, person_id(session), conversation)


def conversation_in(workspace_id: str, person: str, conversation: str) -> ConversationKey:
    """Return the key of the page's conversation id. Inverse of `place`."""
    name, _, own_id = conversation.rpartition("~")
    return ConversationKey(workspace_id, NAME, f"{person}.{name}/{own_id}" if name else f"{person}/{own_id}")


def place(key: ConversationKey) -> tuple[str, str]:
    """Return the person of *key* and the page's id of its conversation."""
    owner, _, own_id = key.external_id.partition("/")
    person, _, name = owner.partition(".")
    return person, f"{name}~{own_id}" if name else own_id


def parse_files(given: Any) -> tuple[File, ...]:
    """Parse a message's files: ``[{"id", "name", "media_type", "size"}]``. Raises `RequestError` 400."""
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise RequestError(400, "bad_request", "the files must be a list of objects")
    if len(given) > MAX_FILES:
        raise RequestError(400, "too_many_files", f"A message takes {MAX_FILES} files at most.")
    files = []
    for entry in given:
        file_id, name, media_type = (str(entry.get(field) or "") for field in ("id", "name", "media_type"))
        name = " ".join(_replace_invalid(name).split())[:MAX_NAME_CHARACTERS] or "file"
        size = entry.get("size")
        media_type = media_type if _MEDIA_TYPE.fullmatch(media_type) else ""
        files.append(File(file_id, name, media_type, size if isinstance(size, int) and size > 0 else 0))
    return tuple(files)


def file_object(file: File) -> dict[str, Any]:
    return {"id": file.id, "name": file.name, "media_type": file.media_type, "size": file.size_bytes}


def attachment(file: File, key: ConversationKey) -> Attachment:
    """Turn *file* into an attachment. `parse_handle` reads its handle."""
    family = file.media_type.partition("/")[0]
    kind: Any = {"image": "image", "audio": "voice"}.get(family, "document")
    if file.media_type == "image/svg+xml":
        kind = "document"
    return Attachment(kind, file.name, file.media_type, file.size_bytes, f"{file.id}@{key.encoded}")


def parse_handle(handle: str) -> tuple[str, ConversationKey]:
    file_id, _, key = handle.partition("@")
    return file_id, ConversationKey.decode(key)


def message_ids(given: Any) -> list[str]:
    """Parse a list of message ids. Raises `RequestError` 400."""
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, str) and _MESSAGE_ID.fullmatch(one) for one in given):
        raise RequestError(400, "bad_request", "replaces must be a list of message ids")
    return given


def _replace_invalid(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "")


def to_inbound(
    fields: dict[str, Any], session: Session, sent_at: datetime, commands: Collection[str] = ()
) -> InboundMessage:
    """Parse a person's message: ``{"id", "conversation", "text", "files"?}``. Raises `RequestError` 400.

    A text that begins with a slash and one of *commands*, which the page lists, is that command.
    """
    message_id, text = fields.get("id"), fields.get("text")
    if not isinstance(message_id, str) or not _MESSAGE_ID.fullmatch(message_id):
        raise RequestError(400, "bad_request", "a message's id is 8 to 64 of A-Z, a-z, 0-9 and '-'")
    if not isinstance(text, str):
        raise RequestError(400, "bad_request", "the text is missing")
    key = conversation_key(session, fields.get("conversation"))
    files = parse_files(fields.get("files"))
    if not text.strip() and not files:
        raise RequestError(400, "empty", "The message is empty.")
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    command = _COMMAND.fullmatch(text)
    is_command = command is not None and command["word"].lower() in commands
    return InboundMessage(
        connector=NAME,
        external_id=key.external_id,
        message_id=message_id,
        author=author_of(session),
        attachments=tuple(attachment(file, key) for file in files),
        text=text[1:].strip() if is_command else text,
        kind=InboundKind.COMMAND if is_command else InboundKind.MESSAGE,
        sent_at=sent_at,
        direct=True,
        workspace_id=session.workspace_id,
        default_workspace=session.workspace_id,
        caller_role=session.role,
        is_caller=True,
    )


def spoken_item(message_id: str, conversation: str, text: str, at: str, files: Sequence[File] = ()) -> dict[str, Any]:
    """Return the page's object for a person's message."""
    return {
        "id": message_id,
        "conversation": conversation,
        "by": "you",
        "text": text,
        "nodes": link_addresses(text),
        "files": [file_object(file) for file in files],
        "at": at,
    }


def reply_item(
    item_id: str, message: OutboundMessage, nodes: list[Node], text: str, at: str, mark: Mark | None = None
) -> dict[str, Any]:
    """Return the page's object for a message of the bot.

    *nodes* is *text* as rendered by `connectors.text.tree`; *mark* is the person's mark. A reply has its sources only
    if the place shows them; a message of another kind, such as an apology, always has them, because it quotes them.
    """
    shown = message.sources if message.shows_sources or message.kind != "reply" else ()
    return {
        "id": item_id,
        "conversation": place(message.key)[1],
        "by": "bot",
        "kind": message.kind,
        "text": text,
        "nodes": nodes,
        "at": at,
        "answers": list(message.answers),
        "turn": message.turn_id,
        "mark": mark,
        "sources": [{"source": source.source, "heading": source.heading} for source in shown],
        "degraded": [{"block": part.block, "why": part.why} for part in message.degraded],
        "stopped": message.stopped,
    }


def item_id(message: OutboundMessage) -> str:
    """Return the page's id of a message: the token of its only part (see `connectors.text.parts`)."""
    return f"{message.turn_id}.{message.kind}.0"


def merge_items(past: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return the last *limit* items of *past* (from the transcript) and *kept* (in memory), each once, by time.

    If an item is in both, uses the one in memory, which includes later edits and the bot's degraded blocks.
    """
    items = {item["id"]: item for item in past} | {item["id"]: item for item in kept}
    return sorted(items.values(), key=lambda item: str(item["at"]))[-limit:]


def conversation_object(conversation: ListedConversation) -> dict[str, str]:
    return {"conversation": conversation.id, "title": conversation.title, "at": conversation.at}


def hint_object(hint: CommandHint) -> dict[str, str]:
    return {"name": hint.name, "arguments": hint.arguments, "summary": hint.summary}


def past_item(said: PastMessage, conversation: str, nodes: list[Node]) -> dict[str, Any]:
    """Return the page's object for a message of the transcript."""
    if said.reply is None:
        return spoken_item(said.message_id, conversation, said.text, said.at, said.files)
    return reply_item(item_id(said.reply), said.reply, nodes, said.text, said.at, said.mark)
