"""Which directive a command means: by words as in a chat, or by options; and its path over HTTP."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
from click.core import ParameterSource

from config.settings import Settings
from runtime.cli.client import segment
from runtime.cli.invocation import F, workspace_of, workspace_option

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
