"""Writes settings as TOML, so that they read back as they were. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dumps(values: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """*values* as a TOML document: strings, booleans, numbers, lists and tables of these.

    *comments* stand after the values of the top level that they name. Raises `TypeError` for anything else.
    """
    return "\n".join(_table(values, (), comments or {})).strip("\n") + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[str, str]) -> list[str]:
    lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
    for name, value in values.items():
        if not isinstance(value, Mapping):
            comment = f"  # {comments[name]}" if not path and name in comments else ""
            lines.append(f"{_key(name)} = {_value(value)}{comment}")
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", *_table(value, (*path, name), comments)]
    return lines


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
        case Mapping():
            return "{" + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} cannot be written to a configuration file")


def _string(text: str) -> str:
    escaped = "".join(_escaped(character) for character in text)
    return f'"{escaped}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character < " " or character == "\x7f":
        return f"\\u{ord(character):04X}"
    return character
