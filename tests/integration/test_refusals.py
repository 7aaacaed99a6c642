"""The gateway's refusals, as a caller over HTTP gets them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.http_requests import failure
from connectors.message import Author, ConversationKey, InboundMessage, Role
from runtime.access import Access, RateLimit
from runtime.workspaces import UnknownWorkspace, Workspaces

MESSAGE = InboundMessage(
    connector="http",
    external_id="default",
    message_id="1",
    author=Author("ann"),
    text="hi",
    workspace_id="nowhere",
    caller_role=Role.ADMIN,
)


async def test_an_unknown_workspace_is_404_with_the_command_that_creates_it(redis: Redis) -> None:
    """The register's error is told as 404, and names the command."""
    with pytest.raises(UnknownWorkspace) as caught:
        await Workspaces(redis, Settings()).resolve(MESSAGE)
    error = failure(caught.value)
    assert (error.status, error.code) == (404, "unknown_workspace")
    assert "agent-runtime workspace create nowhere" in error.message


@pytest.mark.parametrize(("bound", "allowed"), [(Role.ADMIN, True), (Role.MEMBER, False), (Role.VIEWER, False)])
async def test_the_tokens_role_decides_over_the_limit_whatever_the_author(
    redis: Redis, bound: Role, allowed: bool
) -> None:
    """An admin's token is not limited under any author's name; a member's is, for an admin's name as well."""
    settings = Settings(rate_limit_messages=1, access_admins=("http:ann",))
    access, limit = Access(redis, settings), RateLimit(redis, settings)
    admissions: list[Any] = []
    for number in range(2):
        message = replace(MESSAGE, workspace_id="acme", caller_role=bound, message_id=str(number))
        decision = await access.authorise(message, "acme")
        assert decision.role is bound
        admissions.append(await limit.admit(ConversationKey("acme", "http", "default"), message, decision.role))
    assert [admission.allowed for admission in admissions] == [True, allowed]
