"""``agent-runtime access``: people, roles, pairing codes, tokens and sign-in links."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from runtime.cli.client import api_path, request
from runtime.cli.invocation import Invocation, data_command, default_workspace_option, only_workspace_option
from runtime.cli.output import count, emit, line, table

ROLES = ("admin", "member", "viewer")


@click.group()
def command() -> None:
    """Manage people, roles, pairing codes and tokens."""


@command.command(name="list")
@only_workspace_option
@data_command
def list_(invocation: Invocation, workspace: str | None) -> None:
    """List people, open pairing codes and tokens."""
    emit(invocation, request(invocation, "GET", api_path("access"), workspace=workspace), _show_access)


def _show_access(access: dict[str, Any]) -> None:
    line(f"policy: {access['policy']} (AGENT_RUNTIME_ACCESS_POLICY)")
    if access["people"]:
        line()
        table(
            ["person", "name", "role", "workspace", "sigil"],
            [[p["user"], p["name"], p["role"], p["workspace"] or "all", p["sigil"]] for p in access["people"]],
        )
    else:
        line("Nobody has a role yet.")
    if access["pending"]:
        line()
        table(
            ["waits for approval", "name", "workspace", "asked in", "code", "hours left"],
            [
                [p["user"], p["name"], p["workspace"], _places(p), p["code"], -(-p["expires_in_seconds"] // 3600)]
                for p in access["pending"]
            ],
            right=["hours left"],
        )
        line("`agent-runtime access approve CODE` lets a person in; `agent-runtime access deny CODE` rejects it.")
    if access["tokens"]:
        line()
        table(
            ["token id", "name", "belongs to", "role", "workspace", "created", "last used"],
            [
                [
                    t["id"],
                    t["name"],
                    t["owner"],
                    t["role"],
                    t["workspace"],
                    _age(t["created_at"]),
                    _age(t["last_used_at"]),
                ]
                for t in access["tokens"]
            ],
        )
        line("`agent-runtime access revoke TOKEN_ID` revokes a token.")
    line()
    table(
        ["bound to", "sigil", "the model may, for them"],
        [[s["bound"], s["sigil"], ", ".join(s["scopes"]) or "nothing"] for s in access["sigils"]],
    )


def _places(pairing: dict[str, Any]) -> str:
    return ", ".join(place or "direct message" for place in pairing["asked_in"]) or "–"


def _age(time: str | None) -> str:
    if time is None:
        return "–"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{count(seconds // length, unit)} ago"
    return "now"


@command.command()
@click.argument("code")
@click.option("--role", type=click.Choice(ROLES), default="member", show_default=True, help="What the person may do.")
@data_command
def approve(invocation: Invocation, code: str, role: str) -> None:
    """Approve a pairing code: let the person who has CODE in."""
    answer = _change(invocation, action="approve", code=code, role=role)
    person, as_role = answer["approved"], "" if role == "member" else f", as {role}"
    emit(invocation, answer, f"{_name(person)} may now talk to the bot in workspace {person['workspace']}{as_role}.")


@command.command()
@click.argument("code")
@data_command
def deny(invocation: Invocation, code: str) -> None:
    """Reject a pairing code: do not let the person who has CODE in."""
    answer = _change(invocation, action="deny", code=code)
    person = answer["denied"]
    emit(invocation, answer, f"{_name(person)} was not let into workspace {person['workspace']}.")


def _name(person: dict[str, Any]) -> str:
    name, user = person["name"], person["user"]
    return f"{name} ({user})" if name else str(user)


@command.command()
@click.argument("user")
@click.argument("role", type=click.Choice([*ROLES, "none"]))
@default_workspace_option
@data_command
def role(invocation: Invocation, user: str, role: str, workspace: str) -> None:
    """Give USER (connector:user_id, e.g. telegram:1234) a ROLE in a workspace. `none` removes the role.

    Tokens of theirs that allow more than the person may do then are revoked.
    """
    removed = role == "none"
    answer = _change(invocation, action="role", user=user, role=None if removed else role, workspace=workspace)
    message = f"{user} no longer has a role in workspace {workspace}." if removed else f"{user}: {role} in {workspace}"
    if revoked := answer["revoked_tokens"]:
        message += f"\nRevoked with it: {', '.join(revoked)}"
    emit(invocation, answer, message)


@command.command()
@default_workspace_option
@click.option("--role", type=click.Choice(ROLES), default="member", show_default=True)
@click.option("--name", default="", help="Who or what uses the token. `access list` shows it.")
@click.option("--owner", default="", help="To whom it belongs: connector:user_id, or a name. Default: you.")
@data_command
def token(invocation: Invocation, workspace: str, role: str, name: str, owner: str) -> None:
    """Create a token for a program, for one workspace and role. The token is shown only once."""
    answer = _change(invocation, action="token", workspace=workspace, role=role, name=name, owner=owner)
    emit(invocation, answer, lambda answer: click.echo(answer["token"]))


@command.command()
@click.argument("name")
@default_workspace_option
@click.option("--role", type=click.Choice(ROLES), help="What the person may do. Default: member.")
@click.option("--renew", is_flag=True, help="Replace the person's link. The old link stops working.")
@data_command
def invite(invocation: Invocation, name: str, workspace: str, role: str | None, renew: bool) -> None:
    """Create a link with which the person NAME signs in to the chat page."""

    def show(invitation: dict[str, Any]) -> None:
        line(f"{invitation['name']} can sign in to workspace {workspace} with this link on any device:")
        line()
        click.echo(invitation["link"])
        line()
        revoke = f"`agent-runtime access revoke {invitation['id']}`"
        line(f"Anybody who has this link can sign in. {revoke} revokes it.")

    emit(invocation, _change(invocation, action="invite", workspace=workspace, name=name, role=role, renew=renew), show)


@command.command()
@click.argument("token_id")
@data_command
def revoke(invocation: Invocation, token_id: str) -> None:
    """Revoke a token by its TOKEN_ID. `access list` shows the ids."""
    emit(invocation, _change(invocation, action="revoke", token_id=token_id), f"Token {token_id} is revoked.")


def _change(invocation: Invocation, **body: Any) -> dict[str, Any]:
    return request(invocation, "POST", api_path("access"), body)
