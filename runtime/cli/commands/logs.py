"""``agent-runtime logs``: what the Markdown chat logs are kept for."""

from __future__ import annotations

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.indexing import rebuild
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import count, line, note, print_json, status_line


@click.group()
def command() -> None:
    """The chat logs under DATA_DIR, from which conversations can be restored."""


@command.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace; default: all that have chat logs.")
@click.option("--dry-run", is_flag=True, help="Say what would be restored, and change nothing.")
@json_option
@click.pass_obj
def restore(invocation: Invocation, workspace: str | None, dry_run: bool, as_json: bool) -> int:
    """Put turns that the chat logs hold and Redis does not back into their conversations.

    What Redis has stays as it is; doing it again restores nothing twice. What people edited or deleted on their
    platform afterwards stands in the logs as it was first said, and comes back so. Afterwards `agent-runtime reindex`
    makes the turns findable again.
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
            f"{count(done['turns'], 'turn')} ({done['entries']} messages) of "
            f"{count(done['conversations'], 'conversation')} {'would be ' if dry_run else ''}restored, from "
            f"{count(done['files'], 'chat log')}"
        )
        for refused in done["refused"]:
            note(f"not restored: {refused['path']}: {refused['why']}")
    return 1 if done["refused"] else 0
