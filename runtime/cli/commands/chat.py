"""``agent-runtime chat``: the conversation in the terminal."""

from __future__ import annotations

import click

from runtime.cli.invocation import Invocation, json_option, run, workspace_option


@click.command()
@workspace_option
@click.option("--context", metavar="NAME", default="default", show_default=True, help="Which conversation to go on.")
@click.option("-m", "--message", metavar="TEXT", help="Send this one message, print the reply and end.")
@json_option
@click.pass_obj
def command(invocation: Invocation, workspace: str | None, context: str, message: str | None, as_json: bool) -> int:
    """Talk to the bot in this terminal; answers stream, their sources stand below.

    Where a `serve` runs on the same data folder the chat talks to it, else the bot runs inside of this command.
    Lines may be piped in. With --json each answer is one JSON object. Exit code 1 where something was not answered,
    also where no model could be asked.
    """
    from runtime.cli.chat import Wish, chat

    return run(chat(invocation.settings(), Wish(workspace, context, message, as_json)))
