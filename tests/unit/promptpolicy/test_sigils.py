"""Sigils: which permission scopes hold for whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigurationError, load
from connectors.message import Role
from promptpolicy.sigils import Holder, Sigil, Sigils

SCOPES = st.from_regex(r"(a|b|c|\*):(read|write|all|\*)", fullmatch=True) | st.just("*")
NEEDED = [f"{what}:{do}" for what in "abc" for do in ("read", "write", "all")]
SIGILS = st.builds(Sigil.of, st.sampled_from(["one", "two", "three"]), st.lists(SCOPES, max_size=5))
LENA = Holder("telegram:1", Role.MEMBER)
TEAM = "telegram:-100"


def settings(tmp_path: Path, text: str) -> Sigils:
    file = tmp_path / "bot.toml"
    file.write_text(text, encoding="utf-8")
    return Sigils.from_settings(load({}, file).settings)


def test_without_settings_viewers_read_members_write_and_admins_do_all() -> None:
    shipped = Sigils({}, {})
    allowed = {
        role: [do for do in ("read", "write", "administer") if shipped.of_person("x:1", role).allows(f"notes:{do}")]
        for role in Role
    }
    assert allowed == {
        Role.ADMIN: ["read", "write", "administer"],
        Role.MEMBER: ["read", "write"],
        Role.VIEWER: ["read"],
    }


def test_the_most_specific_binding_holds_the_users_then_the_contexts_then_the_roles() -> None:
    sigils = Sigils(
        {"own": ["notes:write"], "team": ["notes:read"], "all": ["notes:burn"]},
        {"user:telegram:1": "own", f"context:{TEAM}": "team", "role:member": "all"},
    )
    ben = Holder("telegram:2", Role.MEMBER)
    assert sigils.held_by([LENA], TEAM).name == "own"
    assert sigils.held_by([ben], TEAM).name == "team"
    assert sigils.held_by([ben], "telegram:-200").name == "all"
    assert sigils.held_by([Holder("telegram:2", Role.ADMIN)], "telegram:-200").name == "admin"


def test_what_is_bound_to_a_place_binds_its_threads_save_those_that_have_their_own() -> None:
    """A question in a channel of Slack is answered in a thread: else nobody would be bound there at all."""
    sigils = Sigils(
        {"team": ["notes:read"], "open": ["*"]},
        {"context:slack:C1": "team", "context:slack:C1/17.2": "open", "user:slack:U7": "admin"},
    )
    boss = Holder("slack:U1", Role.ADMIN)
    named = {place: sigils.held_by([boss], f"slack:{place}").name for place in ("C1", "C1/17.1", "C1/17.2", "C10/17.1")}
    assert named == {"C1": "team", "C1/17.1": "team", "C1/17.2": "open", "C10/17.1": "admin"}
    assert sigils.held_by([Holder("slack:U7", Role.VIEWER)], "slack:C1/17.1").name == "admin"


def test_who_is_only_said_to_be_somebody_has_no_more_by_that_than_by_the_role() -> None:
    sigils = Sigils({"boss": ["*"], "little": ["notes:read"]}, {"user:http:boss": "boss", "user:http:kid": "little"})
    boss, kid = Holder("http:boss", Role.VIEWER), Holder("http:kid", Role.ADMIN)
    assert sigils.held_by([boss], "http:x", vouched=False) == Sigil.of("viewer", ["*:read"])
    assert sigils.held_by([boss], "http:x").allows("notes:burn")
    assert sigils.held_by([kid], "http:x", vouched=False).name == "little"


def test_of_several_who_are_answered_together_each_scope_must_be_everybodys() -> None:
    sigils = Sigils({"notes": ["notes:*"]}, {"user:telegram:1": "notes"})
    both = sigils.held_by([LENA, Holder("telegram:2", Role.VIEWER)], TEAM)
    assert (both.name, both.scopes) == ("notes+viewer", ("notes:read",))
    assert sigils.held_by([Holder("telegram:3", Role.ADMIN), Holder("telegram:2", Role.VIEWER)], TEAM).name == "viewer"


@given(SIGILS, SIGILS, st.sampled_from(NEEDED))
def test_together_two_allow_exactly_what_each_of_them_allows(one: Sigil, two: Sigil, scope: str) -> None:
    assert one.meet(two).allows(scope) is (one.allows(scope) and two.allows(scope))
    assert one.meet(two).scopes == two.meet(one).scopes
    assert one.meet(one) == one


@given(st.lists(SCOPES, max_size=6))
def test_a_sigil_is_the_same_however_its_scopes_are_written_down(scopes: list[str]) -> None:
    assert Sigil.of("x", scopes) == Sigil.of("x", [*reversed(scopes), *scopes])


def test_scopes_that_no_tool_needs_are_named_with_their_sigil() -> None:
    sigils = Sigils({"reader": ["documents:read", "documnets:read", "*:see"], "viewer": ["*:raed"]}, {})
    assert sigils.unused_scopes(["documents:read", "notes:write"]) == {
        "reader": ("*:see", "documnets:read"),
        "viewer": ("*:raed",),
    }
    assert Sigils({}, {}).unused_scopes(["documents:read"]) == {}


def test_the_settings_name_sigils_and_whose_they_are(tmp_path: Path) -> None:
    sigils = settings(
        tmp_path,
        '[sigils.reader]\nscopes = ["documents:read"]\n[sigil_bindings]\n"role:member" = "reader"\n'
        '"user:telegram:7" = "admin"\n',
    )
    assert sigils.of_person("telegram:1", Role.MEMBER) == Sigil.of("reader", ["documents:read"])
    assert sigils.of_person("telegram:7", Role.VIEWER).allows("notes:burn")
    assert sigils.of_person("telegram:1", Role.VIEWER).name == "viewer"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[sigil_bindings]\n"role:member" = "raeder"', "='raeder': no such sigil; expected one of admin, "),
        ('[sigil_bindings]\n"rolle:member" = "viewer"', "'rolle:member': expected role:admin"),
        ('[sigils.reader]\nscopes = ["documents"]', "'documents': expected a scope written what:do"),
        ('[sigils.reader]\nscope = ["documents:read"]', "[reader][scopes]"),
        ('[sigils."My Own"]\nscopes = []', "expected a name"),
        ('[sigils.reader]\nscopes = "documents:read"', "[reader][scopes]"),
    ],
)
def test_a_mistake_stops_the_start_and_says_what_was_expected(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        settings(tmp_path, text)
    assert said in str(refused.value)
    assert "AGENT_RUNTIME_SIGIL" in str(refused.value)
