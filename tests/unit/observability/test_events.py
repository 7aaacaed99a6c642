"""Events as they are printed and handed on, and what may and may not stand in them."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from config.settings import SECRETS, Settings
from connectors.message import Degraded, Role
from runtime.observability import Redaction, events
from runtime.observability.events import json_line, order_fields
from runtime.observability.redaction import MASK


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """Leaves logging as it was found."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


class Sink:
    def __init__(self, **options: Any) -> None:
        self.output = io.StringIO()
        self.kept: list[dict[str, Any]] = []
        self.kept_lines: list[str] = []
        logging.getLogger().handlers.clear()  # pytest's own fail on what libraries get wrong
        events.configure(Redaction(["hunter22"]), output=self.output, keep=self._keep, **options)

    def _keep(self, event: dict[str, Any], line: str) -> None:
        self.kept.append(event)
        self.kept_lines.append(line)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.getvalue().splitlines()]


def test_an_event_is_one_line_with_its_fields_in_a_stable_order() -> None:
    """Each event is one JSON line: name, level, time in UTC, the ids that apply, then its own fields."""
    sink = Sink()
    with events.event_context(workspace_id="acme", context_id="http:default", connector="http", turn_id="t1"):
        structlog.get_logger().info("turn.answered", attempts=1, model="m")
    structlog.get_logger().warning("store.degraded", why="away")
    first, second = sink.lines()
    assert list(first) == [
        *("event", "level", "timestamp", "workspace_id", "context_id", "connector", "turn_id"),
        *("attempts", "model"),
    ]
    assert (first["event"], first["level"], first["turn_id"]) == ("turn.answered", "info", "t1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["timestamp"])
    assert datetime.fromisoformat(first["timestamp"]).utcoffset() is not None
    assert list(second) == ["event", "level", "timestamp", "why"]
    assert sink.kept == [first, second]
    assert sink.kept_lines == sink.output.getvalue().splitlines()


def test_an_event_that_cannot_be_written_is_told_by_what_every_event_has() -> None:
    """A number of thousands of digits, which Python does not print, neither breaks who logs it nor hides the event."""
    sink = Sink()
    with events.event_context(workspace_id="acme"):
        structlog.get_logger().warning("tool.failed", amount=10**5000)
    (line,) = sink.lines()
    assert sink.kept == [line]
    assert (line["event"], line["level"], line["workspace_id"]) == ("tool.failed", "warning", "acme")


def test_events_below_the_level_are_not_printed() -> None:
    """Details for debugging are left out."""
    sink = Sink()
    structlog.get_logger().debug("detail")
    assert sink.lines() == []


def test_silent_prints_nothing_but_keeps_all() -> None:
    """A command whose output is for people prints no events, but they are kept."""
    sink = Sink(silent=True)
    structlog.get_logger().info("turn.answered")
    assert sink.output.getvalue() == ""
    assert [event["event"] for event in sink.kept] == ["turn.answered"]


def test_for_people_an_event_is_readable_and_as_clean() -> None:
    """In the console format an event is no JSON, has its fields, and hides the same things."""
    sink = Sink(log_format="console")
    structlog.get_logger().info("turn.answered", model="m", text="what was said", why="hunter22")
    line = sink.output.getvalue()
    assert "turn.answered" in line
    assert "model" in line
    assert "what was said" not in line
    assert "hunter22" not in line


def printed(**event: Any) -> str:
    return events.format_event({"level": "info", "timestamp": "2026-11-24T09:08:07.654Z", **event})


def test_an_event_for_people_has_the_fields_that_matter_in_words() -> None:
    place = {"workspace_id": "acme", "context_id": "http:default", "connector": "http", "turn_id": "t1"}
    answered = {"tokens_prompt": 701, "tokens_completion": 98, "latency_ms": 278.1, "overhead_ms": 4.2, "rounds": 1}
    assert printed(event="turn.answered", **place, model="m", **answered) == (
        "09:08:07  turn.answered         acme/http:default  "
        "model m, tokens prompt 701, tokens completion 98, latency 278.1 ms, turn t1"
    )
    changed = {"kind": "soul", "name": "", "version": 2, "author": "http:u1", "origin": "api", "cleared": False}
    assert printed(event="directive.changed", workspace_id="acme", **changed) == (
        "09:08:07  directive.changed     acme  kind soul, version 2, author http:u1"
    )
    assert printed(event="tool.called", tool="search", ok=False).endswith("tool search, not ok")


def test_a_warning_for_people_says_all_and_why_at_its_end() -> None:
    told = {"connector": "slack", "turn_id": "t1", "part": 2, "wait_seconds": 0.5, "why": "it is away, for now"}
    assert printed(event="reply.retried", **told | {"level": "warning"}) == (
        "09:08:07  WARNING reply.retried  slack  part 2, wait 0.5 s, turn t1: it is away, for now"
    )
    assert "\x1b" not in printed(event="x.y", path="\x1b[31mred", why="\x1b]0;title\x07")


def test_a_line_on_a_terminal_is_broken_between_words() -> None:
    line = printed(event="index.skipped", path="people/holidays.md", why="it is a link, and links are not followed")
    folded = events.wrap_line(line, 60).splitlines()
    assert len(folded) > 1
    assert all(len(one) <= 60 for one in folded)
    assert all(one.startswith(" " * 10) for one in folded[1:])
    assert " ".join(" ".join(folded).split()) == " ".join(line.split())


def fail() -> None:
    try:
        int("what was said")
    except ValueError as error:
        raise RuntimeError("and the prompt") from error


def test_an_exception_is_told_by_class_and_place_and_not_by_its_text() -> None:
    """A logged exception names its classes and frames; its text, which may quote anything, is not printed."""
    sink = Sink()
    try:
        fail()
    except RuntimeError:
        structlog.get_logger().exception("turn.failed")
    (event,) = sink.lines()
    assert event["error"] == "RuntimeError < ValueError"
    assert re.fullmatch(r"test_events\.py:\d+ fail", event["frames"][-1])
    assert "what was said" not in sink.output.getvalue()
    assert "and the prompt" not in sink.output.getvalue()


def test_libraries_come_out_as_events_from_warning_on() -> None:
    """What libraries log becomes an event with logger and place, from WARNING on, without secrets or dumps."""
    sink = Sink()
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("cannot %s %s\nand a dump", "reach", "hunter22")
    logging.getLogger("some.library").log(35, "odd level")
    logging.getLogger("some.library").error("bad arguments %d", "x")
    first, second, third = sink.lines()
    assert (first["event"], first["level"], first["library"]) == ("library.log", "warning", "some.library")
    assert first["why"] == "cannot reach **********"
    assert second["level"] == "warning"
    assert (third["level"], third["why"]) == ("error", "bad arguments %d")


def test_libraries_that_see_what_people_say_do_not_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of platform and model libraries a line is told with its numbers and classes of errors, without what else was
    filled in."""
    sink = Sink()
    litellm = logging.getLogger("LiteLLM")  # as it is before LiteLLM is imported and silenced
    for name, value in {"level": logging.NOTSET, "propagate": True, "disabled": False}.items():
        monkeypatch.setattr(litellm, name, value)
    logging.getLogger("aiogram.dispatcher").error("update %s failed", "what was said")
    logging.getLogger("LiteLLM").error("prompt: what was said")
    late = "Shard ID %s heartbeat blocked for %.1f seconds (%s): %r"
    logging.getLogger("discord.gateway").warning(late, 3, 10.25, "what was said", OSError("what was said"))
    logging.getLogger("discord.http").warning(
        "%(method)s took %(seconds)d s", {"method": "what was said", "seconds": 5}
    )
    logging.getLogger("discord.http").warning("does not fit %d", "what was said")
    assert [event["why"] for event in sink.lines()] == [
        "update … failed",
        "",
        "Shard ID 3 heartbeat blocked for 10.2 seconds (…): 'OSError'",
        "… took 5 s",
        "does not fit %d",
    ]
    assert "what was said" not in sink.output.getvalue()


def test_configuring_twice_does_not_double_anything() -> None:
    """A second configuration takes the place of the first."""
    Sink()
    sink = Sink()
    logging.getLogger("x").warning("once")
    assert len(sink.lines()) == 1


def test_a_reader_that_went_away_does_not_stop_the_process() -> None:
    """Printing into a closed output is no error for whoever logs, and the event is kept all the same."""
    sink = Sink()
    sink.output.close()
    structlog.get_logger().info("turn.answered")
    assert [event["event"] for event in sink.kept] == ["turn.answered"]


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
