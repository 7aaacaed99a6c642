"""The errors of a Qdrant server's client, as ours: one table. Imported by `qdrant_server` alone, because the client's
import is slow."""

from __future__ import annotations

import httpx
from pydantic import ValidationError
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from grounding.documents.index import IndexUnavailable

ERRORS: tuple[tuple[type[Exception], bool, str], ...] = (
    (ResourceExhaustedResponse, True, "asks for fewer requests"),
    (ResponseHandlingException, True, "gave an answer that was not understood"),
    (UnexpectedResponse, True, "refused a request"),
    (ApiException, True, "failed"),
    (QdrantException, True, "failed"),
    (TimeoutError, True, "took too long"),
    (httpx.HTTPError, True, "cannot be reached"),
    (httpx.InvalidURL, False, "has an address that is no URL: check QDRANT_URL"),
    (ValidationError, False, "was sent something that its client refuses"),
    (OSError, True, "cannot be reached"),
    (ValueError, False, "was sent something that its client refuses"),
    (RuntimeError, True, "is closed"),
)
"""Class of the client's error → may it succeed later, and what to say. The first match counts."""

STATUSES: dict[int, tuple[bool, str]] = {
    400: (False, "refused a request"),
    401: (False, "wants another key: check QDRANT_API_KEY"),
    403: (False, "forbids this: check the rights of QDRANT_API_KEY"),
    404: (True, "has no such collection: run `agent-runtime index --fresh`"),
    409: (True, "is changing this collection"),
    413: (False, "refused a request for its size"),
    422: (False, "refused a request"),
}
"""HTTP status → the same, where the status says more; others below 500 are final, the rest may pass."""


def unavailable(error: Exception, place: str) -> IndexUnavailable:
    """*error* of the client as ours."""
    # The client tells of a call that never arrived as of an answer that it cannot read, with the truth behind it.
    if isinstance(error, ResponseHandlingException) and isinstance(error.source, httpx.HTTPError):
        error = error.source
    retryable, what = next((again, what) for kind, again, what in ERRORS if isinstance(error, kind))
    if isinstance(error, UnexpectedResponse) and error.status_code is not None:
        default = (error.status_code >= 500 or error.status_code in (408, 425, 429), what)
        retryable, what = STATUSES.get(error.status_code, default)
        what = f"{what} (HTTP {error.status_code})"
    return IndexUnavailable(f"the Qdrant server at {place} {what}: {type(error).__name__}", retryable=retryable)
