"""``agent-runtime setup``: a model, platforms, a configuration file, and a try."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.invocation import Invocation


@click.command()
@click.option("--yes", is_flag=True, help="Ask nothing: take what the options say, and write it.")
@click.option(
    "--provider",
    help="anthropic, openai, openrouter, gemini, mistral, ollama, lmstudio, compatible (any server that speaks "
    "OpenAI's protocol; needs --api-base), or bundled (the small local model).",
)
@click.option("--model", help="The model's name at the provider.")
@click.option("--api-base", help="The address of the model server, e.g. http://127.0.0.1:8000/v1.")
@click.option("--api-key-env", metavar="VARIABLE", help="Take the key from this environment variable.")
@click.option("--telegram-token-env", metavar="VARIABLE", help="Take the Telegram bot's token from this variable.")
@click.option("--slack-token-env", metavar="VARIABLE", help="Take the Slack bot's token (xoxb-…) from this variable.")
@click.option(
    "--slack-app-token-env", metavar="VARIABLE", help="Take Slack's app-level token (xapp-…), for Socket Mode, from it."
)
@click.option(
    "--slack-signing-secret-env", metavar="VARIABLE", help="Take Slack's signing secret, for events over HTTP, from it."
)
@click.option("--discord-token-env", metavar="VARIABLE", help="Take the Discord bot's token from this variable.")
@click.option("--no-test", is_flag=True, help="Do not ask the model for a first answer.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write here instead.")
@click.pass_obj
def command(
    invocation: Invocation,
    yes: bool,
    provider: str | None,
    model: str | None,
    api_base: str | None,
    api_key_env: str | None,
    telegram_token_env: str | None,
    slack_token_env: str | None,
    slack_app_token_env: str | None,
    slack_signing_secret_env: str | None,
    discord_token_env: str | None,
    no_test: bool,
    output: Path | None,
) -> int:
    """Set up a model and platforms, step by step.

    Looks for Ollama and LM Studio on this machine, else asks for a provider and its key; tries one real answer;
    connects Telegram, Slack and Discord, each of which is asked whether the bot can work there; then writes
    agent-runtime.toml (readable by you only; the old one is kept beside it).
    """
    from runtime.cli.setup import Given, setup

    variables = {
        "telegram_bot_token": telegram_token_env,
        "slack_bot_token": slack_token_env,
        "slack_app_token": slack_app_token_env,
        "slack_signing_secret": slack_signing_secret_env,
        "discord_bot_token": discord_token_env,
    }
    token_envs = {name: variable for name, variable in variables.items() if variable is not None}
    given = Given(yes, provider, model, api_base, api_key_env, token_envs, no_test, output)
    return setup(invocation, given)
