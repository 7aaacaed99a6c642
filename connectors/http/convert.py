"""Convert between HTTP bodies and the connectors' messages. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from connectors.http_requests import REFUSALS, RequestError
from connectors.message import (
    CALLER_PREFIX,
    Author,
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    Role,
    answer_object,
    encode_id,
)

NAME = "http"
DEFAULT_CONTEXT = "default"
MAX_ID_BYTES = 200
"""The longest percent-encoded id of a context or author. Ids become names of files and keys."""
MAX_NAME_CHARACTERS = 200
MAX_IDEMPOTENCY_KEY_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """The body of ``POST /v1/workspaces/{w}/messages``. ``author`` is None if the body names none."""

    text: str
    context: str = DEFAULT_CONTEXT
    author: Author | None = None
    direct: bool = False
    public: bool = False


def parse_body(body: bytes) -> MessageRequest:
    """Parse *body*. Raises `RequestError` (400) with a text that names the field and the expected value."""
    fields = _parse_json(body)
    if not isinstance(fields, dict):
        raise _bad('the body must be a JSON object, for example {"text": "Hello"}')
    text = fields.get("text")
    if text is None:
        raise _bad('"text" is missing; send {"text": "…"}')
    if not _check_string("text", text).strip():
        raise RequestError(400, "empty", '"text" is empty; there is nothing to answer')
    # Other routes call this field "user". If it were ignored here, the message would count as the token holder's.
    if "user" in fields:
        raise _bad('"user" is not a field of a message; name the person in "author"')
    direct, public = _flag(fields, "direct"), _flag(fields, "public")
    if direct and public:
        raise _bad('give "direct" or "public", not both')
    context = fields.get("context")
    return MessageRequest(
        text=text,
        context=DEFAULT_CONTEXT if context is None else _check_id("context", context),
        author=_parse_author(fields.get("author")),
        direct=direct,
        public=public,
    )


def to_inbound(
    request: MessageRequest,
    *,
    workspace_id: str,
    message_id: str,
    caller_id: str,
    caller_role: Role,
    sent_at: datetime,
) -> InboundMessage:
    """Turn *request* into an inbound message. If it names no author, the caller is the author."""
    return InboundMessage(
        connector=NAME,
        external_id=request.context,
        message_id=message_id,
        author=request.author or Author(caller_id),
        text=request.text,
        sent_at=sent_at,
        direct=request.direct,
        public=request.public,
        workspace_id=workspace_id,
        default_workspace=workspace_id,
        caller_role=caller_role,
    )


def message_id_of(idempotency_key: str, caller_id: str) -> str:
    """Return the id of a message with this Idempotency-Key. Includes the caller, so that callers' keys cannot collide.

    Raises `RequestError` if the key is empty, too long or not printable ASCII.
    """
    if not (
        0 < len(idempotency_key) <= MAX_IDEMPOTENCY_KEY_CHARACTERS
        and idempotency_key.isascii()
        and idempotency_key.isprintable()
    ):
        raise _bad(f"Idempotency-Key must be 1 to {MAX_IDEMPOTENCY_KEY_CHARACTERS} printable ASCII characters")
    return "key-" + sha256(f"{caller_id}\n{idempotency_key}".encode()).hexdigest()


def outcome(message: OutboundMessage, message_id: str) -> dict[str, Any]:
    """Return the response body with the answer to *message_id*.

    Raises `RequestError` if a newer message superseded *message_id*, or if the message has an ``error_code`` of
    `REFUSALS`. Any other message is an answer, even if it is degraded.
    """
    if message_id in message.superseded:
        status, text = REFUSALS["superseded"]
        raise RequestError(status, "superseded", text)
    if message.error_code in REFUSALS:
        status, _ = REFUSALS[message.error_code]
        raise RequestError(status, message.error_code, message.text)
    return answer_object(message)


def no_workspace(key: ConversationKey, message_ids: tuple[str, ...]) -> OutboundMessage:
    """Return the message for the senders of *message_ids* after their workspace was deleted."""
    code = "unknown_workspace"
    return OutboundMessage(key, "", REFUSALS[code][1], answers=message_ids, error_code=code)


def _parse_json(body: bytes) -> Any:
    if not body.strip():
        raise RequestError(400, "empty", 'the body is empty; send {"text": "…"}')
    try:
        return json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8: byte {error.start} is not valid") from None
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):  # e.g. a number with thousands of digits, or thousands of brackets
        raise _bad("the body cannot be read as JSON: a number is too large, or the nesting too deep") from None


def _parse_author(author: Any) -> Author | None:
    if author is None:
        return None
    if isinstance(author, str):
        return Author(_check_author_id(author))
    if not isinstance(author, dict):
        raise _bad('"author" must be an id or {"id": "…", "name": "…"}')
    if "id" not in author:
        raise _bad('"author" needs an "id"')
    name = author.get("name")
    if name is None:
        return Author(_check_author_id(author["id"]))
    if len(_check_string("author.name", name)) > MAX_NAME_CHARACTERS:
        raise _bad(f'"author.name" is longer than {MAX_NAME_CHARACTERS} characters')
    return Author(_check_author_id(author["id"]), name=" ".join(name.split()))


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _bad(f'"{name}" must be true or false')
    return value


def _check_author_id(value: Any) -> str:
    author_id = _check_id("author.id" if isinstance(value, str) else "author", value)
    if author_id.startswith(CALLER_PREFIX):
        raise _bad(f'no "author" may begin with {CALLER_PREFIX!r}; leave it out to speak as the token\'s holder')
    return author_id


def _check_id(name: str, value: Any) -> str:
    if not _check_string(name, value).strip():
        raise _bad(f'"{name}" is empty')
    if len(encode_id(value)) > MAX_ID_BYTES:
        raise _bad(f'"{name}" is longer than {MAX_ID_BYTES} bytes (characters other than A-Z a-z 0-9 . _ - count more)')
    return str(value)


def _check_string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _bad(f'"{name}" must be a string')
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _bad(f'"{name}" holds half of a surrogate pair, which is no character') from None
    return value


def _bad(message: str) -> RequestError:
    return RequestError(400, "bad_request", message)


# ---- openapi ----
#
# The ``paths`` and ``components`` of this connector's route in ``/openapi.json``.


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _error(description: str, *headers: str) -> dict[str, Any]:
    header_schemas = {name: {"schema": _INTEGER, "description": "Seconds to wait."} for name in headers}
    return {
        "description": description,
        "content": {"application/json": {"schema": _schema("Error")}},
        **({"headers": header_schemas} if header_schemas else {}),
    }


_AUTHOR = _object(["id"], id=_STRING, name={"type": "string", "maxLength": MAX_NAME_CHARACTERS})

OPENAPI: dict[str, Any] = {
    "paths": {
        "/v1/workspaces/{workspace_id}/messages": {
            "post": {
                "operationId": "postMessage",
                "summary": "Say something to the bot and wait for its answer",
                "security": [{"bearer": []}],
                "parameters": [
                    {"name": "workspace_id", "in": "path", "required": True, "schema": _STRING},
                    {
                        "name": "Idempotency-Key",
                        "in": "header",
                        "required": False,
                        "description": "A repeat with the same key, by the same caller, returns the same turn; "
                        "one that failed for good (500) is tried again.",
                        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY_CHARACTERS},
                    },
                ],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _schema("MessageRequest")}},
                },
                "responses": {
                    "200": {
                        "description": "The answer; or, where text/event-stream is accepted, events `delta` "
                        '(`{"text"}`), then `done` (the answer) or `error`.',
                        "content": {
                            "application/json": {"schema": _schema("Answer")},
                            "text/event-stream": {"schema": _STRING},
                        },
                    },
                    "400": _error("The body is empty, not UTF-8, not JSON, or a field is wrong."),
                    "401": _error("No valid bearer token."),
                    "402": _error("The budget is used up."),
                    "403": _error("The token is for another workspace, or the origin or host is not ours."),
                    "404": _error("No such workspace."),
                    "409": _error("A newer message took the place of this one."),
                    "413": _error("The body is too large."),
                    "422": _error("The fixed part of the prompt does not fit the model's window."),
                    "429": _error("Too many messages.", "Retry-After"),
                    "500": _error("Something broke; a repeat with the same Idempotency-Key has it tried again."),
                    "503": _error("Nothing can be stored now; nothing was.", "Retry-After"),
                    "504": _error("The turn goes on; repeat with the same Idempotency-Key to have its answer."),
                },
            }
        }
    },
    "components": {
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "MessageRequest": _object(
                ["text"],
                text={"type": "string", "minLength": 1},
                context={"type": "string", "default": DEFAULT_CONTEXT, "description": "Which conversation this is."},
                author={"oneOf": [_STRING, _AUTHOR], "description": "Who speaks; without it the token's holder."},
                direct={"type": "boolean", "default": False, "description": "Only the author and the bot are there."},
            ),
            "Answer": _object(
                ["turn_id", "text", "sources", "strategy", "reason", "degraded", "usage"],
                turn_id=_STRING,
                text=_STRING,
                sources=_array(_object(["source", "heading"], source=_STRING, heading=_STRING)),
                strategy={"type": "string", "enum": ["none", "tail", "qmd", ""]},
                reason=_STRING,
                degraded=_array(_object(["block", "why"], block=_STRING, why=_STRING)),
                usage=_object(
                    ["prompt", "cached", "completion", "cost_usd"],
                    prompt=_INTEGER,
                    cached=_INTEGER,
                    completion=_INTEGER,
                    cost_usd={"type": "number"},
                    estimated={"type": "boolean", "description": "The provider said nothing: counted by the runtime."},
                ),
            ),
            "Error": _object(["error"], error=_object(["code", "message"], code=_STRING, message=_STRING)),
        },
    },
}
