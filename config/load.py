"""Reads settings from the environment, a TOML file and the defaults, and reports all errors at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.settings import GROUNDING_NUMBERS, SECRETS, Settings

ENVIRONMENT_PREFIX = "AGENT_RUNTIME_"
FILE_VARIABLE = "AGENT_RUNTIME_CONFIG"
DEFAULT_FILE = Path("agent-runtime.toml")
MASK = "**********"
_PASSWORD = re.compile(r"//\S*@")
"""User and password of a URL, or what was meant to be one."""

_EXPECTED = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a TOML table, in a configuration file",
    "finite_number": "expected a number that is finite",
    "path_type": "expected the path of a folder",
    "tuple_type": "expected a list",
}
"""What is said instead of pydantic's own words, where those speak of Python."""


class ConfigurationError(Exception):
    """Raised with every mistake of a configuration, one line each in ``problems``."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class FallenBack:
    """A grounding number that was no positive integer, so that its default is used."""

    variable: str
    value: str
    default: int


@dataclass(frozen=True)
class Loaded:
    """Settings, the file they came from, and the numbers that fell back to their defaults."""

    settings: Settings
    file: Path | None
    fallen_back: tuple[FallenBack, ...]


def load(environment: Mapping[str, str], file: Path | None = None) -> Loaded:
    """Settings from *environment* over *file* over the defaults.

    Without *file* the one named by ``AGENT_RUNTIME_CONFIG`` is read, else ``agent-runtime.toml`` in
    the working directory where there is one. Raises `ConfigurationError` with all mistakes together.
    """
    problems: list[str] = []
    path, values = _read_file(environment, file, problems)
    origins = {name: _variable(name) for name in values}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == FILE_VARIABLE:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        values[name] = text
        origins[name] = variable
    values = {name: value for name, value in values.items() if not _is_unset(name, value)}
    fallen_back = _fall_back(values, origins)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems.extend(_describe(detail, values) for detail in error.errors())
        raise ConfigurationError(problems) from None
    if problems:
        raise ConfigurationError(problems)
    return Loaded(settings, path, fallen_back)


def _read_file(
    environment: Mapping[str, str], file: Path | None, problems: list[str]
) -> tuple[Path | None, dict[str, Any]]:
    path = file or (Path(environment[FILE_VARIABLE]) if environment.get(FILE_VARIABLE) else None)
    if path is None:
        if not DEFAULT_FILE.is_file():
            return None, {}
        path = DEFAULT_FILE
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{FILE_VARIABLE}={path}: cannot be read ({error.strerror}); name a file that exists")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{FILE_VARIABLE}={path}: is not valid TOML: {error}")
    return path, {}


def _fall_back(values: dict[str, Any], origins: Mapping[str, str]) -> tuple[FallenBack, ...]:
    fallen_back = []
    for name in GROUNDING_NUMBERS:
        if name in values and not _is_positive_integer(values[name]):
            default = Settings.model_fields[name].default
            fallen_back.append(FallenBack(origins[name], str(values.pop(name)), default))
    return tuple(fallen_back)


def _is_unset(name: str, value: object) -> bool:
    """Whether a setting is given as nothing; the grounding numbers fall back instead, and are named."""
    return isinstance(value, str) and not value.strip() and name not in GROUNDING_NUMBERS


def _is_positive_integer(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        # More digits than any budget has: also keeps int() from refusing a huge string.
        return value.strip().isdecimal() and len(value.strip()) < 19 and int(value) > 0
    return isinstance(value, int) and value > 0


def _describe(detail: ErrorDetails, values: Mapping[str, Any]) -> str:
    """One line for one mistake: the variable, its value (masked if secret), what was expected."""
    expected = _EXPECTED.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    name = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        return f"{_variable(name)}: no such setting; see the list of settings in docs/settings.md"
    shown = MASK if name in SECRETS else _PASSWORD.sub(f"//{MASK}@", repr(detail.get("input", values.get(name))))
    where = "".join(f"[{part}]" for part in detail["loc"][1:] if isinstance(part, str) and part != "[key]")
    return f"{_variable(name)}{where}={shown}: {expected}"


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()
