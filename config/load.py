"""Load settings from the environment, a TOML file and the defaults, and report all errors at once."""

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

from config.setting_types import URL_MISTAKE
from config.settings import GROUNDING_NUMBERS, SECRETS, Settings
from config.sigils import SHIPPED_SIGILS

ENVIRONMENT_PREFIX = "AGENT_RUNTIME_"
FILE_VARIABLE = "AGENT_RUNTIME_CONFIG"
COMMAND_VARIABLE = "AGENT_RUNTIME_COMMAND"
"""How the program was started (`runtime.cli.invocation`). Not a setting, so the loader skips it."""
DEFAULT_FILE = Path("agent-runtime.toml")
MASK = "**********"
_CREDENTIALS = re.compile(r"//.*@", re.DOTALL)
"""User and password in a text that contains a URL."""
_URL_SECRETS = re.compile(r"(?<=://).*@|^(?!.*://).*@|(?<=\?).*", re.DOTALL)
"""The secret parts of an invalid URL: user and password (also if the scheme is missing), and the query parameters."""

_REPLACED = {"codex_file_max_bytes": "document_max_bytes"}
"""Settings of earlier versions, and the one that holds in their place."""
REMOVED = {
    "attachment_max_pages",
    "attachment_timeout_seconds",
    "censor_retired_false_positives",
    "censors_max_tokens",
    "delivery_placeholder",
    "discord_timeout_seconds",
    "embedding_timeout_seconds",
    "environment_max_tokens",
    "environment_sample_seconds",
    "episode_summarized_days",
    "fact_core_confirmations",
    "frame_max_tokens",
    "index_stale_seconds",
    "karma_floor_max_tokens",
    "karma_max_tokens",
    "low_power",
    "now_max_tokens",
    "procedure_judged_activations",
    "record_relevance_floor",
    "record_weight_confidence",
    "record_weight_outcome",
    "record_weight_recency",
    "record_weight_similarity",
    "record_weight_type",
    "record_weight_usage",
    "records_decisions_max_tokens",
    "records_episodes_max_tokens",
    "records_facts_max_tokens",
    "records_items_max_tokens",
    "records_procedures_max_tokens",
    "reply_max_parts",
    "rerank_candidates",
    "rerank_timeout_seconds",
    "retrieval_candidates",
    "retrieval_centring",
    "retrieval_fusion",
    "retrieval_rrf_dense_weight",
    "retrieval_rrf_k",
    "retrieval_rrf_sparse_weight",
    "slack_timeout_seconds",
    "source_tree_max_tokens",
    "strategy_vocabulary_timeout_seconds",
    "telegram_timeout_seconds",
    "tool_result_max_tokens",
    "tool_timeout_seconds",
}
"""Settings of earlier versions whose default always holds."""
_QUOTED = re.compile(r"'([^']*)'")
_EXPECTED_BY_ERROR = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a TOML table, in a configuration file",
    "finite_number": "expected a finite number",
    "missing": "expected a value",
    "path_type": "expected the path of a folder",
    "tuple_type": "expected a list",
}
"""Expectations by pydantic's error type, for errors whose own message speaks of Python types."""


class ConfigurationError(Exception):
    """A configuration with mistakes. ``problems`` has one line for each mistake."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class DefaultedNumber:
    """A grounding number that was not a positive integer and got its default instead."""

    variable: str
    value: str
    default: int


@dataclass(frozen=True)
class LoadedSettings:
    """The loaded settings, the file they came from, and the numbers that got their defaults instead."""

    settings: Settings
    file: Path | None
    defaulted_numbers: tuple[DefaultedNumber, ...]


def load(environment: Mapping[str, str], file: Path | None = None) -> LoadedSettings:
    """Load the settings. *environment* overrides *file*, and *file* overrides the defaults.

    If *file* is None, reads the file that ``AGENT_RUNTIME_CONFIG`` names, else ``agent-runtime.toml`` in
    the working directory if it exists. Raises `ConfigurationError` with all mistakes together.
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
    defaulted_numbers = (
        DefaultedNumber(_variable(name), str(values[name]), Settings.model_fields[name].default)
        for name in GROUNDING_NUMBERS
        if _falls_back(name, values)
    )
    return LoadedSettings(settings, path, tuple(defaulted_numbers))


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in *environment* by name."""
    return {
        variable.removeprefix(ENVIRONMENT_PREFIX).lower(): text
        for variable, text in environment.items()
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in (FILE_VARIABLE, COMMAND_VARIABLE)
    }


def validate(values: Mapping[str, Any]) -> Settings:
    """Build the settings from *values*, keyed by setting name.

    A blank value means unset. A grounding number that is not a positive integer gets its default.
    Raises `ConfigurationError` with all mistakes together.
    """
    used = {name: value for name, value in values.items() if not (_is_blank(value) or _falls_back(name, values))}
    problems = _find_contradictions(used)
    try:
        settings = Settings.model_validate(used)
    except ValidationError as error:
        problems = [*(_describe(detail, used) for detail in error.errors()), *problems]
        raise ConfigurationError(problems) from None
    if problems:
        raise ConfigurationError(problems)
    return settings


def _find_contradictions(values: Mapping[str, Any]) -> list[str]:
    """Return the problems between settings: each setting may be valid alone, but not with the others.

    Checks unvalidated values, so that these problems are reported together with the others.
    """
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
            f"{_variable('sigil_bindings')}[{holder}]={name!r}: no such sigil; expected one of {', '.join(known)}"
            for holder, name in bindings.items()
            if isinstance(name, str) and name not in known
        ]
    return problems


def read_file(path: Path) -> dict[str, Any]:
    """Read the settings in the TOML file *path*, by name. Raises `ConfigurationError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"{FILE_VARIABLE}={path}: cannot be read ({error.strerror}); name a file that exists"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = f"{FILE_VARIABLE}={path}: is not valid TOML: {error}"
    raise ConfigurationError([problem])


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


def _falls_back(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether *name* is a grounding number whose value is not a positive integer (or is blank)."""
    return name in GROUNDING_NUMBERS and name in values and not _is_positive_integer(values[name])


def _is_positive_integer(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        digits = value.strip()
        # 19 digits are more than any budget needs; the bound also keeps int() from refusing a huge string.
        return digits.isascii() and digits.isdecimal() and len(digits) < 19 and int(digits) > 0
    return isinstance(value, int) and value > 0


def _describe(detail: ErrorDetails, values: Mapping[str, Any]) -> str:
    """Return one line about one mistake: the variable, its value (masked if secret), and what was expected."""
    expected = _EXPECTED_BY_ERROR.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    name = str(detail["loc"][0])
    keys = "".join(f"[{part}]" for part in detail["loc"][1:] if isinstance(part, str) and part != "[key]")
    if detail["type"] == "extra_forbidden" and keys:
        return f"{_variable(name)}{keys}={detail['input']!r}: no such key; see {_variable(name)} in docs/settings.md"
    if detail["type"] == "extra_forbidden" and name in _REPLACED:
        return f"{_variable(name)}: this setting is gone; set {_variable(_REPLACED[name])} instead"
    if detail["type"] == "extra_forbidden" and name in REMOVED:
        return f"{_variable(name)}: this setting is gone, and its default always holds; remove it"
    if detail["type"] == "extra_forbidden":
        if name.lower() in Settings.model_fields:
            return f"{name}: in a file, write {name.lower()}"
        close = difflib.get_close_matches(name, Settings.model_fields, 1)
        suggestion = f" Did you mean {_variable(close[0])}?" if close else ""
        return f"{_variable(name)}: no such setting.{suggestion} docs/settings.md lists the settings"
    if detail["type"] == "missing":
        return f"{_variable(name)}{keys} is missing: {expected}"
    value = detail.get("input", values.get(name))
    if detail["type"] == "literal_error":
        choices = _QUOTED.findall(detail["ctx"]["expected"])
        close = difflib.get_close_matches(str(value).lower(), choices, 1)
        expected = f"expected {detail['ctx']['expected']}" + (f". Did you mean {close[0]}?" if close else "")
    if name in SECRETS:
        shown = MASK
    elif detail["type"] == URL_MISTAKE:
        shown = repr(_URL_SECRETS.sub(lambda secret: MASK + "@" * secret[0].endswith("@"), value))
    else:
        shown = _CREDENTIALS.sub(f"//{MASK}@", repr(value))
    return f"{_variable(name)}{keys}={shown}: {expected}"


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()
