"""Which platforms are on is told by their tokens."""

from collections.abc import Callable

import pytest
from starlette.routing import Route

from config.settings import Settings
from connectors.connector import ConnectionState, MountsRoutes
from runtime.ingress import open_platforms

TOKENS = {"telegram_bot_token": "1:none", "discord_bot_token": "none", "slack_bot_token": "xoxb-none"}


@pytest.mark.parametrize("name", ["telegram", "discord", "slack"])
async def test_a_platform_is_on_when_its_token_is_set(settings: Callable[..., Settings], name: str) -> None:
    """It is made, not connected: that is for `run`."""
    variable = f"{name}_bot_token"
    (connector,) = await open_platforms(settings(**{variable: TOKENS[variable]}))
    assert connector.name == name
    assert connector.health.state is ConnectionState.CONNECTING
    await connector.close()


async def test_without_tokens_no_platform_is_on(settings: Callable[..., Settings]) -> None:
    assert await open_platforms(settings()) == []


async def test_telegram_is_heard_by_webhook_where_a_secret_is_set(settings: Callable[..., Settings]) -> None:
    """Then it has a route of its own on the runtime's face; else it has none."""
    options = {"telegram_bot_token": TOKENS["telegram_bot_token"], "http_public_url": "https://bot.example"}
    for secret, paths in ((None, []), ("a-secret", ["/telegram/webhook"])):
        (connector,) = await open_platforms(settings(**options, telegram_webhook_secret=secret))
        assert isinstance(connector, MountsRoutes)
        assert [route.path for route in connector.routes() if isinstance(route, Route)] == paths
        await connector.close()
