"""``agent-runtime logs``: what the Markdown chat logs are kept for."""

from __future__ import annotations

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import count, line, note, print_json, rebuild, status_line


@click.group()
def command() -> None:
    """Restore conversations from the chat logs in the data folder."""


@command.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all that have chat logs.")
@click.option("--dry-run", is_flag=True, help="Show what would be restored, and change nothing.")
@json_option
@click.pass_obj
def restore(invocation: Invocation, workspace: str | None, dry_run: bool, as_json: bool) -> int:
    """Restore turns that are in the chat logs but not in Redis.

    What Redis has stays as it is, and nothing is restored twice. Messages that were edited or deleted later come back
    as they were first written. Run `agent-runtime reindex` afterwards, so that searches find the turns again.
    """
    return run(_restore(invocation.settings(), workspace, dry_run=dry_run, as_json=as_json))


async def _restore(settings: Settings, workspace: str | None, *, dry_run: bool, as_json: bool) -> int:
    body = {"workspace": workspace, "dry_run": dry_run}
    with status_line("opening the stores …") as status:
        async with connect(settings) as client:
            done = await rebuild(client, "/v1/logs/restore", body, "reading", status)
    if as_json:
        print_json(done)
    else:
        line(
            f"{count(done['turns'], 'turn')} ({count(done['entries'], 'message')}) of "
            f"{count(done['conversations'], 'conversation')} {'would be ' if dry_run else ''}restored, from "
            f"{count(done['files'], 'chat log')}"
        )
        for refused in done["refused"]:
            note(f"not restored: {refused['path']}: {refused['why']}")
    return 1 if done["refused"] else 0
