"""Maps errors of Redis that mean that the store is away, and limits the time of each call."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

from redis import exceptions as errors

from connectors.message import StoreUnavailable

_UNAVAILABLE: dict[type[Exception], str] = {
    errors.ConnectionError: "unreachable",
    errors.MaxConnectionsError: "no connection is free",
    errors.TimeoutError: "timeout",
    errors.BusyLoadingError: "loading",
    errors.AuthenticationError: "refuses the password",
    errors.AuthorizationError: "refuses this user",
    errors.ExternalAuthProviderError: "credentials cannot be had",
    errors.ReadOnlyError: "read-only",
    errors.OutOfMemoryError: "out of memory",
    errors.ClusterDownError: "the cluster is down",
    errors.MasterDownError: "the master is down",
    errors.ClusterError: "the cluster cannot be reached",
    errors.SlotNotCoveredError: "a part of the cluster is down",
    errors.TryAgainError: "the cluster is moving keys",
    errors.InvalidResponse: "speaks no Redis protocol",
    OSError: "unreachable",
}
"""Errors that mean "cannot be reached or cannot store"; the most specific class of an error counts."""

_UNAVAILABLE_REPLIES: dict[str, str] = {
    "MISCONF": "cannot write to its disk",
    "OOM": "out of memory",
    "READONLY": "read-only",
    "NOREPLICAS": "has too few replicas",
    "LOADING": "loading",
    "MASTERDOWN": "the master is down",
    "CLUSTERDOWN": "the cluster is down",
    "NOAUTH": "wants a password",
    "WRONGPASS": "refuses the password",
    "TRYAGAIN": "the cluster is moving keys",
    "UNBLOCKED": "gave up its role",
}
"""First words of error replies that mean the same; in scripts a prefix precedes them."""

_SCRIPT_PREFIX = re.compile(r"^ERR .*?: -(?=[A-Z])|^-")


def why_unavailable(error: BaseException) -> str | None:
    """Return in a few words why *error* means that the store is away; None if it means something else."""
    if isinstance(error, errors.RedisError | errors.RedisClusterException | OSError):
        for kind in type(error).__mro__:
            if kind in _UNAVAILABLE:
                return _UNAVAILABLE[kind]
    if isinstance(error, errors.ResponseError):
        words = _SCRIPT_PREFIX.sub("", str(error)).split(maxsplit=1)
        return _UNAVAILABLE_REPLIES.get(words[0]) if words else None
    return None


@contextlib.asynccontextmanager
async def answer_within(seconds: float) -> AsyncIterator[None]:
    """Limit a call to Redis to *seconds*, and raise `StoreUnavailable` if the store is away. Other errors pass."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise StoreUnavailable(f"Redis: timeout (no answer within {seconds:g} s)") from error
    except Exception as error:
        unavailable = _unavailable(error)
        if unavailable is None:
            raise
        raise unavailable from error


def translate_errors(answers: list[Any]) -> list[Any]:
    """Return the *answers* of a pipeline with `StoreUnavailable` in place of errors that mean that."""
    return [_unavailable(answer) or answer if isinstance(answer, Exception) else answer for answer in answers]


def _unavailable(error: Exception) -> StoreUnavailable | None:
    why = why_unavailable(error)
    if why is None:
        return None
    # An error reply may quote the command, which may contain what people wrote.
    detail = "" if isinstance(error, errors.ResponseError) else f" ({error})"
    return StoreUnavailable(f"Redis: {why}{detail}")
