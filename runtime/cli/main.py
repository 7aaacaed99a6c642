"""The command line: global options, the list of commands, and how each kind of failure ends.

Nothing heavy is imported before it is known which command is wanted, so that help comes at once.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from runtime.cli.invocation import Invocation, Terminated

INTERRUPTED = 130
TERMINATED = 143
COLLECTED_OBJECTS = 50_000
"""Made since the last look for garbage. With Python's 700 a start looks again and again through all that it imports."""
SWITCH_SECONDS = 0.001
"""How long one thread computes before another that waits has its turn. With Python's 5 ms the event loop waits as long
for each thread that cuts documents: in an import it came round 13 ms late at p90, with this 9 (two busy cores)."""

_COMMANDS = {
    "setup": "Find or ask for a model, connect platforms, write the configuration and try it.",
    "chat": "Talk to the bot in this terminal.",
    "serve": "Run the bot: connectors, answers and the HTTP face.",
    "workspace": "Create, list, route and delete workspaces.",
    "index": "Bring the search index in step with a workspace's Markdown.",
    "codex": "Material that the model is given whole, or searches: add, list, remove.",
    "search": "Show what retrieval finds for a query.",
    "ground": "Show what the model would be told for a text; nothing is called or stored.",
    "explain": "Show what went into a turn, and why.",
    "replay": "Rebuild a turn's prompt and say whether it is the same, byte for byte.",
    "diff": "Compare what went into two turns.",
    "prompt": "Show, set, edit and roll back directives.",
    "global-context": "Lines that stand in every prompt: show, append, replace, delete, approve.",
    "memory": "Typed records: list, show, add, confirm, log outcomes, retire, forget.",
    "karma": "Answers that people marked: mark one, list them, remove one.",
    "context-doc": "What is noted about a conversation: show, put, history.",
    "dead-letters": "Turns that failed for good: list them, try them again, drop them.",
    "access": "Who may talk to the bot, and as what.",
    "metrics": "Read the structured events.",
    "usage": "Tokens and cost, by workspace and model.",
    "eval": "Score retrieval, or the strategy, on a set.",
    "logs": "Rebuild transcripts in Redis from the Markdown chat logs.",
    "reindex": "Rebuild the search index from documents and transcripts.",
    "doctor": "Check settings, stores, model, platforms and disk; say what to do.",
}
"""Each command is ``runtime.cli.commands.<name>.command``, with ``_`` for ``-``; the summary stands here, so that it
costs no import."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"runtime.cli.commands.{cmd_name.replace('-', '_')}").command
        if isinstance(command, click.Group):
            for one in command.commands.values():
                one.short_help = one.short_help or _first_paragraph(one)  # click would cut it in the middle
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _first_paragraph(command: click.Command) -> str:
    """What *command* does, whole and on one line."""
    return " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="agent-runtime", prog_name="agent-runtime")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with settings; else AGENT_RUNTIME_CONFIG, else agent-runtime.toml where there is one.",
)
@click.option("--log-format", type=click.Choice(["json", "console"]), default="json", help="How serve prints events.")
@click.option("--debug", is_flag=True, help="Show the traceback of an unexpected error.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, log_format: str, debug: bool) -> None:
    """A self-hosted bot runtime with one grounding pipeline.

    Commands talk to a running `serve` or `chat` of the same data folder; with none running they open it themselves.
    """
    ctx.obj = Invocation(config, "console" if log_format == "console" else "json")


def main() -> NoReturn:
    """The console script."""
    gc.set_threshold(COLLECTED_OBJECTS)
    sys.setswitchinterval(SWITCH_SECONDS)
    arguments = sys.argv[1:]
    code = invoke(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has enough; the interpreter must not complain about it when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # Else the interpreter looks through all that was ever imported for garbage, for seconds, before it ends.
    gc.freeze()
    loading = sys.modules.get("runtime.loading")  # not imported for this
    if loading is not None and loading.is_loading():
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 usage or configuration."""
    debug = "--debug" in arguments
    try:
        result = cli.main(list(arguments), prog_name="agent-runtime", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit as error:  # click's way out of a broken pipe
        return error.code if isinstance(error.code, int) else 1
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure is told, in one line
        return _tell(error, debug)
    return result if isinstance(result, int) else 0


def _tell(error: Exception, debug: bool) -> int:
    from config.load import ConfigurationError
    from connectors.message import AgentRuntimeError

    error = _first(error)
    if debug:
        traceback.print_exception(error)
    if isinstance(error, ConfigurationError):
        for problem in error.problems:
            _say(problem)
        return 2
    if isinstance(error, BrokenPipeError):
        return 1
    if isinstance(error, AgentRuntimeError | OSError):
        _say(str(error) or type(error).__name__)
        return int(getattr(error, "exit_code", 1))
    hint = "" if debug else "; --debug shows where"
    _say(f"unexpected error: {type(error).__name__}: {error}{hint}")
    return 1


def _first(error: Exception) -> Exception:
    """What is behind a group of errors that tasks raised."""
    while isinstance(error, ExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _say(line: str) -> None:
    from connectors.console.convert import neutralise

    click.echo(neutralise(f"agent-runtime: {line}"), err=True)
