"""``agent-runtime reindex`` and ``logs restore``: rebuild the search index and the transcripts."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import api_path, run_with_client
from runtime.cli.invocation import Invocation, data_command
from runtime.cli.output import count, emit, line, note
from runtime.cli.progress import follow_run, status_line


@click.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all.")
@data_command
def reindex(invocation: Invocation, workspace: str | None) -> None:
    """Rebuild the search index from documents and transcripts.

    Searches work meanwhile. If this is interrupted, run it again.
    """
    emit(invocation, _run(invocation, api_path("reindex"), "indexing", workspace=workspace), _show_reindexed)


def _show_reindexed(result: dict[str, Any]) -> None:
    line(
        f"{count(result['documents'], 'document')} ({count(result['chunks'], 'chunk')}), "
        f"{count(result['turns'], 'turn')} of {count(result['conversations'], 'conversation')}, "
        f"{count(result['records'], 'record')} and {count(result['material'], 'file')} of material indexed anew, "
        f"{result['deleted']} deleted"
    )
    for skipped in result["skipped"]:
        note(f"skipped {skipped['path']}: {skipped['why']}")


@click.group()
def logs() -> None:
    """Restore conversations from the chat logs in the data folder."""


@logs.command()
@click.option("-w", "--workspace", metavar="W", help="Only this workspace. Default: all that have chat logs.")
@click.option("--dry-run", is_flag=True, help="Show what would be restored, and change nothing.")
@data_command
def restore(invocation: Invocation, workspace: str | None, dry_run: bool) -> int:
    """Restore turns that are in the chat logs but not in Redis.

    What Redis has stays as it is, and nothing is restored twice. Messages that were edited or deleted later come back
    as they were first written. Run `agent-runtime reindex` afterwards, so that searches find the turns again.
    """
    path = api_path("logs", "restore")
    result = _run(invocation, path, "reading", workspace=workspace, dry_run=dry_run)
    emit(invocation, result, _show_restored)
    return 1 if result["refused"] else 0


def _show_restored(result: dict[str, Any]) -> None:
    line(
        f"{count(result['turns'], 'turn')} ({count(result['entries'], 'message')}) of "
        f"{count(result['conversations'], 'conversation')} {'would be ' if result['dry_run'] else ''}restored, from "
        f"{count(result['files'], 'chat log')}"
    )
    for refused in result["refused"]:
        note(f"not restored: {refused['path']}: {refused['why']}")


def _run(invocation: Invocation, path: str, verb: str, **body: Any) -> dict[str, Any]:
    with status_line("opening the stores …") as status:
        return run_with_client(invocation, lambda client: follow_run(client, path, body, status, verb))
