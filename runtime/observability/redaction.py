"""Keeps what people say, and what nobody may see, out of events. Pure, but for the set of secrets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr

from config.settings import SECRETS, Settings

MASK = "**********"
SHORTEST_SECRET = 4
"""Shorter values are not masked: they would hit ordinary words."""
PLACEHOLDERS = frozenset({"none", "null", "empty", "dummy", "unused", "no-key", "not-needed", "sk-none"})
"""What people write where a server wants no key: nobody's secret, and words that events need."""
MAX_STRING_CHARACTERS = 2000
MAX_DEPTH = 6
MOST_NAMES = 1000
"""Names of fields that are looked at once only. Ours are fewer; what libraries put into events has any number."""
_PLAIN = frozenset({int, bool, type(None)})

_SAID = (
    "text",
    "prompt",
    "content",
    "message",
    "messages",
    "body",
    "query",
    "delta",
    "answer",
    "reply",
    "summary",
    "transcript",
    "notice",
)
_DOORS = ("token", "secret", "api_key", "password", "authorization", "credentials", "cookie", "code")
FORBIDDEN_KEYS = frozenset((*_SAID, *_DOORS))
"""Names that carry what people say, what the model is told, or what opens a door."""
_FORBIDDEN_ENDINGS = ("_text", "_prompt", "_content", "_secret", "_api_key", "_password", "_bearer", "_token")
_COUNTS = "tokens_"  # numbers, such as tokens_prompt


class Redaction:
    """Turns the fields of an event into JSON values without forbidden names and known secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        """Names of fields that may be told, as they are told."""
        for secret in secrets:
            self.add(secret)

    @classmethod
    def of(cls, settings: Settings) -> Redaction:
        """One that knows the secrets of *settings*, and the passwords inside of URLs there."""
        redaction = cls()
        for name in SECRETS:
            value = getattr(settings, name)
            if isinstance(value, SecretStr):
                redaction.add(value.get_secret_value())
                redaction.add_password_of(value.get_secret_value())
        for name in type(settings).model_fields:
            value = getattr(settings, name)
            if isinstance(value, str):
                redaction.add_password_of(value)
        return redaction

    def add_password_of(self, url: str) -> None:
        """Mask the password in *url*, as it stands there and as clients send it."""
        password = _password(url)
        self.add(password)
        self.add(unquote(password))

    def add(self, secret: str) -> None:
        """Mask *secret* from now on, as it is and as it stands in a URL."""
        if len(secret) >= SHORTEST_SECRET and secret.lower() not in PLACEHOLDERS:
            known = {*self._secrets, secret, quote(secret, safe="")}
            # The longest first, lest a part of one hides the rest of it.
            self._secrets = tuple(sorted(known, key=lambda value: (-len(value), value)))
            self._names = {}

    def clean(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """*fields* as JSON values; the names that were taken out are listed under ``redacted``."""
        dropped: list[str] = []
        cleaned = self._mapping(fields, dropped, 0)
        if dropped:
            cleaned["redacted"] = sorted(set(dropped))
        return cleaned

    def mask(self, text: str) -> str:
        """*text* with every known secret masked."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def _mapping(self, fields: Mapping[Any, Any], dropped: list[str], depth: int) -> dict[str, Any]:
        cleaned = {}
        for key, value in fields.items():
            known = self._names.get(key) if type(key) is str else None
            if known is None:
                known = self.mask(str(key))
                if _is_forbidden(known):
                    dropped.append(known)
                    continue
                if type(key) is str and len(self._names) < MOST_NAMES:
                    self._names[key] = known
            kind = type(value)
            if kind in _PLAIN:
                cleaned[known] = value
            else:  # most others are words
                cleaned[known] = self._string(value) if kind is str else self._value(value, dropped, depth)
        return cleaned

    def _value(self, value: Any, dropped: list[str], depth: int) -> Any:
        if value is None or (isinstance(value, bool | int) and not isinstance(value, Enum)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, Enum):
            return self._value(value.value, dropped, depth)
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, PurePath):
            return self._string(str(value))
        if isinstance(value, datetime | date):
            return value.isoformat()
        if depth >= MAX_DEPTH:
            return "…"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return self._mapping(fields, dropped, depth + 1)
        if isinstance(value, Mapping):
            return self._mapping(value, dropped, depth + 1)
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item, dropped, depth + 1) for item in value]
        # Its repr might show anything.
        return f"<{type(value).__name__}>"

    def _string(self, value: str) -> str:
        for secret in self._secrets:
            if secret in value:
                value = value.replace(secret, MASK)
        return value if len(value) <= MAX_STRING_CHARACTERS else value[:MAX_STRING_CHARACTERS] + "…"


def _is_forbidden(name: str) -> bool:
    lowered = name.lower()
    if lowered.startswith(_COUNTS):
        return False
    return lowered in FORBIDDEN_KEYS or lowered.endswith(_FORBIDDEN_ENDINGS)


def _password(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""
