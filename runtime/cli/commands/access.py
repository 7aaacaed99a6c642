"""``agent-runtime access``: who may talk to the bot, and as what."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, print_json, table

ROLES = ("admin", "member", "viewer")


@click.group()
def command() -> None:
    """People, pairing codes, roles and API tokens."""


@command.command(name="list")
@click.option("-w", "--workspace", metavar="W", help="Of this workspace only.")
@json_option
@click.pass_obj
def list_(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """Show who may talk to the bot, who waits for approval, and which tokens there are."""
    run(_list(invocation.settings(), workspace, as_json))


async def _list(settings: Settings, workspace: str | None, as_json: bool) -> None:
    async with connect(settings) as client:
        found = await client.get("/v1/access", workspace=workspace)
    if as_json:
        print_json(found)
        return
    line(f"policy: {found['policy']} (AGENT_RUNTIME_ACCESS_POLICY)")
    if found["people"]:
        line()
        table(
            ["person", "name", "role", "workspace", "sigil"],
            [[p["user"], p["name"], p["role"], p["workspace"] or "all", p["sigil"]] for p in found["people"]],
        )
    else:
        line("nobody has a role yet")
    if found["pending"]:
        line()
        table(
            ["waits for approval", "name", "workspace", "minutes left"],
            [[p["user"], p["name"], p["workspace"], p["expires_in_seconds"] // 60] for p in found["pending"]],
            right=["minutes left"],
        )
        line("they have a code; `agent-runtime access approve CODE` lets them in")
    if found["tokens"]:
        line()
        table(["token", "workspace", "role"], [[t["id"], t["workspace"], t["role"]] for t in found["tokens"]])
    line()
    table(
        ["bound to", "sigil", "the model may, for them"],
        [[s["bound"], s["sigil"], ", ".join(s["scopes"]) or "nothing"] for s in found["sigils"]],
    )


@command.command()
@click.argument("code")
@json_option
@click.pass_obj
def approve(invocation: Invocation, code: str, as_json: bool) -> None:
    """Let in the person who was given CODE."""
    person = run(_act(invocation.settings(), {"action": "approve", "code": code}, as_json))["approved"]
    if not as_json:
        line(f"{_who(person)} may talk to the bot in workspace {person['workspace']} now")


@command.command()
@click.argument("code")
@json_option
@click.pass_obj
def deny(invocation: Invocation, code: str, as_json: bool) -> None:
    """Make CODE worthless."""
    person = run(_act(invocation.settings(), {"action": "deny", "code": code}, as_json))["denied"]
    if not as_json:
        line(f"{_who(person)} was not let into workspace {person['workspace']}")


@command.command()
@click.argument("user")
@click.argument("role", type=click.Choice([*ROLES, "none"]))
@workspace_option
@json_option
@click.pass_obj
def role(invocation: Invocation, user: str, role: str, workspace: str | None, as_json: bool) -> None:
    """Give USER (connector:user_id, e.g. telegram:1234) a ROLE in a workspace; `none` takes it away."""
    name = workspace_of(invocation.settings(), workspace)
    body = {"action": "role", "user": user, "role": None if role == "none" else role, "workspace": name}
    run(_act(invocation.settings(), body, as_json))
    if not as_json:
        line(f"{user} has no role in workspace {name} any more" if role == "none" else f"{user}: {role} in {name}")


@command.command()
@workspace_option
@click.option("--role", type=click.Choice(ROLES), default="member", show_default=True)
@json_option
@click.pass_obj
def token(invocation: Invocation, workspace: str | None, role: str, as_json: bool) -> None:
    """Make a token for programs, good for one workspace and role. It is shown this once."""
    name = workspace_of(invocation.settings(), workspace)
    answer = run(_act(invocation.settings(), {"action": "token", "workspace": name, "role": role}, as_json))
    if not as_json:
        click.echo(answer["token"])


@command.command()
@click.argument("token_id")
@json_option
@click.pass_obj
def revoke(invocation: Invocation, token_id: str, as_json: bool) -> None:
    """Make the token TOKEN_ID (see `access list`) worthless."""
    run(_act(invocation.settings(), {"action": "revoke", "token_id": token_id}, as_json))
    if not as_json:
        line(f"token {token_id} is revoked")


async def _act(settings: Settings, body: dict[str, Any], as_json: bool) -> dict[str, Any]:
    async with connect(settings) as client:
        answer = await client.post("/v1/access", body)
    if as_json:
        print_json(answer)
    return answer


def _who(person: dict[str, Any]) -> str:
    name, user = person["name"], person["user"]
    return f"{name} ({user})" if name else str(user)
