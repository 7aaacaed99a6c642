"""``agent-runtime prompt condense``: a shorter text, shown before it is published."""

from __future__ import annotations

import sys
from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.directive_slots import Slot, slot_options
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import line, note, print_json, show_diff, status_line


@click.command()
@slot_options()
@click.option(
    "--yes",
    is_flag=True,
    help="Publish without asking, if the text passes the checks and no rule may be lost.",
)
@click.option("--despite-notes", is_flag=True, help="With --yes: publish also if a rule may be lost.")
@json_option
@click.pass_obj
def condense(invocation: Invocation, /, as_json: bool, yes: bool, despite_notes: bool, **slot: Any) -> None:
    """Ask the model for a shorter text of a directive, and publish it if you agree.

    The new text must keep code, quoted text, numbers with units, names, addresses, and everything between
    <!-- verbatim --> and <!-- /verbatim -->; otherwise it is rejected. If a rule may be lost, you are told, and --yes
    publishes nothing (exit code 1).
    """
    if despite_notes and not yes:
        raise click.UsageError("--despite-notes needs --yes")
    settings, chosen = invocation.settings(), Slot.alone(**slot)
    made = run(_proposed(settings, chosen))
    if not as_json:
        _show(made)
    held_back = yes and bool(made["notes"]) and not despite_notes
    # Asked outside of any event loop, which would wait for the answer even after Ctrl-C. The stores are free meanwhile.
    if (yes and not held_back) or (not as_json and _wanted()):
        published = run(_published(settings, chosen, made))
        if as_json:
            print_json({**made, "published": published["version"]})
        else:
            line(f"Published version {published['version']} of {chosen}.")
        return
    if as_json:
        print_json(made)
    if held_back:
        note("Nothing was published: a rule may be lost, see above. --yes --despite-notes publishes the text anyway.")
        sys.exit(1)
    if not as_json:
        number = made["version"]
        note(f"nothing is published; `prompt set --expected-version {number}` takes any text, --yes the model's")


async def _proposed(settings: Settings, slot: Slot) -> dict[str, Any]:
    async with connect(settings) as client:
        with status_line("asking the model for a shorter text …"):
            made: dict[str, Any] = await client.post(slot.path(settings, "condense"), {}, context=slot.context)
    return made


async def _published(settings: Settings, slot: Slot, made: dict[str, Any]) -> dict[str, Any]:
    body = {"text": made["text"], "expected_version": made["version"]}
    async with connect(settings) as client:
        published: dict[str, Any] = await client.put(slot.path(settings, "condense"), body, context=slot.context)
    return published


def _show(made: dict[str, Any]) -> None:
    show_diff(made["diff"])
    before, after = made["tokens_before"], made["tokens_after"]
    line(f"{before} tokens become {after}: {1 - after / before:.0%} less, in every prompt", bold=True)
    for one in made["notes"]:
        line(f"check this: {one}", fg="yellow")


def _wanted() -> bool:
    """Whether the person at the terminal wants it; nobody where there is none."""
    return sys.stdin.isatty() and sys.stdout.isatty() and click.confirm("Publish it?", default=False)
