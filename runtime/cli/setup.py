"""The guided setup: questions, a try, and the configuration file."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx

from config.load import (
    DEFAULT_FILE,
    ENVIRONMENT_PREFIX,
    FILE_VARIABLE,
    ConfigurationError,
    read_environment,
    read_file,
    validate,
)
from config.settings import Settings
from connectors.connector import Examined
from connectors.message import InvalidWorkspaceId, check_workspace_id
from runtime.cli.client import running
from runtime.cli.invocation import Invocation, keep_events_off_the_screen, run
from runtime.cli.output import line, milliseconds, note, status_line
from runtime.embedded import local_model
from runtime.ingress import examine_platform, platforms_on
from runtime.llm import OLLAMA_URL, Model, ModelFailed
from runtime.workspaces import SAMPLE

# ---- connecting ----
#
# The part of the guided setup that connects platforms: what to do there, the tokens, and whether they work.


Changes = dict[str, Any]

BASES = ("TELEGRAM_API_BASE", "SLACK_API_BASE", "DISCORD_API_BASE", "HTTP_PUBLIC_URL")
"""Settings of the environment by which platforms are asked here, too."""
_SOCKET_MODE, _HTTP = 1, 2


@dataclass(frozen=True)
class Guide:
    """How a platform is connected. ``setting`` says whether it is; ``secrets`` are its settings and their options."""

    name: str
    title: str
    setting: str
    secrets: tuple[str, ...]
    steps: tuple[str, ...]
    ask: Callable[[], Changes]
    afterwards: str


def ask_secret(prompt: str) -> str:
    """What was typed, unseen."""
    secret: str = click.prompt(prompt, hide_input=True)
    return secret.strip()


def connect_platforms(values: Mapping[str, Any], given: Mapping[str, str], *, yes: bool) -> Changes:
    """The settings of the platforms that are to be connected: of those whose secrets are *given* by setting, and,
    unless *yes*, of those that the person wants.

    Raises `click.ClickException` where given secrets do not work.
    """
    changes: Changes = {}
    for guide in GUIDES:
        secrets = {name: given[name] for name in guide.secrets if name in given}
        if secrets:
            changes |= _connect_given(guide, values, secrets)
        elif not yes:
            changes |= _connect_asked(guide, values)
    if changes:
        line("Send the bot a direct message: it answers with a code.")
        line("`agent-runtime access approve CODE --role admin` makes you its admin. It then tells you who else asks.")
    return changes


def _connect_given(guide: Guide, values: Mapping[str, Any], secrets: Changes) -> Changes:
    if guide.setting not in secrets and guide.setting not in values:
        raise click.UsageError(f"{guide.title} also needs the bot's token: give --{guide.name}-token-env")
    if "slack_signing_secret" in secrets:  # with an app-level token Socket Mode would go on
        secrets = {"slack_app_token": None, **secrets}
    examined = _examine(guide, values, secrets)
    _tell(guide, examined)
    if examined.problems:
        raise click.ClickException(f"{guide.title} is not connected; nothing was written")
    line(guide.afterwards)
    return secrets


def _connect_asked(guide: Guide, values: Mapping[str, Any]) -> Changes:
    another = f"A {guide.title} bot is connected. Connect another one instead?"
    question = another if guide.setting in values else f"Connect a {guide.title} bot?"
    shown = default = False
    while click.confirm(question, default=default):
        if not shown:
            for step in guide.steps:
                line(f"  {step}")
            shown = True
        secrets = guide.ask()
        try:
            examined = _examine(guide, values, secrets)
        except ConfigurationError as error:
            for problem in error.problems:
                note(f"→ {problem}")
        else:
            _tell(guide, examined)
            works = not examined.problems
            if works or (examined.who and click.confirm("Keep it anyway? You can correct it later", default=True)):
                line(guide.afterwards)
                return secrets
        question, default = "Try again?", True
    return {}


def _examine(guide: Guide, values: Mapping[str, Any], secrets: Changes) -> Examined:
    """What the platform says, at the address that the environment or the file names. Raises `ConfigurationError`."""
    set_here = {name.lower(): os.environ.get(ENVIRONMENT_PREFIX + name) for name in BASES}
    addresses = {name: value for name, value in set_here.items() if value}
    # None takes a setting away, as in the file.
    wanted = {name: value for name, value in {**values, **addresses, **secrets}.items() if value is not None}
    with status_line(f"asking {guide.title} …"):
        return run(examine_platform(validate(wanted), guide.name))


def _tell(guide: Guide, examined: Examined) -> None:
    if examined.who:
        line(f"{guide.title}: the bot is {examined.who}.")
    for problem in examined.problems:
        note(f"✗ {problem.detail}")
        note(f"→ {problem.advice}")
    if examined.invitation:
        line(f"Add the bot to a server with this link: {examined.invitation}")


def _ask_telegram() -> Changes:
    return {"telegram_bot_token": ask_secret("Token from @BotFather (not shown)")}


def _ask_slack() -> Changes:
    token = ask_secret("Bot User OAuth Token, xoxb-… (not shown)")
    line("How does Slack send events?")
    line(f"  {_SOCKET_MODE}  by Socket Mode: this machine need not be reachable from the internet")
    line(f"  {_HTTP}  over HTTP: Slack posts them to /slack/events and /slack/commands on this machine")
    if click.prompt("Number", type=click.IntRange(_SOCKET_MODE, _HTTP), default=_SOCKET_MODE) == _SOCKET_MODE:
        app_token = ask_secret("App-level token with the scope connections:write, xapp-… (not shown)")
        return {"slack_bot_token": token, "slack_app_token": app_token}
    secret = ask_secret("Signing secret, under Basic Information (not shown)")
    return {"slack_bot_token": token, "slack_app_token": None, "slack_signing_secret": secret}


def _ask_discord() -> Changes:
    return {"discord_bot_token": ask_secret("Bot token (not shown)")}


GUIDES = (
    Guide(
        "telegram",
        "Telegram",
        "telegram_bot_token",
        ("telegram_bot_token",),
        ("In Telegram, send /newbot to @BotFather and answer its questions. It shows the bot's token.",),
        _ask_telegram,
        "Write to the bot, or add it to a group and mention it there.",
    ),
    Guide(
        "slack",
        "Slack",
        "slack_bot_token",
        ("slack_bot_token", "slack_app_token", "slack_signing_secret"),
        (
            "At api.slack.com/apps: Create New App, From a manifest, and paste deploy/slack-manifest.yaml.",
            "Under Install App, install the app. The page then shows the Bot User OAuth Token.",
            "Under Basic Information, App-Level Tokens: generate one with the scope connections:write. For events",
            "over HTTP, use the signing secret instead, and change the lines marked HTTP in the manifest.",
        ),
        _ask_slack,
        "Write to the bot, or invite it to a channel and mention it there.",
    ),
    Guide(
        "discord",
        "Discord",
        "discord_bot_token",
        ("discord_bot_token",),
        (
            "At discord.com/developers/applications: New Application. Under Bot, Reset Token shows the token.",
            "On the same page, switch the Message Content Intent on.",
        ),
        _ask_discord,
        "Add the bot to your server with that link, then mention it there.",
    ),
)


# ---- providers ----
#
# Where models can be had: providers by name, and servers on this machine that answer.


LM_STUDIO_URL = "http://127.0.0.1:1234"
LOOK_SECONDS = 1.5


@dataclass(frozen=True)
class Provider:
    """A provider of models: its word, its LiteLLM prefix, a model to begin with, and the usual variable of its key."""

    name: str
    title: str
    prefix: str
    suggestion: str
    key_variable: str


PROVIDERS = (
    Provider("anthropic", "Anthropic", "anthropic/", "claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    Provider("openai", "OpenAI", "openai/", "gpt-5-mini", "OPENAI_API_KEY"),
    Provider("openrouter", "OpenRouter", "openrouter/", "anthropic/claude-sonnet-4.5", "OPENROUTER_API_KEY"),
    Provider("gemini", "Google Gemini", "gemini/", "gemini-2.5-flash", "GEMINI_API_KEY"),
    Provider("mistral", "Mistral", "mistral/", "mistral-small-latest", "MISTRAL_API_KEY"),
)
COMPATIBLE = "compatible"
"""Any server that speaks OpenAI's protocol."""
BUNDLED = "bundled"
"""No language model: answers are quotations."""
NAMES = (*(provider.name for provider in PROVIDERS), "ollama", "lmstudio", COMPATIBLE, BUNDLED)


@dataclass(frozen=True)
class LocalServer:
    """A model server and the models it has."""

    name: str
    title: str
    api_base: str
    models: tuple[str, ...]

    def model_id(self, model: str) -> str:
        """LiteLLM's id of *model*."""
        return f"ollama_chat/{model}" if self.name == "ollama" else f"openai/{model}"


async def find_local_servers(
    ollama_url: str = OLLAMA_URL, lm_studio_url: str = LM_STUDIO_URL, seconds: float = LOOK_SECONDS
) -> list[LocalServer]:
    """The model servers that answer on this machine within *seconds*. Raises nothing."""
    # A proxy that the environment names is not for this machine.
    async with httpx.AsyncClient(timeout=seconds, trust_env=False) as http:
        tags, models = await asyncio.gather(
            _names(http, f"{ollama_url}/api/tags", "models", "name"),
            _names(http, f"{lm_studio_url}/v1/models", "data", "id"),
        )
    found = []
    if tags is not None:
        found.append(LocalServer("ollama", "Ollama", ollama_url, tags))
    if models is not None:
        found.append(LocalServer("lmstudio", "LM Studio", f"{lm_studio_url}/v1", models))
    return found


async def find_models(address: str, key: str | None = None, seconds: float = LOOK_SECONDS) -> LocalServer | None:
    """The server at *address* that speaks OpenAI's protocol, with its models; None where it does not list them.

    Its address as clients want it ends in /v1, which people leave out. Raises nothing.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = address.rstrip("/")
    async with httpx.AsyncClient(timeout=seconds, headers=headers) as http:
        for api_base in (base, f"{base}/v1"):
            models = await _names(http, f"{api_base}/models", "data", "id")
            if models is not None:
                return LocalServer(COMPATIBLE, "the server", api_base, models)
    return None


async def _names(http: httpx.AsyncClient, url: str, items: str, name: str) -> tuple[str, ...] | None:
    """The values of *name* in the list *items* that *url* answers; None where nothing of the kind answers."""
    try:
        response = await http.get(url)
        return tuple(str(item[name]) for item in response.raise_for_status().json()[items])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


def full_model_id(provider: str, model: str) -> str:
    """*model* as LiteLLM names it for *provider*; one that has the prefix keeps it."""
    prefix = next((known.prefix for known in PROVIDERS if known.name == provider), "")
    prefix = {"ollama": "ollama_chat/", "lmstudio": "openai/", COMPATIBLE: "openai/"}.get(provider, prefix)
    return model if model.startswith(prefix) else prefix + model


# ---- trial ----
#
# One real call to a model, and what to do when it fails.


QUESTION = "Hello!"
TRIAL_TOKENS = 400
"""Enough for a model that thinks before it speaks."""

ADVICE = {
    "auth": "the provider does not accept the key: check the key, and whether it may use this model",
    "not_found": "check the model's name, the part before the slash, and the address (it often ends in /v1)",
    "budget": "the account has no credit left: add credit, or choose another model",
    "rate_limited": "the provider is busy or the quota is used up: wait a minute and run setup again",
    "timeout": "no answer in time: is the server busy loading the model? A higher llm_timeout_seconds gives it longer",
    "unreachable": "is the server running, and is the address right?",
    "unavailable": "the provider has a problem: try again later, or choose another model",
    "content_policy": "the provider refuses to answer a greeting: choose another model",
    "context_window": "the model's window is too small: choose a model with a larger one",
    "bad_request": "the provider does not understand the request: is this a chat model?",
    "bad_response": "the server does not speak OpenAI's protocol: check the address (it often ends in /v1)",
    "broken_stream": "the connection broke in the middle of the answer: try again",
    "empty": "the model answered nothing: choose another one",
}
"""What to do, by `runtime.llm.ModelFailed.why`."""


@dataclass(frozen=True)
class Trial:
    """What came of it: the answer and its time in milliseconds, or why there is none."""

    answer: str = ""
    model: str = ""
    latency_ms: int = 0
    why: str = ""
    detail: str = ""

    @property
    def advice(self) -> str:
        return ADVICE.get(self.why, "see the line above")


async def attempt(settings: Settings) -> Trial:
    """Ask the configured model one question, once; no other model is asked. Raises nothing."""
    alone = settings.model_copy(update={"llm_fallback_models": (), "llm_max_attempts": 1})
    async with local_model(settings.data_dir) as server:
        model = Model(alone, server)
        try:
            messages = [{"role": "user", "content": QUESTION}]
            completion = await model.complete(messages, max_output_tokens=TRIAL_TOKENS, purpose="setup")
        except ModelFailed as error:
            return Trial(model=error.model, why=error.why, detail=error.without_model)
        finally:
            await model.close()
    return Trial(" ".join(completion.text.split()), completion.model, completion.latency_ms)


# ---- toml ----
#
# Writes settings as TOML, so that they read back as they were. Pure.


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


# ---- config file ----
#
# The configuration file as `setup` writes it: what was there is kept, and the old file lies beside.


_UNITS = {"_seconds": "seconds", "_milliseconds": "milliseconds", "_tokens": "tokens", "_bytes": "bytes"}


def target(option: Path | None, environment: Mapping[str, str]) -> Path:
    """The file that settings are read from, and so are to be written to."""
    return option or Path(environment.get(FILE_VARIABLE) or DEFAULT_FILE)


def read(path: Path) -> dict[str, Any]:
    """What the file says; nothing where there is none. Raises `config.load.ConfigurationError`."""
    return read_file(path) if path.exists() else {}


def merged(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """*old* with *changes*; a change to None takes the setting away. Pure."""
    values = {**old, **changes}
    return {name: values[name] for name in sorted(values) if values[name] is not None}


def write(path: Path, values: Mapping[str, Any], now: datetime) -> Path | None:
    """Write *values* to *path*, readable by this user only; the copy of what was there before, if anything was.

    The file is replaced as a whole or not at all. Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "# Settings of agent-runtime. Environment variables (AGENT_RUNTIME_…) win over them.\n\n"
    text += dumps(values, {name: unit for name in values for ending, unit in _UNITS.items() if name.endswith(ending)})
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        backup = _back_up(path, now)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return backup


def _back_up(path: Path, now: datetime) -> Path | None:
    if not path.exists():
        return None
    backup = path.with_name(f"{path.name}.{now:%Y%m%d-%H%M%S}.bak")
    descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(path.read_bytes())
    return backup


# ---- setup ----


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
    path = given.output or target(invocation.config, os.environ)
    old = read(path)
    _check_what_stays(old)
    if not given.yes:
        line("Set up Agent Runtime: a model, platforms, and a first test. Ctrl-C quits without any change.\n")
    choice = _choose(given)
    while True:
        values = merged(old, choice.changes)
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
    values = merged(values, connect_platforms(values, secrets, yes=given.yes))
    values = merged(values, _choose_workspace(values, given))
    result = validate({**values, **read_environment(os.environ)})
    backup = write(path, merged({}, values), datetime.now().astimezone())
    _setup_tell(path, backup, os.environ, result)
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


def _setup_tell(path: Path, backup: Path | None, environment: Mapping[str, str], settings: Settings) -> None:
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
