"""``agent-runtime chat``: the conversation in the terminal."""

from __future__ import annotations

import click

from runtime.cli.invocation import Invocation, json_option, run, workspace_option


@click.command()
@workspace_option
@click.option(
    "--context", metavar="NAME", default="default", show_default=True, help="Name of the conversation to continue."
)
@click.option("-m", "--message", metavar="TEXT", help="Send this one message, print the answer and exit.")
@json_option
@click.pass_obj
def command(invocation: Invocation, workspace: str, context: str, message: str | None) -> int:
    """Talk to the bot in this terminal.

    If `serve` runs on the same data folder, the chat uses it. If not, the bot runs inside this command. Messages can
    be piped in, one a line. With --json each answer is one JSON object. The exit code is 1 if a message was not
    answered.
    """
    from runtime.cli.chat import ChatOptions, chat

    return run(chat(invocation.settings(), ChatOptions(workspace, context, message, invocation.as_json)))
