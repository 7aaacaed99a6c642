"""``agent-runtime setup``: a model, Telegram, a configuration file, and a try."""

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
    no_test: bool,
    output: Path | None,
) -> int:
    """Set up a model and platforms, step by step.

    Looks for Ollama and LM Studio on this machine, else asks for a provider and its key; tries one real answer; then
    writes agent-runtime.toml (readable by you only; the old one is kept beside it).
    """
    from runtime.cli.setup import Given, setup

    given = Given(yes, provider, model, api_base, api_key_env, telegram_token_env, no_test, output)
    return setup(invocation, given)
