"""The ``paths`` and ``components`` of this connector's route in ``/openapi.json``."""

from __future__ import annotations

from typing import Any

from connectors.http.convert import DEFAULT_CONTEXT, MAX_IDEMPOTENCY_KEY_CHARACTERS, MAX_NAME_CHARACTERS

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
