"""``agent-runtime reindex``: build the search index anew."""

from __future__ import annotations

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import count, line, note, print_json, rebuild, status_line


@click.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all.")
@json_option
@click.pass_obj
def command(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """Rebuild the search index from documents and transcripts.

    Searches work meanwhile. If this is interrupted, run it again.
    """
    run(_reindex(invocation.settings(), workspace, as_json=as_json))


async def _reindex(settings: Settings, workspace: str | None, *, as_json: bool) -> None:
    with status_line("opening the stores …") as status:
        async with connect(settings) as client:
            done = await rebuild(client, "/v1/reindex", {"workspace": workspace}, "indexing", status)
    if as_json:
        print_json(done)
        return
    line(
        f"{count(done['documents'], 'document')} ({count(done['chunks'], 'chunk')}), {count(done['turns'], 'turn')} "
        f"of {count(done['conversations'], 'conversation')}, {count(done['records'], 'record')} and "
        f"{count(done['material'], 'file')} of material indexed anew, {done['deleted']} deleted"
    )
    for skipped in done["skipped"]:
        note(f"skipped {skipped['path']}: {skipped['why']}")
