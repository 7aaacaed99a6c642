"""The types of settings: what a value must be, and what is said where it is not."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from config.matching import matching

MOST = 10**12
"""More than any count, size or time is set to, and in milliseconds still a number for Redis and the event loop."""
MOST_DAYS = 36_500
"""A century: no further back than the calendar goes."""

Positive = Annotated[int, Field(gt=0, le=MOST)]
Natural = Annotated[int, Field(ge=0, le=MOST)]
Weight = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, le=MOST)]
"""Calls a second; 0 for no limit."""
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


URL_MISTAKE = "url"
"""The type of pydantic's error for a value that is no URL: what is shown of the value then has no password in it."""
_SEVERAL_HOSTS = ("redis+cluster", "redis+sentinel")
_WITH_DATABASE = ("redis", "rediss", "redis+sentinel")
_A_HOST = "expected a host; an IPv6 address stands in brackets, e.g. [::1]"
_A_PORT = "expected a port from 1 to 65535"


def url(*schemes: str) -> BeforeValidator:
    """A URL of one of *schemes*, with a host and, where it names one, a port from 1 to 65535."""

    def check(value: object) -> object:
        if isinstance(value, str) and (expected := _expected_of_url(value, schemes)):
            raise PydanticCustomError(URL_MISTAKE, "{expected}", {"expected": expected})
        return value

    return BeforeValidator(check)


def _expected_of_url(value: str, schemes: tuple[str, ...]) -> str:
    """What was expected of *value*; empty where nothing is wrong. Never quotes it: it may hold a password."""
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in schemes:
        return f"expected a URL starting with {' or '.join(f'{one}://' for one in schemes)}"
    if any(character.isspace() or not character.isprintable() for character in rest):
        return "expected a URL without spaces"
    if scheme == "unix":
        return "" if rest.strip("/") else "expected the path of a socket after unix://"
    try:
        parts = urlsplit(value)
    except ValueError:
        return _A_HOST
    hosts, path = parts.netloc.rpartition("@")[2], parts.path.strip("/")
    for host in hosts.split(",") if scheme in _SEVERAL_HOSTS else [hosts]:
        if expected := _expected_of_host(host):
            return expected
    if scheme == "redis+sentinel":
        service, _, path = path.partition("/")
        if not service:
            return "expected the name of the service after the hosts: redis+sentinel://host:26379/service"
    if scheme in _WITH_DATABASE and path and not (path.isascii() and path.isdecimal()):
        return "expected nothing after the host, or the number of a database, e.g. /0"
    return ""


def _expected_of_host(host: str) -> str:
    """What was expected of ``host[:port]``; empty where nothing is wrong."""
    try:
        parts = urlsplit(f"//{host}")
        if not parts.hostname:
            return _A_HOST
        parts.hostname.encode("idna")  # as it is looked up
    except ValueError:
        return _A_HOST
    try:
        return _A_PORT if parts.port == 0 else ""
    except ValueError:
        return _A_PORT


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
EXTRACTIVE, SMOLLM2 = "bundled/extractive", "bundled/smollm2"
BUNDLED_MODELS = (EXTRACTIVE, SMOLLM2)
"""Language models that need no provider. The first quotes instead of writing, and is the default."""
_FORMER_NAMES = {"local/SmolLM2-135M-Instruct": SMOLLM2}
BUNDLED_EMBEDDING_MODELS = ("bundled/wordllama", "bundled/minilm")
"""Embedding models that run in this process. The first is the default."""


def _known_if_bundled(value: object) -> object:
    if isinstance(value, str) and value.startswith(BUNDLED) and value not in BUNDLED_EMBEDDING_MODELS:
        raise ValueError(f"expected {' or '.join(BUNDLED_EMBEDDING_MODELS)}, or a LiteLLM embedding id")
    return value


def _as_model(value: object) -> object:
    if not isinstance(value, str):
        return value
    name = _FORMER_NAMES.get(value, value)
    if name.startswith(BUNDLED) and name not in BUNDLED_MODELS:
        raise ValueError(f"expected {' or '.join(BUNDLED_MODELS)}, or a LiteLLM model id")
    return name


LanguageModel = Annotated[str, BeforeValidator(_as_model)]
LanguageModels = Annotated[tuple[LanguageModel, ...], BeforeValidator(_comma_separated)]
EmbeddingModel = Annotated[str, BeforeValidator(_known_if_bundled)]
WebUrl = Annotated[str, url("http", "https")]
