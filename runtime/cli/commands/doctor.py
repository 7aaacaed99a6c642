"""``agent-runtime doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from config.load import ConfigurationError, LoadedSettings
from config.settings import Settings
from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, api_path, connect
from runtime.cli.invocation import Invocation, data_command, run
from runtime.cli.output import count, emit, line
from runtime.cli.progress import RunEnded, StatusLine, index_if_pending, status_line

Check = dict[str, Any]


@click.command()
@data_command
def command(invocation: Invocation) -> int:
    """Check settings, stores, models, platforms and disk, and say what to do about each problem.

    If no `serve` or `chat` runs, it opens the stores and indexes new documents itself. The exit code is 1 if a check
    fails (a warning is no failure), and 2 if the settings cannot be read.
    """
    try:
        loaded = invocation.load()
    except ConfigurationError as error:
        advice = "correct it in the environment or in the configuration file"
        failures = [_check("settings", ok=False, detail=problem, advice=advice) for problem in error.problems]
        _emit(invocation, failures, "The settings cannot be read; nothing else was checked.")
        return 2
    with status_line("checking (the model is asked for one word) …"):
        checks = run(_ask_runtime(loaded.settings))
    checks = _with_settings(loaded, checks)
    _emit(invocation, checks)
    return 0 if all(check["ok"] for check in checks) else 1


async def _ask_runtime(settings: Settings) -> list[Check]:
    """Return the checks of the running process, or of a runtime that is opened here."""
    try:
        async with connect(settings) as client:
            if client.runtime is not None:
                await _index_all(client)
            checks = (await client.get(api_path("doctor")))["checks"]
            if client.runtime is None:
                return [_check("runtime", ok=True, detail="a running serve or chat answers"), *checks]
            opened = _check("runtime", ok=True, detail="no serve or chat runs; this command opened the data folder")
            # No connector runs in this process. The checks of the platforms say whether connectors could run.
            return [opened, *(check for check in checks if not check["name"].startswith("connector "))]
    except (AgentRuntimeError, OSError) as error:
        advice = "do what the line above says; then run `agent-runtime doctor` again"
        return [_check("runtime", ok=False, detail=str(error) or type(error).__name__, advice=advice)]


async def _index_all(client: Client) -> None:
    """Index what is pending, as `serve` does when it starts. Failures show in the checks."""
    with contextlib.suppress(ApiError):
        for workspace in await client.workspaces():
            with contextlib.suppress(ApiError, RunEnded):
                await index_if_pending(client, workspace, StatusLine())


def _with_settings(loaded: LoadedSettings, checks: list[Check]) -> list[Check]:
    """Return *checks* with the check of the settings first, which names the file and each number that is not used."""
    source = f"from {loaded.file} and the environment" if loaded.file else "from the environment and defaults"
    read = _check("settings", ok=True, detail=f"read {source}")
    first = next((check for check in checks if check["name"] == "settings"), read)
    defaulted_numbers = [
        _check(
            "settings",
            ok=False,
            detail=f"{number.variable}={number.value!r} is not a positive integer; {number.default} is used",
            advice=f"set {number.variable} to a positive integer, or unset it",
        )
        for number in loaded.defaulted_numbers
    ]
    others = [check for check in checks if check is not first]
    return [{**first, "detail": read["detail"]} if first["ok"] else first, *defaulted_numbers, *others]


def _check(name: str, *, ok: bool, detail: str, advice: str = "") -> Check:
    return {"name": name, "ok": ok, "detail": detail, "advice": advice}


def _emit(invocation: Invocation, checks: list[Check], ending: str = "") -> None:
    """Print *checks* and their sum, or *ending* in its place."""
    failed = sum(not check["ok"] for check in checks)

    def show(_: Any) -> None:
        for check in checks:
            _show_check(check)
        line()
        warnings = sum(bool(check["ok"] and check["advice"]) for check in checks)
        sum_up = f"{failed} of {len(checks)} checks failed" if failed else "no check failed"
        text = ending or ("everything works" if not failed and not warnings else sum_up)
        line(f"{text}; {count(warnings, 'warning')}" if warnings else text, bold=True)

    emit(invocation, {"ok": not failed, "checks": checks}, show)


def _show_check(check: Check) -> None:
    text = f"{check['name']}: {check['detail']}"
    if not check["ok"]:
        line(f"FAILED  {text}", fg="red")
    elif check["advice"]:
        line(f"warning {text}", fg="yellow")
    else:
        line(f"ok      {text}")
    if check["advice"]:
        line(f"        → {check['advice']}")
