"""``agent-runtime logs``: restore conversations from the Markdown chat logs."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import api_path, run_with_client
from runtime.cli.invocation import Invocation, json_option
from runtime.cli.output import count, emit, line, note
from runtime.cli.progress import follow_run, status_line


@click.group()
def command() -> None:
    """Restore conversations from the chat logs in the data folder."""


@command.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all that have chat logs.")
@click.option("--dry-run", is_flag=True, help="Show what would be restored, and change nothing.")
@json_option
@click.pass_obj
def restore(invocation: Invocation, workspace: str | None, dry_run: bool) -> int:
    """Restore turns that are in the chat logs but not in Redis.

    What Redis has stays as it is, and nothing is restored twice. Messages that were edited or deleted later come back
    as they were first written. Run `agent-runtime reindex` afterwards, so that searches find the turns again.
    """
    body = {"workspace": workspace, "dry_run": dry_run}
    with status_line("opening the stores …") as status:
        result = run_with_client(
            invocation, lambda client: follow_run(client, api_path("logs", "restore"), body, status, "reading")
        )

    def show(result: dict[str, Any]) -> None:
        line(
            f"{count(result['turns'], 'turn')} ({count(result['entries'], 'message')}) of "
            f"{count(result['conversations'], 'conversation')} {'would be ' if dry_run else ''}restored, from "
            f"{count(result['files'], 'chat log')}"
        )
        for refused in result["refused"]:
            note(f"not restored: {refused['path']}: {refused['why']}")

    emit(invocation, result, show)
    return 1 if result["refused"] else 0
