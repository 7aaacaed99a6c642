"""``agent-runtime access``: who may talk to the bot, and as what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.invocation import Invocation, default_workspace_option, json_option, run
from runtime.cli.output import count, line, print_json, table

ROLES = ("admin", "member", "viewer")


@click.group()
def command() -> None:
    """Manage people, roles, pairing codes and tokens."""


@command.command(name="list")
@click.option("-w", "--workspace", metavar="W", help="Only this workspace.")
@json_option
@click.pass_obj
def list_(invocation: Invocation, workspace: str | None, as_json: bool) -> None:
    """List people, open pairing codes and tokens."""
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
        line("Nobody has a role yet.")
    if found["pending"]:
        line()
        table(
            ["waits for approval", "name", "workspace", "asked in", "code", "hours left"],
            [
                [p["user"], p["name"], p["workspace"], _where(p), p["code"], -(-p["expires_in_seconds"] // 3600)]
                for p in found["pending"]
            ],
            right=["hours left"],
        )
        line("`agent-runtime access approve CODE` lets a person in; `agent-runtime access deny CODE` rejects it.")
    if found["tokens"]:
        line()
        table(
            ["token id", "name", "role", "workspace", "created", "last used"],
            [
                [t["id"], t["name"], t["role"], t["workspace"], _since(t["created_at"]), _since(t["last_used_at"])]
                for t in found["tokens"]
            ],
        )
        line("`agent-runtime access revoke TOKEN_ID` revokes a token.")
    line()
    table(
        ["bound to", "sigil", "the model may, for them"],
        [[s["bound"], s["sigil"], ", ".join(s["scopes"]) or "nothing"] for s in found["sigils"]],
    )


@command.command()
@click.argument("code")
@click.option("--role", type=click.Choice(ROLES), default="member", show_default=True, help="What the person may do.")
@json_option
@click.pass_obj
def approve(invocation: Invocation, code: str, role: str, as_json: bool) -> None:
    """Approve a pairing code: let the person who has CODE in."""
    body = {"action": "approve", "code": code, "role": role}
    person = run(_act(invocation.settings(), body, as_json))["approved"]
    if not as_json:
        as_role = "" if role == "member" else f", as {role}"
        line(f"{_who(person)} may now talk to the bot in workspace {person['workspace']}{as_role}.")


@command.command()
@click.argument("code")
@json_option
@click.pass_obj
def deny(invocation: Invocation, code: str, as_json: bool) -> None:
    """Reject a pairing code: do not let the person who has CODE in."""
    person = run(_act(invocation.settings(), {"action": "deny", "code": code}, as_json))["denied"]
    if not as_json:
        line(f"{_who(person)} was not let into workspace {person['workspace']}.")


@command.command()
@click.argument("user")
@click.argument("role", type=click.Choice([*ROLES, "none"]))
@default_workspace_option
@json_option
@click.pass_obj
def role(invocation: Invocation, user: str, role: str, workspace: str | None, as_json: bool) -> None:
    """Give USER (connector:user_id, e.g. telegram:1234) a ROLE in a workspace. `none` removes the role."""
    name = workspace or invocation.settings().default_workspace
    body = {"action": "role", "user": user, "role": None if role == "none" else role, "workspace": name}
    run(_act(invocation.settings(), body, as_json))
    if not as_json:
        line(f"{user} no longer has a role in workspace {name}." if role == "none" else f"{user}: {role} in {name}")


@command.command()
@default_workspace_option
@click.option("--role", type=click.Choice(ROLES), default="member", show_default=True)
@click.option("--name", default="", help="Who or what uses the token. `access list` shows it.")
@json_option
@click.pass_obj
def token(invocation: Invocation, workspace: str | None, role: str, name: str, as_json: bool) -> None:
    """Create a token for a program, for one workspace and role. The token is shown only once."""
    where = workspace or invocation.settings().default_workspace
    answer = run(
        _act(invocation.settings(), {"action": "token", "workspace": where, "role": role, "name": name}, as_json)
    )
    if not as_json:
        click.echo(answer["token"])


@command.command()
@click.argument("name")
@default_workspace_option
@click.option("--role", type=click.Choice(ROLES), help="What the person may do. Default: member.")
@click.option("--renew", is_flag=True, help="Replace the person's link. The old link stops working.")
@json_option
@click.pass_obj
def invite(
    invocation: Invocation, name: str, workspace: str | None, role: str | None, renew: bool, as_json: bool
) -> None:
    """Create a link with which the person NAME signs in to the chat page."""
    where = workspace or invocation.settings().default_workspace
    body = {"action": "invite", "workspace": where, "name": name, "role": role, "renew": renew}
    made = run(_act(invocation.settings(), body, as_json))
    if not as_json:
        line(f"{made['name']} can sign in to workspace {where} with this link on any device:")
        line()
        click.echo(made["link"])
        line()
        line(f"Anybody who has this link can sign in. `agent-runtime access revoke {made['id']}` revokes it.")


@command.command()
@click.argument("token_id")
@json_option
@click.pass_obj
def revoke(invocation: Invocation, token_id: str, as_json: bool) -> None:
    """Revoke a token by its TOKEN_ID. `access list` shows the ids."""
    run(_act(invocation.settings(), {"action": "revoke", "token_id": token_id}, as_json))
    if not as_json:
        line(f"Token {token_id} is revoked.")


async def _act(settings: Settings, body: dict[str, Any], as_json: bool) -> dict[str, Any]:
    async with connect(settings) as client:
        answer = await client.post("/v1/access", body)
    if as_json:
        print_json(answer)
    return answer


def _who(person: dict[str, Any]) -> str:
    name, user = person["name"], person["user"]
    return f"{name} ({user})" if name else str(user)


def _where(request: dict[str, Any]) -> str:
    return ", ".join(place or "direct message" for place in request["asked_in"]) or "–"


def _since(time: str | None) -> str:
    """How long ago *time* was, in the largest unit that fits; a dash where it is not known."""
    if time is None:
        return "–"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count(seconds // length, unit)} ago"
    return "now"
