"""The command line: global options, the list of commands, and how each kind of failure ends.

A command's module is imported only when the command is used, so that help comes at once.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NoReturn

import click

from runtime.cli.invocation import Invocation, Terminated, as_typed, command_name

INTERRUPTED = 130
TERMINATED = 143

_COMMANDS = {
    "setup": ("setup.command", "Set up a model and platforms, step by step."),
    "chat": ("chat.command", "Talk to the bot in this terminal."),
    "serve": ("serve.command", "Run the bot: connectors, answers and the HTTP interface."),
    "workspace": ("workspace.command", "Create, list, route and delete workspaces."),
    "index": ("index.command", "Index a workspace's Markdown documents for search."),
    "codex": ("codex.command", "Manage material that the model is given whole: add, list, remove."),
    "search": ("search.command", "Show the passages that a search finds."),
    "ground": ("turns.ground", "Show the prompt for a text, without asking for an answer."),
    "explain": ("turns.explain", "Show what went into a turn, and why."),
    "replay": ("turns.replay", "Rebuild a turn's prompt and check that it is identical."),
    "diff": ("turns.diff", "Compare what went into two turns."),
    "prompt": ("prompt.command", "Show, set, edit and roll back directives."),
    "global-context": ("global_context.command", "Manage the lines that are in every prompt of a workspace."),
    "memory": ("memory.command", "Manage records: decisions, facts, procedures, tasks and more."),
    "karma": ("karma.command", "Manage the marks on answers (👍 and 👎)."),
    "context-doc": ("context_doc.command", "Show and replace a conversation's summary (context document)."),
    "dead-letters": ("dead_letters.command", "List, retry and drop turns that failed for good."),
    "access": ("access.command", "Manage people, roles, pairing codes and tokens."),
    "metrics": ("metrics.command", "Show events and memory figures."),
    "usage": ("usage.command", "Show tokens, cost and budgets."),
    "eval": ("eval.command", "Measure retrieval, the strategy or memory on a test set."),
    "logs": ("rebuild.logs", "Restore conversations from the Markdown chat logs."),
    "reindex": ("rebuild.reindex", "Rebuild the search index from documents and transcripts."),
    "doctor": ("doctor.command", "Check settings, stores, models, platforms and disk."),
}
"""By command: its place below ``runtime.cli.commands``, and its summary."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(".")
        command: click.Command = getattr(importlib.import_module(f"runtime.cli.commands.{module}"), name)
        if isinstance(command, click.Group):
            for child in command.commands.values():
                child.short_help = child.short_help or _first_paragraph(child)  # click would cut it in the middle
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


def _first_paragraph(command: click.Command) -> str:
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


@click.group(
    cls=_Commands,
    commands={name: click.Command(name) for name in _COMMANDS},  # by these click knows what a misspelt one means
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="agent-runtime", prog_name="agent-runtime")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with settings. Default: the file in AGENT_RUNTIME_CONFIG, or agent-runtime.toml in this folder.",
)
@click.option("--log-format", type=click.Choice(["json", "console"]), help="Format of the events that serve prints.")
@click.option("--debug", is_flag=True, help="Show the traceback of an unexpected error.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, log_format: Literal["json", "console"] | None, debug: bool) -> None:
    """A self-hosted bot for chats, which answers from your documents.

    Commands use the `serve` or `chat` that runs on the same data folder. If none runs, they open the folder themselves.
    """
    ctx.obj = Invocation(config, log_format)


def main() -> NoReturn:
    """Run the console script."""
    # For numpy, before it is imported. Its threads wait by spinning: beside other work they take ten times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    code = invoke(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has enough. The interpreter must not complain about it when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # Otherwise the interpreter looks for garbage in all that was imported, for seconds, before it ends.
    gc.freeze()
    sys.exit(code)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong usage or configuration."""
    debug = "--debug" in arguments
    try:
        result = cli.main(list(arguments), prog_name=command_name(), standalone_mode=False)
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        click.echo(as_typed(message.getvalue().rstrip("\n")), err=True)
        return error.exit_code
    except SystemExit as error:  # click's way out of a broken pipe
        return error.code if isinstance(error.code, int) else 1
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure is one line
        return _report(error, debug)
    return result if isinstance(result, int) else 0


def _report(error: Exception, debug: bool) -> int:
    """Print *error*, of a group of errors the first one, and return the exit code."""
    from config.load import ConfigurationError
    from connectors.message import AgentRuntimeError

    while isinstance(error, ExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if debug:
        traceback.print_exception(error)
    if isinstance(error, ConfigurationError):
        for problem in error.problems:
            _print_error(problem)
        return 2
    if isinstance(error, BrokenPipeError):
        return 1
    if isinstance(error, AgentRuntimeError | OSError):
        _print_error(str(error) or type(error).__name__)
        return int(getattr(error, "exit_code", 1))
    hint = "" if debug else " (--debug shows the traceback)"
    _print_error(f"unexpected error: {type(error).__name__}: {error}{hint}")
    return 1


def _print_error(text: str) -> None:
    from connectors.console import neutralise

    click.echo(neutralise(f"agent-runtime: {as_typed(text)}"), err=True)
