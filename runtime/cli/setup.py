"""The guided setup: questions, a try, and the configuration file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from config.load import ENVIRONMENT_PREFIX, ConfigurationError, read_environment, validate
from config.settings import Settings
from connectors.message import InvalidWorkspaceId, check_workspace_id
from runtime.cli import config_file
from runtime.cli.client import running
from runtime.cli.connecting import GUIDES, ask_secret, connect_platforms
from runtime.cli.invocation import Invocation, keep_events_off_the_screen, run
from runtime.cli.output import line, milliseconds, note, status_line
from runtime.cli.providers import (
    BUNDLED,
    COMPATIBLE,
    LM_STUDIO_URL,
    NAMES,
    PROVIDERS,
    LocalServer,
    Provider,
    find_local_servers,
    find_models,
    full_model_id,
)
from runtime.cli.trial import Trial, attempt
from runtime.llm import OLLAMA_URL
from runtime.platforms import platforms_on
from runtime.workspaces import SAMPLE

T = TypeVar("T")
_ADDRESSES = {"ollama": OLLAMA_URL, "lmstudio": f"{LM_STUDIO_URL}/v1"}
_SET_HERE = {
    *("llm_model", "llm_api_base", "llm_api_key", "default_workspace"),
    *(secret for guide in GUIDES for secret in guide.secrets),
}
"""The settings that the setup writes."""


@dataclass(frozen=True)
class Given:
    """The command line's options."""

    yes: bool
    provider: str | None
    model: str | None
    api_base: str | None
    api_key_env: str | None
    token_envs: Mapping[str, str]
    """Settings of platforms, and the environment variables that hold them."""
    workspace: str | None
    no_test: bool
    output: Path | None


@dataclass(frozen=True)
class Choice:
    """A model that was chosen; None stands for "unset"."""

    model: str | None
    api_base: str | None = None
    api_key: str | None = None

    @property
    def changes(self) -> dict[str, Any]:
        return {"llm_model": self.model, "llm_api_base": self.api_base, "llm_api_key": self.api_key}


def setup(invocation: Invocation, given: Given) -> int:
    """Ask (or with ``yes`` do not), try and write. The exit code."""
    path = given.output or config_file.target(invocation.config, os.environ)
    old = config_file.read(path)
    _check_what_stays(old)
    if not given.yes:
        line("Set up Agent Runtime: a model, platforms, and a first test. Ctrl-C quits without any change.\n")
    choice = _choose(given)
    while True:
        values = config_file.merged(old, choice.changes)
        settings = validate(values)
        if given.no_test:
            break
        trial = _try(settings)
        if not trial.why:
            break
        if given.yes:
            note("nothing was written; --no-test writes the file without testing the model")
            return 1
        if click.confirm("Write this configuration anyway?", default=False):
            break
        choice = _ask(None)
    secrets = {name: key for name, variable in given.token_envs.items() if (key := _key_from(variable))}
    values = config_file.merged(values, connect_platforms(values, secrets, yes=given.yes))
    values = config_file.merged(values, _choose_workspace(values, given))
    result = validate({**values, **read_environment(os.environ)})
    backup = config_file.write(path, config_file.merged({}, values), datetime.now().astimezone())
    _tell(path, backup, os.environ, result)
    return 0


def _check_what_stays(old: Mapping[str, Any]) -> None:
    """Before anything is asked: raises `config.load.ConfigurationError` where something is wrong with the file or the
    environment that the setup does not set anew."""
    outside = read_environment(os.environ)
    try:
        validate({**old, **outside})
    except ConfigurationError as error:
        try:
            validate({**{name: value for name, value in old.items() if name not in _SET_HERE}, **outside})
        except ConfigurationError:
            raise error from None  # with all mistakes


def _choose(given: Given) -> Choice:
    if given.provider is None and not given.yes:
        with status_line("looking for Ollama and LM Studio on this machine …"):
            servers = run(find_local_servers())
        return _ask(servers)
    return _by_options(given)


def _by_options(given: Given) -> Choice:
    """The model that the options name. Raises `click.UsageError`."""
    name = given.provider
    if name is None:
        if given.model is not None:
            return Choice(given.model, given.api_base, _key_from(given.api_key_env))
        raise click.UsageError("--yes needs --provider (bundled: no language model, answers are quotations)")
    if name not in NAMES:
        raise click.UsageError(f"no provider {name!r}; there are {', '.join(NAMES)}")
    if name == BUNDLED:
        return Choice(None)
    if name == COMPATIBLE and given.api_base is None:
        raise click.UsageError("--provider compatible needs --api-base, e.g. http://127.0.0.1:8000/v1")
    provider = next((known for known in PROVIDERS if known.name == name), None)
    model = given.model or (provider.suggestion if provider else None)
    key = _key_from(given.api_key_env)
    if model is None:
        model = _ask_model(name, given.api_base or _ADDRESSES[name], key, ask=not given.yes)
    if key is None and provider is not None and not given.yes:
        key = _ask_key(provider)
    return Choice(full_model_id(name, model), given.api_base or _ADDRESSES.get(name), key)


def _ask_model(provider: str, address: str, key: str | None, *, ask: bool) -> str:
    """A model of the server at *address*. Raises `click.UsageError` where nobody may be asked."""
    server = run(find_models(address, key))
    models = server.models if server is not None else ()
    if not ask:
        raise click.UsageError(f"--provider {provider} needs --model" + (f": {', '.join(models)}" if models else ""))
    return _pick(models) if models else str(click.prompt("Model"))


def _key_from(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise click.UsageError(f"the environment variable {variable} is not set")
    return os.environ[variable]


def _ask(servers: Sequence[LocalServer] | None) -> Choice:
    """Let the person choose; local servers are looked for again where *servers* is None."""
    found = run(find_local_servers()) if servers is None else servers
    options: list[tuple[str, Callable[[], Choice]]] = []
    for server in found:
        options += [(f"{server.title}, on this machine: {model}", _local(server, model)) for model in server.models]
        if not server.models:
            line(f"{server.title} runs on this machine, but has no models yet.")
    options += [(provider.title, _remote(provider)) for provider in PROVIDERS]
    options.append(("another server that speaks OpenAI's protocol", _ask_compatible))
    options.append(("no language model: answers are quotations from the documents", lambda: Choice(None)))
    if not found:
        line("Ollama and LM Studio do not run on this machine. The providers below need a key.")
    line("Which model should answer?")
    for number, (title, _) in enumerate(options, start=1):
        line(f"  {number:2}  {title}")
    number = click.prompt("Number", type=click.IntRange(1, len(options)), default=1)
    return options[number - 1][1]()


def _local(server: LocalServer, model: str) -> Callable[[], Choice]:
    return lambda: Choice(server.model_id(model), server.api_base)


def _remote(provider: Provider) -> Callable[[], Choice]:
    def ask() -> Choice:
        model = click.prompt(f"Model at {provider.title}", default=provider.suggestion)
        return Choice(full_model_id(provider.name, model), None, _ask_key(provider))

    return ask


def _ask_key(provider: Provider) -> str | None:
    """The key; None where it stays in the environment variable that the provider's clients read."""
    if os.environ.get(provider.key_variable) and click.confirm(
        f"Use the key in {provider.key_variable}? It is not written to the file.", default=True
    ):
        return None
    return ask_secret(f"Key for {provider.title} (not shown)")


def _ask_compatible() -> Choice:
    address = click.prompt("Address of the server, e.g. http://127.0.0.1:8000/v1").strip()
    key = click.prompt("Key, if it needs one (not shown)", hide_input=True, default="", show_default=False).strip()
    with status_line(f"asking {address} for its models …"):
        server = run(find_models(address, key or None))
    if server is None or not server.models:
        line(f"{address} does not list its models." if server is None else f"{address} has no model yet.")
        model = click.prompt("Model")
    else:
        model = _pick(server.models)
        address = server.api_base
    return Choice(full_model_id(COMPATIBLE, model), address, key or None)


def _pick(models: Sequence[str]) -> str:
    """One of *models*, by its number or name; another name is taken as it is."""
    for number, model in enumerate(models, start=1):
        line(f"  {number:2}  {model}")
    answer = str(click.prompt("Number or name of the model", default="1")).strip()
    is_number = answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(models)
    return models[int(answer) - 1] if is_number else answer


def _try(settings: Settings) -> Trial:
    shown = settings.model_name
    keep_events_off_the_screen(settings)
    with status_line(f"asking {shown} for a first answer …"):
        trial = run(attempt(settings))
    if trial.why:
        note(f"No answer from {shown}: {trial.detail}")
        note(f"→ {trial.advice}")
    else:
        line(f"{trial.model} answered in {milliseconds(trial.latency_ms)}: {trial.answer}")
    return trial


def _tell(path: Path, backup: Path | None, environment: Mapping[str, str], settings: Settings) -> None:
    line(f"\nwritten: {path}" + (f" (the old one is {backup})" if backup else ""))
    platforms = (secret.upper() for guide in GUIDES for secret in guide.secrets)
    for name in ("LLM_MODEL", "LLM_API_BASE", "LLM_API_KEY", *platforms):
        if environment.get(ENVIRONMENT_PREFIX + name):
            note(f"{ENVIRONMENT_PREFIX}{name} is set in the environment; the environment overrides the file")
    runs = "runs the bot for the platforms, with its chat page and HTTP interface"
    if not platforms_on(settings):
        runs = "runs the bot with a chat page and an HTTP interface (no platform is connected)"
    line(f"Next: `agent-runtime chat` starts a chat here; `agent-runtime serve` {runs}.")
    if run(_is_running(settings)):
        note("An agent-runtime process runs on this data folder. Restart it, so that it reads the new file.")


def _choose_workspace(values: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Which workspace people on the platforms talk to, where one is connected; what is not changed is not written."""
    settings = validate(values)
    name = given.workspace
    if name is None and platforms_on(settings) and not given.yes and not settings.workspace_per_place:
        folder = Path(os.environ.get(f"{ENVIRONMENT_PREFIX}DATA_DIR") or settings.data_dir) / "workspaces"
        existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        line("Which workspace do people on the platforms talk to? The bot answers from its documents.")
        line(
            f"  Existing: {', '.join(sorted(existing | {SAMPLE, settings.default_workspace}))}. A new name creates one."
        )
        name = click.prompt("Workspace", default=settings.default_workspace, value_proc=_workspace_name)
    if name is None or name == settings.default_workspace:
        return {}
    return {"default_workspace": name}


def _workspace_name(text: str) -> str:
    try:
        return check_workspace_id(text.strip())
    except InvalidWorkspaceId as error:
        raise click.UsageError(str(error)) from None


async def _is_running(settings: Settings) -> bool:
    async with running(settings) as client:
        return client is not None
