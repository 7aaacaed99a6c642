"""Which platforms are on is told by their tokens."""

from collections.abc import Callable

import pytest

from config.settings import Settings
from connectors.connector import State
from runtime.platforms import open_platforms

TOKENS = {"telegram_bot_token": "1:none", "discord_bot_token": "none", "slack_bot_token": "xoxb-none"}


@pytest.mark.parametrize("name", ["telegram", "discord", "slack"])
async def test_a_platform_is_on_when_its_token_is_set(settings: Callable[..., Settings], name: str) -> None:
    """It is made, not connected: that is for `run`."""
    variable = f"{name}_bot_token"
    (connector,) = await open_platforms(settings(**{variable: TOKENS[variable]}))
    assert connector.name == name
    assert connector.health.state is State.CONNECTING
    await connector.close()


async def test_without_tokens_no_platform_is_on(settings: Callable[..., Settings]) -> None:
    assert await open_platforms(settings()) == []
