"""The manifest from which people make their Slack app asks for what the connector uses, and for no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.emulators.slack import SlackEmulator

ROOT = Path(__file__).parents[2]


@pytest.fixture
def manifest() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "deploy/slack-manifest.yaml").read_text("utf-8"))
    return read


def test_the_app_may_do_what_the_emulator_asks_scopes_for(manifest: dict[str, Any]) -> None:
    """Each call that the connector makes, and histories of every kind of place."""
    scopes = set(manifest["oauth_config"]["scopes"]["bot"])
    assert SlackEmulator().scopes <= scopes
    assert {f"{place}:history" for place in ("channels", "groups", "im", "mpim")} <= scopes
    assert {"app_mentions:read", "commands", "reactions:read"} <= scopes
    assert not any(scope.startswith(("admin", "chat:write.", "im:write", "identify")) for scope in scopes)


def test_the_app_hears_what_the_connector_understands(manifest: dict[str, Any]) -> None:
    """By Socket Mode, in channels and in private, by one command and by buttons."""
    events = set(manifest["settings"]["event_subscriptions"]["bot_events"])
    assert {f"message.{place}" for place in ("channels", "groups", "im", "mpim")} <= events
    assert {"app_mention", "reaction_added", "reaction_removed", "member_joined_channel", "tokens_revoked"} <= events
    assert manifest["settings"]["socket_mode_enabled"] is True
    assert manifest["features"]["app_home"]["messages_tab_read_only_enabled"] is False
    assert manifest["settings"]["interactivity"]["is_enabled"] is True
    assert [command["command"] for command in manifest["features"]["slash_commands"]] == ["/agent"]


def test_the_manifest_keeps_to_slacks_lengths(manifest: dict[str, Any]) -> None:
    """A name of 35 characters, a description of 140, and a command's hint of 1,000 (docs.slack.dev, "App manifest")."""
    told = manifest["display_information"]
    assert len(told["name"]) <= 35
    assert len(told["description"]) <= 140
    assert len(manifest["features"]["slash_commands"][0]["description"]) <= 2_000
    assert len(manifest["features"]["slash_commands"][0]["usage_hint"]) <= 1_000


def test_the_page_about_the_app_names_every_scope_and_event(manifest: dict[str, Any]) -> None:
    """For who makes the app by hand."""
    page = (ROOT / "docs/connectors.md").read_text("utf-8")
    wanted = [
        *manifest["oauth_config"]["scopes"]["bot"],
        *manifest["settings"]["event_subscriptions"]["bot_events"],
    ]
    assert [name for name in wanted if f"`{name}`" not in page] == []
