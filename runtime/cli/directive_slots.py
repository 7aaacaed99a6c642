"""Which directive a command means: its options, and its path over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click

from config.settings import Settings
from runtime.cli.client import segment
from runtime.cli.invocation import F, workspace_of, workspace_option

_KINDS = click.Choice(["system", "soul", "skill", "cues", "frames"])


@dataclass(frozen=True)
class Slot:
    """Which directive is meant."""

    workspace: str | None
    scope: str
    kind: str
    name: str | None
    context: str | None

    @classmethod
    def of(cls, workspace: str | None, scope: str, kind: str, name: str | None, context: str | None) -> Slot:
        """The slot that options mean. Raises `click.UsageError` where they do not fit together."""
        if (kind == "skill") != (name is not None):
            raise click.UsageError("--kind skill needs --name; other kinds have no name")
        if (scope == "context") != (context is not None):
            raise click.UsageError("--scope context needs --context, e.g. telegram:-10001; other scopes have none")
        return cls(workspace, scope, kind, name, context)

    def path(self, settings: Settings, *more: str) -> str:
        parts = [self.scope, self.kind, *([self.name] if self.name else []), *more]
        workspace = segment(workspace_of(settings, self.workspace))
        return f"/v1/workspaces/{workspace}/prompts/" + "/".join(map(segment, parts))

    def __str__(self) -> str:
        return "/".join([self.scope, self.kind, *([self.name] if self.name else [])])


def slot_options(function: F) -> F:
    """The options that say which directive is meant."""
    options: list[Callable[[F], F]] = [
        workspace_option,
        click.option(
            "--scope", type=click.Choice(["global", "workspace", "context"]), default="workspace", show_default=True
        ),
        click.option("--kind", type=_KINDS, default="system", show_default=True),
        click.option("--type", "kind", type=_KINDS, hidden=True),  # the same, as scripts may have it
        click.option("--name", help="Name of the skill, with --kind skill."),
        click.option(
            "--context", metavar="CONTEXT_ID", help="The conversation, with --scope context, e.g. telegram:-10001."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function
