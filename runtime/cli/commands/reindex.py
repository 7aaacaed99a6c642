"""``agent-runtime reindex``: rebuild the search index."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import api_path, run_with_client
from runtime.cli.invocation import Invocation, json_option
from runtime.cli.output import count, emit, line, note
from runtime.cli.progress import follow_run, status_line


@click.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all.")
@json_option
@click.pass_obj
def command(invocation: Invocation, workspace: str | None) -> None:
    """Rebuild the search index from documents and transcripts.

    Searches work meanwhile. If this is interrupted, run it again.
    """
    with status_line("opening the stores …") as status:
        body = {"workspace": workspace}
        result = run_with_client(
            invocation, lambda client: follow_run(client, api_path("reindex"), body, status, "indexing")
        )
    emit(invocation, result, _show)


def _show(result: dict[str, Any]) -> None:
    line(
        f"{count(result['documents'], 'document')} ({count(result['chunks'], 'chunk')}), "
        f"{count(result['turns'], 'turn')} of {count(result['conversations'], 'conversation')}, "
        f"{count(result['records'], 'record')} and {count(result['material'], 'file')} of material indexed anew, "
        f"{result['deleted']} deleted"
    )
    for skipped in result["skipped"]:
        note(f"skipped {skipped['path']}: {skipped['why']}")
