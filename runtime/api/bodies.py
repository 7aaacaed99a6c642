"""Reads request bodies within a limit of size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from runtime.api.errors import ApiError

DISCARDED_BYTES = 8_000_000
"""How much beyond the limit is read and thrown away: a client that still sends sees no answer."""


class Body(BaseModel):
    """Base of JSON bodies; an unknown field is an error, because a misspelt one would be lost."""

    model_config = ConfigDict(frozen=True, extra="forbid")


B = TypeVar("B", bound=BaseModel)


async def read_body(request: Request, limit: int, variable: str) -> bytes:
    """The whole body. Raises `ApiError` 413 beyond *limit* bytes, which the setting *variable* sets."""
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > limit + DISCARDED_BYTES:
            break
    if size > limit:
        message = f"the body is larger than {limit} bytes (AGENT_RUNTIME_{variable})"
        raise ApiError(413, "too_large", message, close=size > limit + DISCARDED_BYTES)
    return bytes(body)


async def read_json(request: Request, kind: type[B], limit: int) -> B:
    """The body as *kind*; an empty one counts as ``{}``. Raises `ApiError` 400, whose text names the field."""
    body = await read_body(request, limit, "HTTP_MAX_BODY_BYTES")
    try:
        return kind.model_validate_json(body.removeprefix(b"\xef\xbb\xbf").strip() or b"{}")
    except ValidationError as error:
        raise ApiError(400, "bad_request", describe(error)) from None


async def lines(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body's lines, without blank ones, as they come. Raises `ApiError` 413 for a line beyond *limit* bytes."""
    rest = bytearray()
    async for piece in request.stream():
        rest += piece
        *whole, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in whole:
            if line.strip():
                yield bytes(line)
        if len(rest) > limit:
            raise ApiError(413, "too_large", f"a line is longer than {limit} bytes", close=True)
    if rest.strip():
        yield bytes(rest)


_TAGS = {
    "union_tag_not_found": "it says which of several bodies this is, and is missing",
    "union_tag_invalid": "expected one of {expected_tags}",
}
"""What is said where the field that tells bodies apart is missing or unknown."""


def describe(error: ValidationError) -> str:
    """The first few mistakes, each as ``"field": what was expected``; values are never repeated."""
    found = []
    for one in error.errors(include_input=False, include_url=False)[:5]:
        where = ".".join(str(part) for part in one["loc"])
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] in _TAGS:
            where, message = one["ctx"]["discriminator"].strip("'"), _TAGS[one["type"]].format(**one["ctx"])
        found.append(f'"{where}": {message}' if where else message)
    return "; ".join(found)
