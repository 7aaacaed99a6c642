"""Reads settings from the environment, a TOML file and the defaults, and reports all errors at once."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.settings import GROUNDING_NUMBERS, SECRETS, Settings
from config.settings.types import URL_MISTAKE
from config.sigils import SHIPPED_SIGILS

ENVIRONMENT_PREFIX = "AGENT_RUNTIME_"
FILE_VARIABLE = "AGENT_RUNTIME_CONFIG"
COMMAND_VARIABLE = "AGENT_RUNTIME_COMMAND"
"""How the program was started (`runtime.cli.invocation`); no setting."""
DEFAULT_FILE = Path("agent-runtime.toml")
MASK = "**********"
_PASSWORD = re.compile(r"//.*@", re.DOTALL)
"""User and password of a URL, or what was meant to be one."""
_SECRETS_OF_URL = re.compile(r"(?<=://).*@|^(?!.*://).*@|(?<=\?).*", re.DOTALL)
"""Of a value that was meant to be a URL: user and password, also where the scheme is missing, and its parameters."""

_QUOTED = re.compile(r"'([^']*)'")
_EXPECTED = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a TOML table, in a configuration file",
    "finite_number": "expected a finite number",
    "missing": "expected a value",
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
    path = file or (Path(environment[FILE_VARIABLE]) if environment.get(FILE_VARIABLE) else None)
    if path is None and DEFAULT_FILE.is_file():
        path = DEFAULT_FILE
    values: dict[str, Any] = {}
    try:
        values = read_file(path) if path else {}
    except ConfigurationError as error:
        problems = error.problems
    values |= read_environment(environment)
    try:
        settings = validate(values)
    except ConfigurationError as error:
        raise ConfigurationError([*problems, *error.problems]) from None
    if problems:
        raise ConfigurationError(problems)
    fallen_back = (
        FallenBack(_variable(name), str(values[name]), Settings.model_fields[name].default)
        for name in GROUNDING_NUMBERS
        if _falls_back(name, values)
    )
    return Loaded(settings, path, tuple(fallen_back))


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings in *environment*, by name."""
    return {
        variable.removeprefix(ENVIRONMENT_PREFIX).lower(): text
        for variable, text in environment.items()
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in (FILE_VARIABLE, COMMAND_VARIABLE)
    }


def validate(values: Mapping[str, Any]) -> Settings:
    """*values* by the names of settings, as settings: blank ones are unset, grounding numbers that are no positive
    integers have their default. Raises `ConfigurationError` with all mistakes together."""
    given = {name: one for name, one in values.items() if not (_is_unset(one) or _falls_back(name, values))}
    problems = _find_contradictions(given)
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        problems = [*(_describe(detail, given) for detail in error.errors()), *problems]
        raise ConfigurationError(problems) from None
    if problems:
        raise ConfigurationError(problems)
    return settings


def _find_contradictions(values: Mapping[str, Any]) -> list[str]:
    """What is wrong between settings, each of which may be right; whatever else is wrong with them."""
    problems = []
    if "slack_bot_token" in values and not {"slack_app_token", "slack_signing_secret"} & values.keys():
        problems.append(
            f"{_variable('slack_bot_token')}={MASK}: expected {_variable('slack_app_token')} (Socket Mode) or "
            f"{_variable('slack_signing_secret')} (events over HTTP) beside it"
        )
    sigils, bindings = values.get("sigils", {}), values.get("sigil_bindings", {})
    if isinstance(sigils, dict) and isinstance(bindings, dict):
        known = sorted({*SHIPPED_SIGILS, *sigils})
        problems += [
            f"{_variable('sigil_bindings')}[{bound}]={name!r}: no such sigil; expected one of {', '.join(known)}"
            for bound, name in bindings.items()
            if isinstance(name, str) and name not in known
        ]
    return problems


def read_file(path: Path) -> dict[str, Any]:
    """The settings in the TOML file *path*, by name. Raises `ConfigurationError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"{FILE_VARIABLE}={path}: cannot be read ({error.strerror}); name a file that exists"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = f"{FILE_VARIABLE}={path}: is not valid TOML: {error}"
    raise ConfigurationError([problem])


def _is_unset(value: object) -> bool:
    """Whether a setting is given as nothing."""
    return isinstance(value, str) and not value.strip()


def _falls_back(name: str, values: Mapping[str, Any]) -> bool:
    """Whether *name* is a grounding number that is given as no positive integer; as nothing, too."""
    return name in GROUNDING_NUMBERS and name in values and not _is_positive_integer(values[name])


def _is_positive_integer(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        digits = value.strip()
        # More digits than any budget has: also keeps int() from refusing a huge string.
        return digits.isascii() and digits.isdecimal() and len(digits) < 19 and int(digits) > 0
    return isinstance(value, int) and value > 0


def _describe(detail: ErrorDetails, values: Mapping[str, Any]) -> str:
    """One line for one mistake: the variable, its value (masked if secret), what was expected."""
    expected = _EXPECTED.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    name = str(detail["loc"][0])
    where = "".join(f"[{part}]" for part in detail["loc"][1:] if isinstance(part, str) and part != "[key]")
    if detail["type"] == "extra_forbidden" and where:
        return f"{_variable(name)}{where}={detail['input']!r}: no such key; see {_variable(name)} in docs/settings.md"
    if detail["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, Settings.model_fields, 1)
        meant = f" Did you mean {_variable(close[0])}?" if close else ""
        return f"{_variable(name)}: no such setting.{meant} docs/settings.md lists the settings"
    if detail["type"] == "missing":
        return f"{_variable(name)}{where} is missing: {expected}"
    value = detail.get("input", values.get(name))
    if detail["type"] == "literal_error":
        choices = _QUOTED.findall(detail["ctx"]["expected"])
        close = difflib.get_close_matches(str(value).lower(), choices, 1)
        expected = f"expected {detail['ctx']['expected']}" + (f". Did you mean {close[0]}?" if close else "")
    if name in SECRETS:
        shown = MASK
    elif detail["type"] == URL_MISTAKE:
        shown = repr(_SECRETS_OF_URL.sub(lambda found: MASK + "@" * found[0].endswith("@"), value))
    else:
        shown = _PASSWORD.sub(f"//{MASK}@", repr(value))
    return f"{_variable(name)}{where}={shown}: {expected}"


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()
