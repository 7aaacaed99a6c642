"""What may and may not stand in an event."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import SECRETS, Settings
from connectors.message import Degraded, Role
from runtime.observability import Redaction
from runtime.observability.events import json_line, order_fields
from runtime.observability.redaction import MASK

CANARY = "c4n4ry/+secret"

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(f"a {CANARY} b") | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["why", "where", "detail", "text", "api_key", CANARY]), ANYTHING))
def test_whatever_is_logged_is_one_line_of_json_without_the_secret(fields: dict[str, Any]) -> None:
    """Any fields become one line of valid JSON in which no known secret can be read."""
    event = order_fields(Redaction([CANARY]).clean({"event": "x", "level": "info", **fields}), datetime.now(UTC))
    line = json_line(event)
    assert "\n" not in line
    assert line.isascii()
    assert CANARY not in line
    assert json.loads(line)["event"] == "x"


@pytest.mark.parametrize(
    "name",
    ["text", "Prompt", "content", "token", "secret", "api_key", "llm_api_key", "bot_token", "reply_text", "message"],
)
def test_forbidden_names_are_left_out_at_any_depth(name: str) -> None:
    """A field that would carry speech or a secret is dropped, and its name (only) is told."""
    cleaned = Redaction().clean({"event": "x", name: "hello", "parts": [{name: "hello", "why": "y"}]})
    assert cleaned == {"event": "x", "parts": [{"why": "y"}], "redacted": [name]}


@pytest.mark.parametrize("name", ["tokens_total", "first_token_ms", "tokens_prompt", "context_id", "reason", "parts"])
def test_the_contracts_own_fields_stay(name: str) -> None:
    """Fields whose names only resemble forbidden ones are kept."""
    assert Redaction().clean({name: 3}) == {name: 3}


def test_every_secret_of_the_settings_is_masked_wherever_it_stands() -> None:
    """Each secret setting, and a password inside of a URL, is masked in values, keys and longer strings."""
    values = {
        "redis_url": "redis://user:p4ssw0rd@store:6379/0",
        "slack_bot_token": "xoxb-1234567890",
        "slack_app_token": "xapp-1234567890",
    }
    given_secrets = {name: values.get(name, f"canary-{name}") for name in SECRETS}
    redaction = Redaction.of(Settings.model_validate(given_secrets))
    for secret in given_secrets.values():
        assert redaction.clean({"why": f"x{secret}y"}) == {"why": f"x{MASK}y"}
    assert "p4ssw0rd" not in redaction.mask("AUTH p4ssw0rd refused")
    redaction.add("generated-later")
    assert redaction.mask("Bearer generated-later") == f"Bearer {MASK}"


def test_a_secret_is_masked_as_it_stands_in_a_url() -> None:
    """A secret with special characters is found in its percent-encoded form as well."""
    assert Redaction(["a/b+c=d"]).mask("http://x/a%2Fb%2Bc%3Dd/y") == f"http://x/{MASK}/y"


def test_values_of_all_kinds_read_as_json() -> None:
    """Enumerations, paths, times, data classes and sets are readable; of other objects only the class is told."""

    @dataclass
    class Other:
        text: str
        why: str

    class Opaque:
        def __repr__(self) -> str:
            return CANARY

    cleaned = Redaction().clean(
        {
            "role": Role.ADMIN,
            "path": Path("a/b"),
            "at": datetime(2026, 1, 2, tzinfo=UTC),
            "degraded": (Degraded("retrieved", "timeout"),),
            "other": Other("no", "yes"),
            "opaque": Opaque(),
            "odd": float("nan"),
        }
    )
    assert cleaned == {
        "role": "admin",
        "path": "a/b",
        "at": "2026-01-02T00:00:00+00:00",
        "degraded": [{"block": "retrieved", "why": "timeout"}],
        "other": {"why": "yes"},
        "opaque": "<Opaque>",
        "odd": None,
        "redacted": ["text"],
    }


def test_a_password_in_a_url_is_masked_as_it_stands_there_and_as_it_is_sent() -> None:
    """Percent signs in a URL are not part of the password that a client's error may quote."""
    settings = Settings.model_validate({"redis_url": "redis://:p%40ss%2Fword@h:1", "qdrant_url": "http://u:q%23pw@h"})
    redaction = Redaction.of(settings)
    for secret in ("p%40ss%2Fword", "p@ss/word", "q%23pw", "q#pw"):
        assert secret not in redaction.mask(f"cannot log in with {secret}")


def test_a_word_that_stands_for_no_key_is_no_secret() -> None:
    """A model server of one's own often wants no key, and people write so; strategies are called the same."""
    redaction = Redaction(["none", "None", "s3cret"])

    assert redaction.clean({"strategy": "none", "why": "s3cret"}) == {"strategy": "none", "why": MASK}
