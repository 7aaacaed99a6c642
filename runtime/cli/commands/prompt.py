"""``agent-runtime prompt``: directives and their versions.

A command names a directive by words, as in a chat (``soul``, ``skill NAME``, ``context soul``), or by options.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from runtime.cli.client import ApiError, Client, api_path, request, run_with_client
from runtime.cli.invocation import Invocation, data_command, workspace_option
from runtime.cli.output import emit, line, note, print_json, show_diff, table
from runtime.cli.progress import status_line

SCOPES = ("global", "workspace", "context")
KINDS = ("system", "soul", "skill", "cues", "frames")


@dataclass(frozen=True)
class Directive:
    """Names one directive of a workspace."""

    workspace: str
    scope: str
    kind: str
    name: str | None
    context: str | None

    def request(
        self, invocation: Invocation, method: str, *more: str, body: Any = None, **parameters: Any
    ) -> dict[str, Any]:
        """Make one call to the directive's path and *more*."""
        return request(invocation, method, self.path(*more), body, context=self.context, **parameters)

    def path(self, *more: str) -> str:
        name = (self.name,) if self.name else ()
        return api_path("workspaces", self.workspace, "prompts", self.scope, self.kind, *name, *more)

    def __str__(self) -> str:
        return "/".join([self.scope, self.kind, *([self.name] if self.name else [])])


def directive_options(arguments: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add ``--json`` and the words and options that name a directive, and pass the `Invocation` and the `Directive`.

    *arguments* is what may follow the directive in the words, as help shows it; these words are passed, too. Without
    *arguments*, words that follow are a usage error.
    """
    kinds = click.Choice(KINDS)
    options: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
        click.argument("words", nargs=-1, metavar=f"[KIND] {arguments}".strip()),
        workspace_option,
        click.option("--scope", type=click.Choice(SCOPES), default="workspace", show_default=True),
        click.option("--kind", type=kinds, default="system", show_default=True, help="The same as the word KIND."),
        click.option("--type", "kind", type=kinds, hidden=True),  # an older name, for scripts
        click.option("--name", help="Name of the skill, with --kind skill."),
        click.option(
            "--context", metavar="CONTEXT_ID", help="The conversation, with --scope context, e.g. telegram:-10001."
        ),
        data_command,
    )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def with_directive(
            invocation: Invocation,
            /,
            words: tuple[str, ...],
            workspace: str,
            scope: str,
            kind: str,
            name: str | None,
            context: str | None,
            **others: Any,
        ) -> None:
            directive, rest = _parse(list(words), Directive(workspace, scope, kind, name, context))
            if rest and not arguments:
                kinds = ", ".join(KINDS)
                raise click.UsageError(f"Got unexpected extra argument {rest[0]!r}. The kinds are {kinds}.")
            function(invocation, directive, *([rest] if arguments else []), **others)

        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), with_directive)

    return decorate


def _parse(words: list[str], options: Directive) -> tuple[Directive, list[str]]:
    """Return the directive that *words* or else *options* name, and the words after it. Raises `click.UsageError`."""
    scope, kind, name = options.scope, options.kind, options.name
    if not _is_set("kind"):
        if words[1:] and words[0] in SCOPES and words[1] in KINDS and not _is_set("scope"):
            scope = words.pop(0)
        if words and words[0] in KINDS:
            kind = words.pop(0)
        if words and kind == "skill" and name is None:
            name = words.pop(0)
    if (kind == "skill") != (name is not None):
        raise click.UsageError("a skill needs a name (skill NAME, or --kind skill --name NAME); other kinds have none")
    if (scope == "context") != (options.context is not None):
        raise click.UsageError("--scope context needs --context, e.g. telegram:-10001; other scopes have none")
    return Directive(options.workspace, scope, kind, name, options.context), words


def _is_set(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


@click.group()
def command() -> None:
    """Manage directives: texts that say how the model must behave."""


@command.command(name="list")
@workspace_option
@data_command
def list_(invocation: Invocation, workspace: str) -> None:
    """List the directives in force, and the directive files that were not published."""
    _list(invocation, workspace)


def _list(invocation: Invocation, workspace: str) -> None:
    emit(invocation, request(invocation, "GET", api_path("workspaces", workspace, "prompts")), _show_directives)


def _show_directives(answer: dict[str, Any]) -> None:
    rows = [
        [
            row["scope"] + (f" {row['context_id']}" if row.get("context_id") else ""),
            " ".join(filter(None, (row["kind"], row["name"]))),
            row["version"],
            row["author"],
            row["at"][:10],
            row["begins"],
        ]
        for row in answer["prompts"]
    ]
    table(
        ["scope", "kind", "version", "by", "since", "text"],
        rows,
        right=["version"],
        empty="No directive is set. `agent-runtime prompt set system TEXT` sets one.",
    )
    for refused in answer["refused"]:
        line(f"NOT PUBLISHED  {refused['path']}: {refused['why']}", fg="red")
        line(f"               → {refused['advice']}")


@command.command()
@directive_options()
@click.option("--version", type=int, help="Show this version instead of the current one.")
def show(invocation: Invocation, directive: Directive, version: int | None) -> None:
    """Print a directive's text. Without KIND, list all directives.

    KIND is system, soul, skill NAME, cues or frames: `prompt show skill refunds`.
    """
    if not any(map(_is_set, ("words", "scope", "kind", "name", "context", "version"))):
        _list(invocation, directive.workspace)
        return

    def show(answer: dict[str, Any]) -> None:
        line(answer["text"].rstrip("\n"))
        if sys.stdout.isatty():
            note(f"({directive}, version {answer['version']} by {answer['author']}, {answer['at'][:19]})")

    emit(invocation, directive.request(invocation, "GET", version=version), show)


context_option = click.option(
    "--context", metavar="CONTEXT_ID", help="Those of one conversation, e.g. telegram:-10001."
)


@command.command()
@workspace_option
@context_option
@data_command
def cues(invocation: Invocation, workspace: str, context: str | None) -> None:
    """Show the cues: the words and phrases that decide the strategy. `prompt set cues` changes them."""

    def show(answer: dict[str, Any]) -> None:
        for kind, phrases in answer["cues"].items():
            line(f"{kind}: {', '.join(phrases)}")

    path = api_path("workspaces", workspace, "cues")
    emit(invocation, request(invocation, "GET", path, context=context or None), show)


@command.command()
@workspace_option
@context_option
@data_command
def frames(invocation: Invocation, workspace: str, context: str | None) -> None:
    """Show the frames: how each kind of message is approached. `prompt set frames` changes them."""
    path = api_path("workspaces", workspace, "frames")
    emit(invocation, request(invocation, "GET", path, context=context or None), _show_frames)


def _show_frames(answer: dict[str, Any]) -> None:
    for name, frame in answer["frames"].items():
        line(f"{name}: {frame['description']}")
        for part in ("questions", "cues"):
            line(f"  {part}: {', '.join(frame[part])}")
        for part in ("priorities", "shape"):
            line(f"  {part}: {', '.join(f'{item} {value:g}' for item, value in frame[part].items())}")


@command.command(name="set")
@directive_options("[TEXT]")
@click.option(
    "--file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Read the text from this file."
)
@click.option("--expected-version", type=int, help="Fail unless this is the current version (0: none).")
def set_(
    invocation: Invocation, directive: Directive, rest: list[str], file: Path | None, expected_version: int | None
) -> None:
    """Publish a new version of a directive: TEXT, the text in --file, or standard input.

    KIND is system (also without KIND), soul, skill NAME, cues or frames: `prompt set soul "Be brief."`.
    """
    if len(rest) > 1:
        raise click.UsageError('TEXT is one argument, in quotation marks: prompt set soul "Be brief."')
    if rest and file is not None:
        raise click.UsageError("give TEXT or --file, not both")
    text = rest[0] if rest else _read(file)
    _emit_published(invocation, directive, _publish(invocation, directive, text, expected_version))


def _read(file: Path | None) -> str:
    """Return the text of *file* or of standard input. Raises `click.UsageError`."""
    if file is None and sys.stdin.isatty():
        note("Type the text; Ctrl-D on a line of its own ends it.")
    try:
        return file.read_text(encoding="utf-8") if file else sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the text is not UTF-8: {error}") from error


def _publish(invocation: Invocation, directive: Directive, text: str, expected: int | None) -> dict[str, Any]:
    body = {"text": text} | ({} if expected is None else {"expected_version": expected})
    return directive.request(invocation, "PUT", body=body)


def _emit_published(invocation: Invocation, directive: Directive, answer: dict[str, Any]) -> None:
    emit(invocation, answer, f"Published version {answer['version']} of {directive}.")


@command.command()
@directive_options()
def edit(invocation: Invocation, directive: Directive) -> None:
    """Edit a directive in $EDITOR and publish the new version.

    If somebody else has published a version meanwhile, nothing is overwritten: your text is saved in a file.
    """

    async def get(client: Client) -> tuple[str, int]:
        try:
            current = await client.get(directive.path(), context=directive.context)
        except ApiError as error:
            if error.status != 404 or error.code == "unknown_workspace":
                raise
            # A directive that was cleared has a version, though no text.
            versions = (await client.get(directive.path("history"), context=directive.context))["versions"]
            return "", versions[0]["version"] if versions else 0
        return current["text"], current["version"]

    text, version = run_with_client(invocation, get)
    # The stores are closed while the person writes, so that other commands can use them.
    edited = click.edit(text, extension=".md", require_save=True)
    if edited is None or edited == text:
        note("Nothing was changed.")
        return
    try:
        answer = _publish(invocation, directive, edited, version)
    except ApiError as error:
        file = Path(f"{str(directive).replace('/', '-')}.rejected.md")
        file.write_text(edited, encoding="utf-8")
        note(f"Your text is saved in {file}.")
        raise error from None
    _emit_published(invocation, directive, answer)


@command.command()
@directive_options()
def history(invocation: Invocation, directive: Directive) -> None:
    """List a directive's versions."""
    emit(invocation, directive.request(invocation, "GET", "history"), _show_history)


def _show_history(answer: dict[str, Any]) -> None:
    table(
        ["version", "since", "author", "origin", "bytes", "sha256"],
        [
            [
                row["version"],
                row["at"][:19],
                row["author"],
                row.get("origin") or "",
                row.get("bytes", ""),
                str(row.get("sha256", ""))[:12],
            ]
            for row in answer["versions"]
        ],
        right=["version", "bytes"],
    )


@command.command()
@directive_options("A B")
def diff(invocation: Invocation, directive: Directive, rest: list[str]) -> None:
    """Compare versions A and B of a directive: `prompt diff soul 1 2`."""
    if len(rest) != 2:
        raise click.UsageError("give two versions: prompt diff soul 1 2")
    a, b = map(_version, rest)

    def show(answer: dict[str, Any]) -> None:
        if not answer["diff"]:
            note(f"Versions {a} and {b} are the same.")
        show_diff(answer["diff"])

    emit(invocation, directive.request(invocation, "GET", "diff", a=a, b=b), show)


def _version(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise click.UsageError(
            f"{word!r} is no version, which is a whole number; `prompt history` lists them"
        ) from None


@command.command()
@directive_options("VERSION")
def rollback(invocation: Invocation, directive: Directive, rest: list[str]) -> None:
    """Publish an earlier VERSION again: `prompt rollback soul 1`."""
    if len(rest) != 1:
        raise click.UsageError("give one version: prompt rollback soul 1")
    restored = _version(rest[0])
    answer = directive.request(invocation, "POST", "rollback", body={"version": restored})
    what = "cleared, as in" if answer["cleared"] else "in force, with the text of"
    emit(invocation, answer, f"Version {answer['version']} of {directive} is {what} version {restored}.")


@command.command()
@directive_options()
@click.option("--expected-version", type=int, help="Fail unless this is the current version.")
def clear(invocation: Invocation, directive: Directive, expected_version: int | None) -> None:
    """Remove a directive. Its history stays."""
    answer = directive.request(invocation, "DELETE", expected_version=expected_version)
    emit(invocation, answer, f"Cleared {directive}. Its history stays.")


@command.command()
@directive_options()
@click.option("--yes", is_flag=True, help="Publish without asking, if the text passes the checks.")
def condense(invocation: Invocation, directive: Directive, yes: bool) -> None:
    """Ask the model for a shorter text of a directive, and publish it if you agree.

    The new text must keep code, quoted text, numbers, addresses, and everything between <!-- verbatim --> and
    <!-- /verbatim -->; otherwise it is rejected. Only you can tell whether every rule is still there.
    """
    with status_line("asking the model for a shorter text …"):
        proposal = directive.request(invocation, "POST", "condense", body={})
    if not invocation.as_json:
        show_diff(proposal["diff"])
        before, after = proposal["tokens_before"], proposal["tokens_after"]
        line(f"{before} tokens become {after}: {1 - after / before:.0%} less, in every prompt", bold=True)
    # The stores are closed while the person decides.
    if yes or (not invocation.as_json and _confirm_publishing()):
        body = {"text": proposal["text"], "expected_version": proposal["version"]}
        published = directive.request(invocation, "PUT", "condense", body=body)["version"]
        emit(invocation, {**proposal, "published": published}, f"Published version {published} of {directive}.")
        return
    if invocation.as_json:
        print_json(proposal)
    else:
        version = proposal["version"]
        note(f"nothing is published; `prompt set --expected-version {version}` takes any text, --yes the model's")


def _confirm_publishing() -> bool:
    """Ask the person at the terminal. Off a terminal, the answer is no."""
    return sys.stdin.isatty() and sys.stdout.isatty() and click.confirm("Publish it?", default=False)
