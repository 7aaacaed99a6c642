"""``agent-runtime doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from config.load import ConfigurationError, LoadedSettings
from config.settings import Settings
from connectors.message import AgentRuntimeError
from runtime.cli.client import ApiError, Client, connect
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import IndexingEnded, StatusLine, count, ensure_indexed, line, print_json, status_line

Check = dict[str, Any]


@click.command()
@json_option
@click.pass_obj
def command(invocation: Invocation, as_json: bool) -> int:
    """Check settings, stores, models, platforms and disk, and say what to do about each problem.

    If no `serve` or `chat` runs, it opens the stores and indexes new documents itself. The exit code is 1 if a check
    fails (a warning is no failure), and 2 if the settings cannot be read.
    """
    try:
        loaded = invocation.load()
    except ConfigurationError as error:
        advice = "correct it in the environment or in the configuration file"
        wrong = [_check("settings", ok=False, detail=problem, advice=advice) for problem in error.problems]
        _tell(wrong, as_json, "The settings cannot be read; nothing else was checked.")
        return 2
    return 1 if _tell(_checks(loaded), as_json) else 0


def _tell(checks: list[Check], as_json: bool, ended: str = "") -> list[Check]:
    """Print *checks*, and why there were no more (*ended*); those that failed."""
    failed = [check for check in checks if not check["ok"]]
    if as_json:
        print_json({"ok": not failed, "checks": checks})
    else:
        for check in checks:
            show(check)
        line()
        warnings = [check for check in checks if check["ok"] and check["advice"]]
        ending = "no check failed" if warnings else "everything works"
        ending = ended or (f"{len(failed)} of {len(checks)} checks failed" if failed else ending)
        line(f"{ending}; {count(len(warnings), 'warning')}" if warnings else ending, bold=True)
    return failed


def _checks(loaded: LoadedSettings) -> list[Check]:
    where = f"from {loaded.file} and the environment" if loaded.file else "from the environment and defaults"
    fallen_back = [
        _check(
            "settings",
            ok=False,
            detail=f"{number.variable}={number.value!r} is not a positive integer; {number.default} is used",
            advice=f"set {number.variable} to a positive integer, or unset it",
        )
        for number in loaded.fallen_back
    ]
    with status_line("checking (the model is asked for one word) …"):
        checks = run(_ask(loaded.settings))
    settings = next((check for check in checks if check["name"] == "settings"), None)
    others = [check for check in checks if check is not settings]
    read = settings or _check("settings", ok=True, detail="")
    return [{**read, "detail": f"read {where}"} if read["ok"] else read, *fallen_back, *others]


async def _ask(settings: Settings) -> list[Check]:
    try:
        async with connect(settings) as client:
            if client.runtime is None:
                return [_check("runtime", ok=True, detail="a running serve or chat answers"), *await _checks_of(client)]
            await _start(client)
            opened = _check("runtime", ok=True, detail="no serve or chat runs; this command opened the data folder")
            # No connector runs in this process; whether they could, the platforms were asked.
            checks = [check for check in await _checks_of(client) if not check["name"].startswith("connector ")]
            return [opened, *checks]
    except (AgentRuntimeError, OSError) as error:
        advice = "do what the line above says; then run `agent-runtime doctor` again"
        return [_check("runtime", ok=False, detail=str(error) or type(error).__name__, advice=advice)]


async def _checks_of(client: Client) -> list[Check]:
    checks: list[Check] = (await client.get("/v1/doctor"))["checks"]
    return checks


async def _start(client: Client) -> None:
    """What a start does: wait for the search index and index what is pending. Failures show in the checks."""
    with contextlib.suppress(ApiError):
        for workspace in (await client.get("/v1/workspaces"))["workspaces"]:
            with contextlib.suppress(ApiError, IndexingEnded):
                await ensure_indexed(client, workspace["id"], StatusLine())


def _check(name: str, *, ok: bool, detail: str, advice: str = "") -> Check:
    return {"name": name, "ok": ok, "detail": detail, "advice": advice}


def show(check: Check) -> None:
    """Print one check for a person."""
    told = f"{check['name']}: {check['detail']}"
    if not check["ok"]:
        line(f"FAILED  {told}", fg="red")
    elif check["advice"]:
        line(f"warning {told}", fg="yellow")
    else:
        line(f"ok      {told}")
    if check["advice"]:
        line(f"        → {check['advice']}")
