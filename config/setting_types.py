"""The types of settings: which values are valid, and the error for the others."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from config.sigils import match_validator

MAX_VALUE = 10**12
"""The upper bound of counts, sizes and seconds: far above real values, and still valid in milliseconds for Redis and
the event loop."""
MAX_DAYS = 36_500
"""A century, so that a date minus this many days stays a valid date."""

Positive = Annotated[int, Field(gt=0, le=MAX_VALUE)]
Natural = Annotated[int, Field(ge=0, le=MAX_VALUE)]
Rate = Annotated[float, Field(ge=0, le=MAX_VALUE)]
"""Calls a second; 0 for no limit."""
PositiveSeconds = Annotated[float, Field(gt=0, le=MAX_VALUE)]
PositiveDays = Annotated[int, Field(gt=0, le=MAX_DAYS)]
BudgetTokens = Annotated[int, Field(ge=0, le=MAX_VALUE)]
BudgetUsd = Annotated[float, Field(ge=0, le=10**6)]
"""US dollars. Spending is counted in billionths of a dollar; up to this bound Redis holds every sum exactly."""


def _comma_separated(value: object) -> object:
    """Turn a list setting into a tuple. In the environment it is one comma-separated string, in TOML a list."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list):
        return tuple(value)
    return value


URL_MISTAKE = "url"
"""The type of pydantic's error for an invalid URL. `config.load` masks the secrets in such a value."""
_SEVERAL_HOSTS = ("redis+cluster", "redis+sentinel")
_WITH_DATABASE = ("redis", "rediss", "redis+sentinel")
_EXPECTED_HOST = "expected a host; an IPv6 address stands in brackets, e.g. [::1]"
_EXPECTED_PORT = "expected a port from 1 to 65535"


def url_validator(*schemes: str) -> BeforeValidator:
    """Return a validator for URLs of one of *schemes*, with a host and an optional port from 1 to 65535."""

    def check(value: object) -> object:
        if isinstance(value, str) and (expected := _find_url_mistake(value, schemes)):
            raise PydanticCustomError(URL_MISTAKE, "{expected}", {"expected": expected})
        return value

    return BeforeValidator(check)


def _find_url_mistake(value: str, schemes: tuple[str, ...]) -> str:
    """Return what was expected of *value*, or an empty text if it is valid.

    The text never quotes *value*, which may contain a password.
    """
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in schemes:
        return f"expected a URL starting with {' or '.join(f'{valid}://' for valid in schemes)}"
    if any(character.isspace() or not character.isprintable() for character in rest):
        return "expected a URL without spaces"
    if scheme == "unix":
        return "" if rest.strip("/") else "expected the path of a socket after unix://"
    try:
        parts = urlsplit(value)
    except ValueError:
        return _EXPECTED_HOST
    hosts, path = parts.netloc.rpartition("@")[2], parts.path.strip("/")
    for host in hosts.split(",") if scheme in _SEVERAL_HOSTS else [hosts]:
        if expected := _find_host_mistake(host):
            return expected
    if scheme == "redis+sentinel":
        service, _, path = path.partition("/")
        if not service:
            return "expected the name of the service after the hosts: redis+sentinel://host:26379/service"
    if scheme in _WITH_DATABASE and path and not (path.isascii() and path.isdecimal()):
        return "expected nothing after the host, or the number of a database, e.g. /0"
    return ""


def _find_host_mistake(host: str) -> str:
    """Return what was expected of ``host[:port]``, or an empty text if it is valid."""
    try:
        parts = urlsplit(f"//{host}")
        if not parts.hostname:
            return _EXPECTED_HOST
        parts.hostname.encode("idna")  # the form that DNS looks up
    except ValueError:
        return _EXPECTED_HOST
    try:
        return _EXPECTED_PORT if parts.port == 0 else ""
    except ValueError:
        return _EXPECTED_PORT


def prefixed_secret(prefix: str) -> BeforeValidator:
    """Return a validator for secrets that start with *prefix*."""

    def check(value: object) -> object:
        if isinstance(value, str) and not value.startswith(prefix):
            raise ValueError(f"expected a token starting with {prefix}")
        return value

    return BeforeValidator(check)


List = Annotated[tuple[str, ...], BeforeValidator(_comma_separated)]
UserId = Annotated[str, match_validator(r"[a-z]+:.+", "connector:user_id, e.g. telegram:42")]
UserIds = Annotated[tuple[UserId, ...], BeforeValidator(_comma_separated)]
Place = Annotated[str, match_validator(r"[a-z]+:.+", "connector:place, e.g. slack:T123")]
WorkspaceName = Annotated[
    str,
    match_validator(
        r"[a-z0-9][a-z0-9._-]{0,63}", "a workspace's id: up to 64 of a-z, 0-9, '.', _ and -, the first a-z or 0-9"
    ),
]

BUNDLED = "bundled/"
EXTRACTIVE, SMOLLM2 = "bundled/extractive", "bundled/smollm2"
BUNDLED_MODELS = (EXTRACTIVE, SMOLLM2)
"""Language models that need no provider. The first is the default; it quotes evidence instead of writing."""
BUNDLED_EMBEDDING_MODELS = ("bundled/wordllama", "bundled/minilm", "bundled/multilingual")
"""Embedding models that run in this process. The first is the default."""


def _check_embedding_model(value: object) -> object:
    if isinstance(value, str) and value.startswith(BUNDLED) and value not in BUNDLED_EMBEDDING_MODELS:
        raise ValueError(f"expected {', '.join(BUNDLED_EMBEDDING_MODELS)}, or a LiteLLM embedding id")
    return value


def _check_model(value: object) -> object:
    if isinstance(value, str) and value.startswith(BUNDLED) and value not in BUNDLED_MODELS:
        raise ValueError(f"expected {' or '.join(BUNDLED_MODELS)}, or a LiteLLM model id")
    return value


LanguageModel = Annotated[str, BeforeValidator(_check_model)]
LanguageModels = Annotated[tuple[LanguageModel, ...], BeforeValidator(_comma_separated)]
EmbeddingModel = Annotated[str, BeforeValidator(_check_embedding_model)]
WebUrl = Annotated[str, url_validator("http", "https")]
