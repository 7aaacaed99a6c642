"""Keeps what people say, and secrets, out of events."""

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
"""What people write as the key of a server that needs none: no secrets, and words that events need."""
MAX_STRING_CHARACTERS = 2000
MAX_DEPTH = 6
MAX_BITS = 128
"""Python does not print numbers of thousands of digits."""

_TEXTS = (
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
_CREDENTIALS = ("token", "secret", "api_key", "password", "authorization", "credentials", "cookie", "code")
FORBIDDEN_KEYS = frozenset((*_TEXTS, *_CREDENTIALS))
"""Names of fields with what people say, what the model reads or writes, or credentials."""
_FORBIDDEN_ENDINGS = ("_text", "_prompt", "_content", "_secret", "_api_key", "_password", "_bearer", "_token")
_COUNTS = "tokens_"  # begins the names of numbers, such as tokens_prompt


class Redaction:
    """Turns the fields of an event into JSON values without forbidden names and known secrets."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        for secret in secrets:
            self.add(secret)

    @classmethod
    def of(cls, settings: Settings) -> Redaction:
        """Build one that knows the secrets of *settings* and the passwords in its URLs."""
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
        """Mask the password in *url*, as it is written there and as clients send it."""
        password = _password(url)
        self.add(password)
        self.add(unquote(password))

    def add(self, secret: str) -> None:
        """Mask *secret* from now on, as it is and as it is written in a URL."""
        if len(secret) >= SHORTEST_SECRET and secret.lower() not in PLACEHOLDERS:
            known = {*self._secrets, secret, quote(secret, safe="")}
            # The longest first: masking a part of a secret would leave the rest of it readable.
            self._secrets = tuple(sorted(known, key=lambda value: (-len(value), value)))

    def clean(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return *fields* as JSON values; ``redacted`` lists the names that were left out."""
        dropped: list[str] = []
        cleaned = self._mapping(fields, dropped, 0)
        if dropped:
            cleaned["redacted"] = sorted(set(dropped))
        return cleaned

    def mask(self, text: str) -> str:
        """Return *text* with every known secret masked."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def _mapping(self, fields: Mapping[Any, Any], dropped: list[str], depth: int) -> dict[str, Any]:
        cleaned = {}
        for key, value in fields.items():
            name = self.mask(str(key))
            if _is_forbidden(name):
                dropped.append(name)
            else:
                cleaned[name] = self._value(value, dropped, depth)
        return cleaned

    def _value(self, value: Any, dropped: list[str], depth: int) -> Any:
        if value is None or (isinstance(value, bool | int) and not isinstance(value, Enum)):
            return value if value is None or value.bit_length() < MAX_BITS else "…"
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
        return f"<{type(value).__name__}>"  # its repr might show anything

    def _string(self, value: str) -> str:
        value = self.mask(value)
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
