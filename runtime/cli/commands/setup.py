"""``agent-runtime setup``: it asks for a model, tries it, connects platforms, and writes the configuration file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

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
from connectors.connector import Examination
from connectors.message import InvalidWorkspaceId, check_workspace_id
from runtime.cli.client import running
from runtime.cli.invocation import Invocation, run, silence_events
from runtime.cli.output import line, milliseconds, note
from runtime.cli.progress import status_line
from runtime.embedded import local_model
from runtime.ingress import examine_platform, platforms_on
from runtime.llm import OLLAMA_URL, Model, ModelFailed
from runtime.workspaces import SAMPLE

Changes = dict[str, Any]
"""Settings to write, by name. None removes a setting."""


@dataclass(frozen=True)
class SetupOptions:
    """The options of `agent-runtime setup`."""

    yes: bool
    provider: str | None
    model: str | None
    api_base: str | None
    api_key_env: str | None
    token_envs: Mapping[str, str]
    """The environment variables that hold platforms' tokens, by setting."""
    workspace: str | None
    no_test: bool
    output: Path | None


@click.command()
@click.option("--yes", is_flag=True, help="Ask nothing: use the options, and write the file.")
@click.option(
    "--provider",
    help="anthropic, openai, openrouter, gemini, mistral, ollama, lmstudio, compatible (any server that speaks "
    "OpenAI's protocol; needs --api-base), or bundled (no language model: answers are quotations).",
)
@click.option("--model", help="The model's name at the provider.")
@click.option("--api-base", help="The address of the model server, e.g. http://127.0.0.1:8000/v1.")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable with the provider's key.")
@click.option(
    "--telegram-token-env",
    "telegram_bot_token",
    metavar="VARIABLE",
    help="Environment variable with the Telegram bot's token.",
)
@click.option(
    "--slack-token-env",
    "slack_bot_token",
    metavar="VARIABLE",
    help="Environment variable with the Slack bot's token (xoxb-…).",
)
@click.option(
    "--slack-app-token-env",
    "slack_app_token",
    metavar="VARIABLE",
    help="Environment variable with Slack's app-level token (xapp-…), for Socket Mode.",
)
@click.option(
    "--slack-signing-secret-env",
    "slack_signing_secret",
    metavar="VARIABLE",
    help="Environment variable with Slack's signing secret, for events over HTTP.",
)
@click.option(
    "--discord-token-env",
    "discord_bot_token",
    metavar="VARIABLE",
    help="Environment variable with the Discord bot's token.",
)
@click.option("--workspace", metavar="W", help="The workspace that people on the platforms talk to.")
@click.option("--no-test", is_flag=True, help="Do not test the model.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the configuration to this file.")
@click.pass_obj
def command(
    invocation: Invocation,
    /,
    yes: bool,
    provider: str | None,
    model: str | None,
    api_base: str | None,
    api_key_env: str | None,
    workspace: str | None,
    no_test: bool,
    output: Path | None,
    **token_envs: str | None,
) -> int:
    """Set up a model and platforms, step by step.

    setup looks for Ollama and LM Studio on this machine, or asks for a provider and its key. It asks the model for one
    answer, connects Telegram, Slack and Discord and checks each of them, and writes agent-runtime.toml. Only you can
    read this file; the old file is kept next to it.
    """
    variables = {setting: variable for setting, variable in token_envs.items() if variable is not None}
    options = SetupOptions(yes, provider, model, api_base, api_key_env, variables, workspace, no_test, output)
    return _set_up(invocation, options)


def _set_up(invocation: Invocation, options: SetupOptions) -> int:
    """Ask (unless ``yes`` is set), try the model, and write the file. Return the exit code."""
    path = options.output or invocation.config or Path(os.environ.get(FILE_VARIABLE) or DEFAULT_FILE)
    old = read_config(path)
    _check_other_settings(old)
    if not options.yes:
        line("Set up Agent Runtime: a model, platforms, and a first test. Ctrl-C quits without any change.\n")
    model = _choose_model(options)
    while True:
        values = merge_settings(old, model)
        settings = validate(values)
        if options.no_test or _try_model(settings):
            break
        if options.yes:
            note("nothing was written; --no-test writes the file without testing the model")
            return 1
        if click.confirm("Write this configuration anyway?", default=False):
            break
        model = _ask_model(run(find_local_servers()))
    tokens = {name: _read_variable(variable) for name, variable in options.token_envs.items()}
    values = merge_settings(values, _connect_platforms(values, tokens, yes=options.yes))
    values = merge_settings(values, _choose_workspace(values, options))
    result = validate({**values, **read_environment(os.environ)})
    backup = write_config(path, values, datetime.now().astimezone())
    _show_next_steps(path, backup, result)
    return 0


def _check_other_settings(old: Mapping[str, Any]) -> None:
    """Check the settings that this setup does not write, before anything is asked. Raises `ConfigurationError`."""
    environment = read_environment(os.environ)
    written_here = {"llm_model", "llm_api_base", "llm_api_key", "default_workspace", *_platform_settings()}
    try:
        validate({**old, **environment})
    except ConfigurationError as error:
        others = {name: value for name, value in old.items() if name not in written_here}
        try:
            validate({**others, **environment})
        except ConfigurationError:
            raise error from None  # it names all mistakes


def _show_next_steps(path: Path, backup: Path | None, settings: Settings) -> None:
    line(f"\nwritten: {path}" + (f" (the old one is {backup})" if backup else ""))
    for setting in ("llm_model", "llm_api_base", "llm_api_key", *_platform_settings()):
        variable = ENVIRONMENT_PREFIX + setting.upper()
        if os.environ.get(variable):
            note(f"{variable} is set in the environment; the environment overrides the file")
    serves = "runs the bot for the platforms, with its chat page and HTTP interface"
    if not platforms_on(settings):
        serves = "runs the bot with a chat page and an HTTP interface (no platform is connected)"
    line(f"Next: `agent-runtime chat` starts a chat here; `agent-runtime serve` {serves}.")
    if run(_is_running(settings)):
        note("An agent-runtime process runs on this data folder. Restart it, so that it reads the new file.")


async def _is_running(settings: Settings) -> bool:
    async with running(settings) as client:
        return client is not None


# ---- The model ----

LM_STUDIO_URL = "http://127.0.0.1:1234"
PROBE_SECONDS = 1.5


@dataclass(frozen=True)
class Provider:
    """A provider of models: its name, its LiteLLM prefix, a model to begin with, and the usual variable of its key."""

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
PREFIXES = {
    **{provider.name: provider.prefix for provider in PROVIDERS},
    "ollama": "ollama_chat/",
    "lmstudio": "openai/",
    COMPATIBLE: "openai/",
}
"""LiteLLM's prefix of a model, by the name of ``--provider``."""
LOCAL_ADDRESSES = {"ollama": OLLAMA_URL, "lmstudio": f"{LM_STUDIO_URL}/v1"}


def _choose_model(options: SetupOptions) -> Changes:
    """Return the model that the options name, or that the person chooses. Raises `click.UsageError`."""
    name = options.provider
    if name is None and not options.yes:
        with status_line("looking for Ollama and LM Studio on this machine …"):
            servers = run(find_local_servers())
        return _ask_model(servers)
    if name is None:
        if options.model is not None:
            return _model_settings(options.model, options.api_base, _read_variable(options.api_key_env))
        raise click.UsageError("--yes needs --provider (bundled: no language model, answers are quotations)")
    if name == BUNDLED:
        return _model_settings(None)
    if name not in PREFIXES:
        raise click.UsageError(f"no provider {name!r}; there are {', '.join([*PREFIXES, BUNDLED])}")
    if name == COMPATIBLE and options.api_base is None:
        raise click.UsageError("--provider compatible needs --api-base, e.g. http://127.0.0.1:8000/v1")
    provider = next((provider for provider in PROVIDERS if provider.name == name), None)
    model = options.model or (provider.suggestion if provider else None)
    key = _read_variable(options.api_key_env)
    address = options.api_base or LOCAL_ADDRESSES.get(name)
    if model is None and address is not None:
        model = _choose_model_of_server(name, address, key, ask=not options.yes)
    if key is None and provider is not None and not options.yes:
        key = _ask_key(provider)
    assert model is not None
    return _model_settings(full_model_id(name, model), address, key)


def _model_settings(model: str | None, api_base: str | None = None, api_key: str | None = None) -> Changes:
    return {"llm_model": model, "llm_api_base": api_base, "llm_api_key": api_key}


def full_model_id(provider: str, model: str) -> str:
    """Return LiteLLM's name of *model*. A name that has the provider's prefix keeps it."""
    prefix = PREFIXES[provider]
    return model if model.startswith(prefix) else prefix + model


def _choose_model_of_server(provider: str, address: str, key: str | None, *, ask: bool) -> str:
    """Let the person choose a model of the server at *address*. Raises `click.UsageError` if *ask* is False."""
    server = run(find_models(address, key))
    models = server.models if server is not None else ()
    if not ask:
        raise click.UsageError(f"--provider {provider} needs --model" + (f": {', '.join(models)}" if models else ""))
    return _pick(models) if models else str(click.prompt("Model"))


def _ask_model(servers: Sequence[LocalServer]) -> Changes:
    """Let the person choose from the models of local *servers*, the providers, another server, and no model."""
    options: list[tuple[str, Callable[[], Changes]]] = []
    for server in servers:
        options += [(f"{server.title}, on this machine: {model}", _local(server, model)) for model in server.models]
        if not server.models:
            line(f"{server.title} runs on this machine, but has no models yet.")
    options += [(provider.title, _remote(provider)) for provider in PROVIDERS]
    options.append(("another server that speaks OpenAI's protocol", _ask_compatible))
    options.append(("no language model: answers are quotations from the documents", lambda: _model_settings(None)))
    if not servers:
        line("Ollama and LM Studio do not run on this machine. The providers below need a key.")
    line("Which model should answer?")
    for number, (title, _) in enumerate(options, start=1):
        line(f"  {number:2}  {title}")
    number = click.prompt("Number", type=click.IntRange(1, len(options)), default=1)
    return options[number - 1][1]()


def _local(server: LocalServer, model: str) -> Callable[[], Changes]:
    return lambda: _model_settings(PREFIXES[server.name] + model, server.api_base)


def _remote(provider: Provider) -> Callable[[], Changes]:
    def ask() -> Changes:
        model = click.prompt(f"Model at {provider.title}", default=provider.suggestion)
        return _model_settings(full_model_id(provider.name, model), None, _ask_key(provider))

    return ask


def _ask_compatible() -> Changes:
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
    return _model_settings(full_model_id(COMPATIBLE, model), address, key or None)


def _pick(models: Sequence[str]) -> str:
    """Let the person choose one of *models* by number, or type any name."""
    for number, model in enumerate(models, start=1):
        line(f"  {number:2}  {model}")
    answer = str(click.prompt("Number or name of the model", default="1")).strip()
    is_number = answer.isascii() and answer.isdecimal() and 1 <= int(answer) <= len(models)
    return models[int(answer) - 1] if is_number else answer


def _ask_key(provider: Provider) -> str | None:
    """Return the key, or None if it stays in the environment variable that the provider's clients read."""
    if os.environ.get(provider.key_variable) and click.confirm(
        f"Use the key in {provider.key_variable}? It is not written to the file.", default=True
    ):
        return None
    return _ask_secret(f"Key for {provider.title} (not shown)")


def _ask_secret(prompt: str) -> str:
    secret: str = click.prompt(prompt, hide_input=True)
    return secret.strip()


def _read_variable(variable: str | None) -> str | None:
    """Return the value of an environment variable. Raises `click.UsageError` if it is not set."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise click.UsageError(f"the environment variable {variable} is not set")
    return os.environ[variable]


@dataclass(frozen=True)
class LocalServer:
    """A model server and its models."""

    name: str
    title: str
    api_base: str
    models: tuple[str, ...]


async def find_local_servers(ollama_url: str = OLLAMA_URL, lm_studio_url: str = LM_STUDIO_URL) -> list[LocalServer]:
    """Return the model servers that answer on this machine within `PROBE_SECONDS`. Raises nothing."""
    # A proxy of the environment is not for this machine.
    async with httpx.AsyncClient(timeout=PROBE_SECONDS, trust_env=False) as http:
        ollama, lm_studio = await asyncio.gather(
            _list_models(http, f"{ollama_url}/api/tags", "models", "name"),
            _list_models(http, f"{lm_studio_url}/v1/models", "data", "id"),
        )
    servers = []
    if ollama is not None:
        servers.append(LocalServer("ollama", "Ollama", ollama_url, ollama))
    if lm_studio is not None:
        servers.append(LocalServer("lmstudio", "LM Studio", f"{lm_studio_url}/v1", lm_studio))
    return servers


async def find_models(address: str, key: str | None = None) -> LocalServer | None:
    """Return the server at *address* that speaks OpenAI's protocol, or None if it lists no models. Raises nothing.

    The address that clients need ends in /v1. People leave that out, so both are tried.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = address.rstrip("/")
    async with httpx.AsyncClient(timeout=PROBE_SECONDS, headers=headers) as http:
        for api_base in (base, f"{base}/v1"):
            models = await _list_models(http, f"{api_base}/models", "data", "id")
            if models is not None:
                return LocalServer(COMPATIBLE, "the server", api_base, models)
    return None


async def _list_models(http: httpx.AsyncClient, url: str, items: str, name: str) -> tuple[str, ...] | None:
    """Return the field *name* of each item in the list *items* at *url*, or None if there is no such list."""
    try:
        response = await http.get(url)
        return tuple(str(item[name]) for item in response.raise_for_status().json()[items])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None


QUESTION = "Hello!"
MAX_ANSWER_TOKENS = 400
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


def _try_model(settings: Settings) -> bool:
    """Ask the model of *settings* one question, print the answer or what to do, and return whether it answered."""
    silence_events(settings)
    # The fallback models are not asked, and nothing is tried again.
    settings = settings.model_copy(update={"llm_fallback_models": (), "llm_max_attempts": 1})

    async def ask() -> str:
        async with local_model(settings.data_dir) as server:
            model = Model(settings, server)
            try:
                messages = [{"role": "user", "content": QUESTION}]
                answer = await model.complete(messages, max_output_tokens=MAX_ANSWER_TOKENS, purpose="setup")
            finally:
                await model.close()
        text = " ".join(answer.text.split())
        return f"{answer.model} answered in {milliseconds(answer.latency_ms)}: {text}"

    try:
        with status_line(f"asking {settings.model_name} for a first answer …"):
            result = run(ask())
    except ModelFailed as error:
        note(f"No answer from {settings.model_name}: {error.without_model}")
        note(f"→ {ADVICE.get(error.why, 'see the line above')}")
        return False
    line(result)
    return True


# ---- Platforms ----


def _ask_slack() -> Changes:
    token = _ask_secret("Bot User OAuth Token, xoxb-… (not shown)")
    line("How does Slack send events?")
    line("  1  by Socket Mode: this machine need not be reachable from the internet")
    line("  2  over HTTP: Slack posts them to /slack/events and /slack/commands on this machine")
    if click.prompt("Number", type=click.IntRange(1, 2), default=1) == 1:
        app_token = _ask_secret("App-level token with the scope connections:write, xapp-… (not shown)")
        return {"slack_bot_token": token, "slack_app_token": app_token}
    secret = _ask_secret("Signing secret, under Basic Information (not shown)")
    return {"slack_bot_token": token, "slack_app_token": None, "slack_signing_secret": secret}


@dataclass(frozen=True)
class Guide:
    """How a person connects a platform. ``secrets`` are its settings; the first one is the bot's token."""

    name: str
    title: str
    secrets: tuple[str, ...]
    steps: tuple[str, ...]
    ask: Callable[[], Changes]
    afterwards: str


GUIDES = (
    Guide(
        "telegram",
        "Telegram",
        ("telegram_bot_token",),
        ("In Telegram, send /newbot to @BotFather and answer its questions. It shows the bot's token.",),
        lambda: {"telegram_bot_token": _ask_secret("Token from @BotFather (not shown)")},
        "Write to the bot, or add it to a group and mention it there.",
    ),
    Guide(
        "slack",
        "Slack",
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
        ("discord_bot_token",),
        (
            "At discord.com/developers/applications: New Application. Under Bot, Reset Token shows the token.",
            "On the same page, switch the Message Content Intent on.",
        ),
        lambda: {"discord_bot_token": _ask_secret("Bot token (not shown)")},
        "Add the bot to your server with that link, then mention it there.",
    ),
)


def _platform_settings() -> list[str]:
    return [secret for guide in GUIDES for secret in guide.secrets]


def _connect_platforms(values: Mapping[str, Any], tokens: Mapping[str, Any], *, yes: bool) -> Changes:
    """Return the settings of the platforms to connect: those with *tokens* and, unless *yes*, those the person wants.

    Raises `click.ClickException` if tokens do not work.
    """
    changes: Changes = {}
    for guide in GUIDES:
        settings = {name: tokens[name] for name in guide.secrets if name in tokens}
        if settings:
            changes |= _connect_with_tokens(guide, values, settings)
        elif not yes:
            changes |= _ask_to_connect(guide, values)
    if changes:
        line("Send the bot a direct message: it answers with a code.")
        line("`agent-runtime access approve CODE --role admin` makes you its admin. It then tells you who else asks.")
    return changes


def _connect_with_tokens(guide: Guide, values: Mapping[str, Any], settings: Changes) -> Changes:
    if guide.secrets[0] not in settings and guide.secrets[0] not in values:
        raise click.UsageError(f"{guide.title} also needs the bot's token: give --{guide.name}-token-env")
    if "slack_signing_secret" in settings:  # with an app-level token in the file, Slack would go on by Socket Mode
        settings = {"slack_app_token": None, **settings}
    examined = _examine(guide, values, settings)
    if examined.problems:
        raise click.ClickException(f"{guide.title} is not connected; nothing was written")
    line(guide.afterwards)
    return settings


def _ask_to_connect(guide: Guide, values: Mapping[str, Any]) -> Changes:
    question, default = f"Connect a {guide.title} bot?", False
    if guide.secrets[0] in values:
        question = f"A {guide.title} bot is connected. Connect another one instead?"
    steps = guide.steps
    while click.confirm(question, default=default):
        for step in steps:
            line(f"  {step}")
        settings = guide.ask()
        try:
            examined = _examine(guide, values, settings)
        except ConfigurationError as error:
            for problem in error.problems:
                note(f"→ {problem}")
        else:
            works = not examined.problems
            if works or (examined.who and click.confirm("Keep it anyway? You can correct it later", default=True)):
                line(guide.afterwards)
                return settings
        question, default, steps = "Try again?", True, ()
    return {}


def _examine(guide: Guide, values: Mapping[str, Any], settings: Changes) -> Examination:
    """Ask the platform whether *settings* work, and print what it says. Raises `ConfigurationError`."""
    # The environment may name another address of a platform.
    names = (*(f"{known.name}_api_base" for known in GUIDES), "http_public_url")
    addresses = {name: os.environ.get(ENVIRONMENT_PREFIX + name.upper()) or values.get(name) for name in names}
    with status_line(f"asking {guide.title} …"):
        examined = run(examine_platform(validate(merge_settings({**values, **addresses}, settings)), guide.name))
    if examined.who:
        line(f"{guide.title}: the bot is {examined.who}.")
    for problem in examined.problems:
        note(f"✗ {problem.detail}")
        note(f"→ {problem.advice}")
    if examined.invitation:
        line(f"Add the bot to a server with this link: {examined.invitation}")
    return examined


# ---- The workspace ----


def _choose_workspace(values: Mapping[str, Any], options: SetupOptions) -> Changes:
    """Return the workspace of the people on the platforms, or nothing if it does not change."""
    settings = validate(values)
    name = options.workspace
    if name is None and platforms_on(settings) and not options.yes and not settings.workspace_per_place:
        folder = Path(os.environ.get(f"{ENVIRONMENT_PREFIX}DATA_DIR") or settings.data_dir) / "workspaces"
        existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        existing |= {SAMPLE, settings.default_workspace}
        line("Which workspace do people on the platforms talk to? The bot answers from its documents.")
        line(f"  Existing: {', '.join(sorted(existing))}. A new name creates one.")
        name = click.prompt("Workspace", default=settings.default_workspace, value_proc=_workspace_name)
    if name is None or name == settings.default_workspace:
        return {}
    return {"default_workspace": name}


def _workspace_name(text: str) -> str:
    try:
        return check_workspace_id(text.strip())
    except InvalidWorkspaceId as error:
        raise click.UsageError(str(error)) from None


# ---- The configuration file ----

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in the file, or none if it does not exist. Raises `config.load.ConfigurationError`."""
    return read_file(path) if path.exists() else {}


def merge_settings(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return *old* with *changes*, sorted by name; None removes a setting. Pure."""
    values = {**old, **changes}
    return {name: values[name] for name in sorted(values) if values[name] is not None}


def write_config(path: Path, values: Mapping[str, Any], now: datetime) -> Path | None:
    """Write *values* to *path*, readable by this user only. Return the copy of the old file, if there was one.

    The file is replaced as a whole or not at all. Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "# Settings of agent-runtime. Environment variables (AGENT_RUNTIME_…) win over them.\n\n"
    text += dumps(values)
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
    with os.fdopen(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(path.read_bytes())
    return backup


def dumps(values: Mapping[str, Any]) -> str:
    """Return *values* as a TOML document: strings, booleans, numbers, lists of these, and tables. Pure."""
    return "\n".join(_table_lines(values, ())).strip("\n") + "\n"


def _table_lines(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
    tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    lines += [f"{_key(name)} = {_toml(value)}" for name, value in values.items() if name not in tables]
    for name, table in tables.items():
        lines += ["", *_table_lines(table, (*path, name))]
    return lines


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml(name)


def _toml(value: Any) -> str:
    """Return *value* as JSON, which is TOML but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
