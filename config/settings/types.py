"""The types of settings: what a value must be, and what is said where it is not."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from config.matching import matching

MOST = 10**12
"""More than any count, size or time is set to, and in milliseconds still a number for Redis and the event loop."""
MOST_DAYS = 36_500
"""A century: no further back than the calendar goes."""

Positive = Annotated[int, Field(gt=0, le=MOST)]
Natural = Annotated[int, Field(ge=0, le=MOST)]
Weight = Annotated[float, Field(ge=0, le=1)]
PositiveSeconds = Annotated[float, Field(gt=0, le=MOST)]
PositiveDays = Annotated[int, Field(gt=0, le=MOST_DAYS)]
BudgetTokens = Annotated[int, Field(ge=0, le=MOST)]
BudgetUsd = Annotated[float, Field(ge=0, le=10**6)]
"""Counted in billionths of a dollar: up to here every sum of them is exact in Redis's numbers, too."""


def _comma_separated(value: object) -> object:
    """A list setting is one comma-separated string in the environment, a list in TOML."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list):
        return tuple(value)
    return value


def url_with_scheme(*schemes: str) -> BeforeValidator:
    def check(value: object) -> object:
        if isinstance(value, str):
            try:
                parts = urlsplit(value)
            except ValueError:
                # Its text may quote the user and password.
                raise ValueError("expected a URL; this one cannot be read") from None
            if parts.scheme not in schemes or not (parts.netloc or parts.path):
                raise ValueError(f"expected a URL starting with {' or '.join(s + '://' for s in schemes)}")
        return value

    return BeforeValidator(check)


def prefixed_secret(prefix: str) -> BeforeValidator:
    def check(value: object) -> object:
        if isinstance(value, str) and not value.startswith(prefix):
            raise ValueError(f"expected a token starting with {prefix}")
        return value

    return BeforeValidator(check)


List = Annotated[tuple[str, ...], BeforeValidator(_comma_separated)]
UserId = Annotated[str, matching(r"[a-z]+:.+", "connector:user_id, e.g. telegram:42")]
UserIds = Annotated[tuple[UserId, ...], BeforeValidator(_comma_separated)]
Place = Annotated[str, matching(r"[a-z]+:.+", "connector:place, e.g. slack:T123")]
WorkspaceName = Annotated[
    str,
    matching(
        r"[a-z0-9][a-z0-9._-]{0,63}", "a workspace's id: up to 64 of a-z, 0-9, '.', _ and -, the first a-z or 0-9"
    ),
]

BUNDLED = "bundled/"
BUNDLED_EMBEDDING_MODELS = ("bundled/wordllama", "bundled/minilm")
"""Embedding models that run in this process. The first is the default."""


def _known_if_bundled(value: object) -> object:
    if isinstance(value, str) and value.startswith(BUNDLED) and value not in BUNDLED_EMBEDDING_MODELS:
        raise ValueError(f"expected {' or '.join(BUNDLED_EMBEDDING_MODELS)}, or a LiteLLM embedding id")
    return value


EmbeddingModel = Annotated[str, BeforeValidator(_known_if_bundled)]
WebUrl = Annotated[str, url_with_scheme("http", "https")]
