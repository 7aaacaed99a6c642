"""Which directive a command means: by words as in a chat, or by options; and its path over HTTP."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import F, Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, note, print_json, show_diff, status_line

SCOPES = ("global", "workspace", "context")
KINDS = ("system", "soul", "skill", "cues", "frames")


@dataclass(frozen=True)
class Slot:
    """Which directive is meant."""

    workspace: str | None
    scope: str
    kind: str
    name: str | None
    context: str | None

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        workspace: str | None,
        scope: str,
        kind: str,
        name: str | None,
        context: str | None,
    ) -> tuple[Slot, list[str]]:
        """The slot that *words* (``soul``, ``skill NAME``, ``context soul``) or else options mean, and the words behind
        it. Raises `click.UsageError` where they do not fit together."""
        rest = list(words)
        if not _is_given("kind"):
            if rest[1:] and rest[0] in SCOPES and rest[1] in KINDS and not _is_given("scope"):
                scope = rest.pop(0)
            if rest and rest[0] in KINDS:
                kind = rest.pop(0)
            if rest and kind == "skill" and name is None:
                name = rest.pop(0)
        if (kind == "skill") != (name is not None):
            raise click.UsageError(
                "a skill needs a name (skill NAME, or --kind skill --name NAME); other kinds have none"
            )
        if (scope == "context") != (context is not None):
            raise click.UsageError("--scope context needs --context, e.g. telegram:-10001; other scopes have none")
        return cls(workspace, scope, kind, name, context), rest

    @classmethod
    def alone(cls, words: Sequence[str], **options: str | None) -> Slot:
        """The slot, where nothing may stand behind it. Raises `click.UsageError`."""
        slot, rest = cls.of(words, **options)  # type: ignore[arg-type]
        if rest:
            close = difflib.get_close_matches(rest[0], KINDS, 1)
            meant = f" Did you mean {close[0]}?" if close else f" The kinds are {', '.join(KINDS)}."
            raise click.UsageError(f"Got unexpected extra argument {rest[0]!r}.{meant}")
        return slot

    def path(self, settings: Settings, *more: str) -> str:
        parts = [self.scope, self.kind, *([self.name] if self.name else []), *more]
        workspace = segment(workspace_of(settings, self.workspace))
        return f"/v1/workspaces/{workspace}/prompts/" + "/".join(map(segment, parts))

    def __str__(self) -> str:
        return "/".join([self.scope, self.kind, *([self.name] if self.name else [])])


def _is_given(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


def slot_options(behind: str = "") -> Callable[[F], F]:
    """The words and options that say which directive is meant. *behind* is what follows it in the words, as help shows
    it."""
    kinds = click.Choice(KINDS)
    options: list[Callable[[F], F]] = [
        click.argument("words", nargs=-1, metavar=f"[KIND] {behind}".strip()),
        workspace_option,
        click.option("--scope", type=click.Choice(SCOPES), default="workspace", show_default=True),
        click.option("--kind", type=kinds, default="system", show_default=True, help="The same as the word KIND."),
        click.option("--type", "kind", type=kinds, hidden=True),  # the same, as scripts may have it
        click.option("--name", help="Name of the skill, with --kind skill."),
        click.option(
            "--context", metavar="CONTEXT_ID", help="The conversation, with --scope context, e.g. telegram:-10001."
        ),
    ]

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


# ---- condensing ----
#
# ``agent-runtime prompt condense``: a shorter text, shown before it is published.


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
