"""``agent-runtime setup``: set up a model and platforms, and write the configuration file."""

from __future__ import annotations

from pathlib import Path

import click

from runtime.cli.invocation import Invocation


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
    from runtime.cli.setup import SetupOptions, setup

    variables = {setting: variable for setting, variable in token_envs.items() if variable is not None}
    options = SetupOptions(yes, provider, model, api_base, api_key_env, variables, workspace, no_test, output)
    return setup(invocation, options)
