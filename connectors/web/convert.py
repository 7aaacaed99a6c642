"""Between the page's JSON and the nouns. Pure.

A conversation's ``external_id`` is ``<person>/<conversation>``: the person's id, and an id that the page made. People
once gave themselves a name after signing in, and talked in ``<person>.<name>/<conversation>``; the page knows such a
conversation as ``<name>~<conversation>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from connectors.connector import CommandHint
from connectors.message import (
    CALLER_PREFIX,
    Accepted,
    AgentRuntimeError,
    Attachment,
    Author,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    StoreUnavailable,
)
from connectors.text.tree import Node, with_links
from connectors.web.backend import Conversation, File, Mark, Person, Said
from connectors.web.sessions import Session

NAME = "web"
MAX_NAME_CHARACTERS = 200
"""Of a file's name."""
MAX_FILES = 10
"""Of one message."""
_CONVERSATION = re.compile(r"([^/~\x00-\x1f]{1,120}~)?[a-z0-9][a-z0-9-]{0,63}")
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]{1,100}")
_COMMAND = re.compile(r"/(?P<word>[A-Za-z][\w-]*)(\s.*)?", re.DOTALL)
_MESSAGE_ID = re.compile(r"[A-Za-z0-9-]{8,64}")

_REFUSALS = {
    "rate_limit": (429, "You are writing faster than I can answer. Please wait a moment."),
    "mailbox_full": (429, "Too many of your messages are waiting. Please wait until I have answered some."),
    "unknown_workspace": (404, "There is no such workspace any more."),
    "budget_exceeded": (402, "The budget of this workspace is used up."),
    "empty": (400, "The message is empty."),
    "too_large": (413, "The message is too large."),
}


class RequestError(Exception):
    """A request that is answered with an error: its status, a code for the page and a text for people."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, self.retry_after_seconds))
        return headers


def parse_object(body: bytes) -> dict[str, Any]:
    """*body* as a JSON object. Raises `RequestError` 400."""
    try:
        value = json.loads(body.decode("utf-8")) if body.strip() else {}
    except (ValueError, RecursionError):
        raise RequestError(400, "bad_request", "the body is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise RequestError(400, "bad_request", "the body must be a JSON object")
    return value


def parse_workspace(fields: dict[str, Any], only_workspace: str | None, default_workspace: str) -> str:
    """The workspace that somebody signs in to. Raises `RequestError`."""
    asked = fields.get("workspace") or ""
    if not isinstance(asked, str):
        raise RequestError(400, "bad_request", "the workspace must be a string")
    workspace_id = asked.strip() or only_workspace or default_workspace
    if only_workspace not in (None, workspace_id):
        raise RequestError(403, "forbidden", f"This sign-in is for the workspace {only_workspace}.")
    return workspace_id


def person_id(session: Session) -> str:
    """Whoever is signed in, as the first half of their conversations' ids. Holds neither ``/`` nor ``.``."""
    return session.person or session.caller_id.removeprefix(CALLER_PREFIX)


def author_of(session: Session) -> Author:
    """Whoever is signed in: the person, else the holder of the token."""
    return Author(session.person or session.caller_id, name=session.name)


def person_of(session: Session) -> Person:
    return Person(author_of(session).user(NAME), session.role)


def conversation_key(session: Session, conversation: Any) -> ConversationKey:
    """Raises `RequestError` 400 for an id of no conversation."""
    if not isinstance(conversation, str) or not _CONVERSATION.fullmatch(conversation):
        raise RequestError(400, "bad_request", "a conversation's id is 1 to 64 of a-z, 0-9 and '-'")
    return conversation_in(session.workspace_id, person_id(session), conversation)


def conversation_in(workspace_id: str, person: str, conversation: str) -> ConversationKey:
    """The key of a conversation, by the id that the page has for it; the inverse of `place`."""
    name, _, own = conversation.rpartition("~")
    return ConversationKey(workspace_id, NAME, f"{person}.{name}/{own}" if name else f"{person}/{own}")


def place(key: ConversationKey) -> tuple[str, str]:
    """The person and the conversation of *key*, as the page knows it."""
    whose, _, own = key.external_id.partition("/")
    person, _, name = whose.partition(".")
    return person, f"{name}~{own}" if name else own


def parse_files(given: Any) -> tuple[File, ...]:
    """The files that a message comes with: ``[{"id", "name", "media_type", "size"}]``. Raises `RequestError` 400."""
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise RequestError(400, "bad_request", "the files must be a list of objects")
    if len(given) > MAX_FILES:
        raise RequestError(400, "too_many_files", f"A message takes {MAX_FILES} files at most.")
    files = []
    for one in given:
        file_id, name, media_type = (str(one.get(field) or "") for field in ("id", "name", "media_type"))
        name = " ".join(_plain(name).split())[:MAX_NAME_CHARACTERS] or "file"
        size = one.get("size")
        media_type = media_type if _MEDIA_TYPE.fullmatch(media_type) else ""
        files.append(File(file_id, name, media_type, size if isinstance(size, int) and size > 0 else 0))
    return tuple(files)


def file_object(file: File) -> dict[str, Any]:
    return {"id": file.id, "name": file.name, "media_type": file.media_type, "size": file.size_bytes}


def attachment(file: File, key: ConversationKey) -> Attachment:
    """*file* for the runtime; its handle is for `parse_handle`."""
    family = file.media_type.partition("/")[0]
    kind: Any = {"image": "image", "audio": "voice"}.get(family, "document")
    if file.media_type == "image/svg+xml":
        kind = "document"
    return Attachment(kind, file.name, file.media_type, file.size_bytes, f"{file.id}@{key.encoded}")


def parse_handle(handle: str) -> tuple[str, ConversationKey]:
    file_id, _, key = handle.partition("@")
    return file_id, ConversationKey.decode(key)


def message_ids(given: Any) -> list[str]:
    """A list of message ids. Raises `RequestError` 400."""
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, str) and _MESSAGE_ID.fullmatch(one) for one in given):
        raise RequestError(400, "bad_request", "replaces must be a list of message ids")
    return given


def _plain(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "")


def to_inbound(
    fields: dict[str, Any], session: Session, sent_at: datetime, commands: Collection[str] = ()
) -> InboundMessage:
    """What a person says at the page: ``{"id", "conversation", "text", "files"?}``. Raises `RequestError` 400.

    A text that begins with a slash and the word of one of *commands*, which the page lists, is that command.
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
    given = command is not None and command["word"].lower() in commands
    return InboundMessage(
        connector=NAME,
        external_id=key.external_id,
        message_id=message_id,
        author=author_of(session),
        attachments=tuple(attachment(file, key) for file in files),
        text=text[1:].strip() if given else text,
        kind=InboundKind.COMMAND if given else InboundKind.MESSAGE,
        sent_at=sent_at,
        direct=True,
        workspace_id=session.workspace_id,
        default_workspace=session.workspace_id,
        caller_role=session.role,
        is_caller=True,
    )


def refusal(accepted: Accepted) -> RequestError:
    """Why a message gets no answer."""
    status, text = _REFUSALS.get(accepted.why, (403, f"This is not answered here ({accepted.why or 'refused'})."))
    retry_after = accepted.retry_after_seconds
    return RequestError(
        status,
        accepted.why or "refused",
        text,
        retry_after_seconds=(retry_after or 1) if status == 429 else retry_after,
    )


def failure(error: AgentRuntimeError) -> RequestError:
    """An error of the runtime: 503 where nothing could be stored."""
    if isinstance(error, StoreUnavailable):
        return RequestError(503, "store_unavailable", error.user_text, retry_after_seconds=1)
    code = getattr(error, "code", "")
    if code in _REFUSALS:
        return RequestError(_REFUSALS[code][0], code, _REFUSALS[code][1])
    return RequestError(503 if error.retryable else 500, code or "failed", error.user_text)


def spoken_item(message_id: str, conversation: str, text: str, at: str, files: Sequence[File] = ()) -> dict[str, Any]:
    """A person's message as the page shows it."""
    return {
        "id": message_id,
        "conversation": conversation,
        "by": "you",
        "text": text,
        "nodes": with_links(text),
        "files": [file_object(file) for file in files],
        "at": at,
    }


def reply_item(
    item_id: str, message: OutboundMessage, nodes: list[Node], text: str, at: str, mark: Mark | None = None
) -> dict[str, Any]:
    """The bot's message as the page shows it: *nodes* are *text* as `connectors.text.tree` has it; *mark* is what the
    person said of it. An answer has its sources where the place shows them; an apology quotes from them."""
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
    """By what the page knows the message: its only part's token (`connectors.text.outgoing`)."""
    return f"{message.turn_id}.{message.kind}.0"


def merged(past: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The last *limit* items of *past* (from the transcript) and *kept* (in memory), each once, by time.

    One that is in both is the one in memory: it may have been edited since, and has its notes.
    """
    items = {item["id"]: item for item in past} | {item["id"]: item for item in kept}
    return sorted(items.values(), key=lambda item: str(item["at"]))[-limit:]


def conversation_object(conversation: Conversation) -> dict[str, str]:
    return {"conversation": conversation.id, "title": conversation.title, "at": conversation.at}


def hint_object(hint: CommandHint) -> dict[str, str]:
    return {"name": hint.name, "arguments": hint.arguments, "summary": hint.summary}


def sse(name: str, data: dict[str, Any], event_id: str = "") -> bytes:
    """One server-sent event. JSON in ASCII has no line breaks, so one ``data`` line holds it whatever the text."""
    first = f"id: {event_id}\n" if event_id else ""
    return f"{first}event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")


def past_item(said: Said, conversation: str, nodes: list[Node]) -> dict[str, Any]:
    """A message of the transcript as the page shows it."""
    if said.reply is None:
        return spoken_item(said.message_id, conversation, said.text, said.at, said.files)
    return reply_item(item_id(said.reply), said.reply, nodes, said.text, said.at, said.mark)
