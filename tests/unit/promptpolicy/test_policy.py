"""The identity: what is in it, in which order, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Role, Scope
from grounding.prompt_input import load_tokens
from promptpolicy import publishing
from promptpolicy.policy import (
    ACTION_POLICY,
    EVERYWHERE,
    Directive,
    InvalidDirective,
    Kind,
    Place,
    Policy,
    PolicyTooLarge,
    Slot,
    baseline,
    canonical,
    compose,
    decode_id,
    measure_parts,
    place_in,
    slot_in,
    with_drafts,
)

ACME = Place(Scope("acme"))
ROOM = Place(Scope("acme", "telegram:-10001/7"))
PLACES = (EVERYWHERE, ACME, ROOM)


def words(text: str) -> int:
    return len(text.split())


def directive(place: Place, kind: Kind, text: str, name: str = "", version: int = 1) -> Directive:
    return Directive(Slot(place, kind, name), version, text)


def composed(*directives: Directive, role: Role = Role.MEMBER, max_tokens: int = 10_000) -> Policy:
    return compose(role, directives, words, max_tokens)


def in_order(text: str, parts: Iterable[str]) -> bool:
    positions = [text.index(part) for part in parts]
    return positions == sorted(positions)


def test_the_parts_stand_in_the_documented_order() -> None:
    policy = composed(
        directive(ROOM, Kind.SKILL, "skill-r", "b"),
        directive(ACME, Kind.SOUL, "soul-w"),
        directive(ROOM, Kind.SYSTEM, "system-r"),
        directive(EVERYWHERE, Kind.SKILL, "skill-g", "a"),
        directive(EVERYWHERE, Kind.SYSTEM, "system-g"),
        directive(ROOM, Kind.SOUL, "soul-r"),
        directive(ACME, Kind.SYSTEM, "system-w"),
        directive(EVERYWHERE, Kind.SOUL, "soul-g"),
    )
    expected = ["system-g", "system-w", "system-r", "soul-g", "soul-w", "soul-r", "skill-g", "skill-r"]
    assert in_order(policy.text, [baseline(Role.MEMBER), *expected, ACTION_POLICY])
    assert policy.text.endswith(ACTION_POLICY)
    assert [one.text for one in policy.used] == expected


def test_each_directive_is_labelled_with_where_it_comes_from() -> None:
    text = composed(directive(ACME, Kind.SYSTEM, "Be kind."), directive(ROOM, Kind.SKILL, "Ask.", "refunds")).text
    assert "\n\nSystem directives (workspace):\nBe kind.\n\n" in text
    assert "\n\nSkill refunds (context):\nAsk.\n\n" in text


def test_an_identity_without_directives_is_baseline_and_action_policy_and_short() -> None:
    for role in Role:
        policy = compose(role, (), load_tokens().count, 3000)
        assert policy.text == f"{baseline(role)}\n\n{ACTION_POLICY}"
        assert policy.used == ()
        assert policy.tokens < 220


def test_only_administrators_get_the_admin_baseline() -> None:
    assert baseline(Role.VIEWER) == baseline(Role.MEMBER) != baseline(Role.ADMIN)


def test_the_action_policy_covers_deeds_data_sources_and_ignorance() -> None:
    for phrase in ("cannot act", "Never claim", "are data", "Never obey", "[refunds.md › Windows]", "do not know"):
        assert phrase in ACTION_POLICY


def test_global_skills_with_workspace_precedence() -> None:
    """A workspace's skill replaces the global one of its name; the other global skills stay."""
    policy = composed(
        directive(EVERYWHERE, Kind.SKILL, "global refunds", "refunds"),
        directive(EVERYWHERE, Kind.SKILL, "global shipping", "shipping"),
        directive(ACME, Kind.SKILL, "workspace refunds", "refunds", version=4),
    )
    assert "global refunds" not in policy.text
    assert in_order(policy.text, ["workspace refunds", "global shipping"])
    assert [one.reference for one in policy.used] == ["workspace/skill/refunds@4", "global/skill/shipping@1"]


def test_falls_back_when_context_missing() -> None:
    """Without directives of a context those of the workspace and of everywhere hold alone."""
    text = composed(
        directive(EVERYWHERE, Kind.SYSTEM, "everywhere"), directive(ACME, Kind.SKILL, "here", "refunds")
    ).text
    assert in_order(text, ["(global):\neverywhere", "(workspace):\nhere"])
    assert "(context)" not in text


def test_an_identity_over_the_cap_says_by_how_much_and_what_is_large_and_loses_nothing() -> None:
    with pytest.raises(PolicyTooLarge) as raised:
        composed(
            directive(ACME, Kind.SYSTEM, "short rule"),
            directive(ACME, Kind.SKILL, "word " * 500 + "end", "novel"),
            max_tokens=300,
        )
    policy = raised.value.policy
    assert f"{policy.tokens - 300} more than POLICY_MAX_TOKENS 300" in str(raised.value)
    assert 'skill "novel" (workspace) 504' in str(raised.value)
    assert "short rule" in policy.text
    assert "word end" in policy.text


@pytest.mark.parametrize(
    "pair",
    [
        (directive(ACME, Kind.SYSTEM, "a"), directive(ACME, Kind.SYSTEM, "b")),
        (directive(ACME, Kind.SYSTEM, "a"), directive(Place(Scope("other")), Kind.SOUL, "b")),
        (directive(ROOM, Kind.SYSTEM, "a"), directive(Place(Scope("acme", "telegram:1")), Kind.SOUL, "b")),
        (directive(ROOM, Kind.SYSTEM, "a"), directive(Place(Scope("other")), Kind.SOUL, "b")),
    ],
)
def test_directives_of_places_that_never_meet_are_not_composed(pair: tuple[Directive, Directive]) -> None:
    with pytest.raises(ValueError):
        composed(*pair)


texts = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff"), min_size=1).filter(
    lambda text: bool(text.strip())
)
slots = st.builds(Slot, st.sampled_from(PLACES), st.sampled_from([Kind.SYSTEM, Kind.SOUL])) | st.builds(
    Slot, st.sampled_from(PLACES), st.just(Kind.SKILL), st.from_regex(r"[a-z0-9][a-z0-9_-]{0,3}", fullmatch=True)
)
directives = st.builds(Directive, slots, st.integers(1, 99), texts.map(canonical))
sets = st.lists(directives, unique_by=lambda one: one.slot, max_size=12)


@given(sets, st.sampled_from(Role), st.randoms(use_true_random=False))
def test_the_same_directives_in_any_order_give_the_same_bytes(
    given_: list[Directive], role: Role, random: object
) -> None:
    shuffled = list(given_)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert composed(*given_, role=role) == composed(*shuffled, role=role)


@given(sets, st.integers(1, 10_000))
def test_no_directive_is_ever_dropped_or_cut(given_: list[Directive], max_tokens: int) -> None:
    try:
        policy = compose(Role.MEMBER, given_, words, max_tokens)
    except PolicyTooLarge as error:
        policy = error.policy
        assert policy.tokens > max_tokens
    parts = policy.text.split("\n\n")
    for one in given_:
        name = one.slot.name
        more_specific = any(
            other.slot.kind is Kind.SKILL
            and other.slot.name == name
            and other.slot.place.level.rank > one.slot.place.level.rank
            for other in given_
        )
        if one.slot.kind is Kind.SKILL and more_specific:
            continue
        assert one.text in policy.text
        assert one in policy.used
    assert parts[0] == baseline(Role.MEMBER)


@given(sets, slots, texts.map(canonical), st.integers(60, 200))
def test_what_may_be_published_never_composes_over_the_cap(
    current: list[Directive], slot: Slot, text: str, max_tokens: int
) -> None:
    """Each place's identity stays within the cap after an accepted change of a state within the cap."""

    def identities(held: list[Directive]) -> list[list[Directive]]:
        chains = [(EVERYWHERE,), (EVERYWHERE, ACME), PLACES]
        return [[one for one in held if one.slot.place in chain] for chain in chains]

    def fits(held: list[Directive]) -> bool:
        return all(
            compose(role, one, words, 10**9).tokens <= max_tokens for one in identities(held) for role in (Role.ADMIN,)
        )

    after = [*(one for one in current if one.slot != slot), Directive(slot, 0, text)]
    if not fits(current):
        return
    try:
        publishing.check_fits(slot, text, current, words, max_tokens)
    except PolicyTooLarge:
        assert not fits(after)
    else:
        assert fits(after)


def test_a_directive_of_everywhere_is_checked_against_every_context() -> None:
    full = directive(ROOM, Kind.SYSTEM, "word " * 100)
    with pytest.raises(PolicyTooLarge, match=r"in the context telegram:-10001/7 of the workspace acme"):
        publishing.check_fits(Slot(EVERYWHERE, Kind.SOUL), "word " * 100, [full], words, 320)


def test_an_identity_that_is_too_large_already_may_get_smaller() -> None:
    large = directive(ACME, Kind.SYSTEM, "word " * 500)
    publishing.check_fits(large.slot, "word " * 400, [large], words, 200)
    with pytest.raises(PolicyTooLarge):
        publishing.check_fits(large.slot, "word " * 501, [large], words, 200)


def test_clearing_a_skill_that_hides_a_larger_one_is_checked() -> None:
    hidden = directive(EVERYWHERE, Kind.SKILL, "word " * 150, "refunds")
    hiding = directive(ACME, Kind.SKILL, "short", "refunds")
    rest = directive(ACME, Kind.SYSTEM, "word " * 100)
    with pytest.raises(PolicyTooLarge):
        publishing.check_fits(hiding.slot, None, [hidden, hiding, rest], words, 300)


@pytest.mark.parametrize("text", ["", " \n\t", "a\x00b", "a\x1b[31m", "a\x7f", "a\ud800", "x" * 300_000])
def test_texts_that_no_directive_can_have_are_refused(text: str) -> None:
    with pytest.raises(InvalidDirective):
        canonical(text)


@given(st.text())
def test_a_kept_text_is_kept_the_same_when_read_again(text: str) -> None:
    try:
        kept = canonical(text)
    except InvalidDirective:
        return
    assert canonical(kept) == canonical(f"{kept}\n") == canonical(kept.replace("\n", "\r\n")) == kept


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "-a", "a.md", "ä", "a\n", "x" * 65])
def test_names_that_no_skill_can_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidDirective):
        Slot(ACME, Kind.SKILL, name)


@pytest.mark.parametrize(
    ("level", "kind", "name", "scope"),
    [
        ("team", "system", "", None),
        ("global", "mood", "", None),
        ("workspace", "system", "", None),
        ("context", "system", "", Scope("acme")),
        ("context", "system", "", Scope("acme", "general")),
        ("context", "system", "", Scope("acme", "telegram:")),
        ("global", "soul", "named", None),
    ],
)
def test_words_that_name_no_slot_are_refused(level: str, kind: str, name: str, scope: Scope | None) -> None:
    with pytest.raises(InvalidDirective):
        Slot.named(level, kind, name, scope)


def test_a_directive_never_belongs_to_one_person() -> None:
    personal = Scope("acme", "telegram:1", audience="telegram:9")
    assert Slot.named("context", "soul", "", personal) == Slot(Place(Scope("acme", "telegram:1")), Kind.SOUL)


@given(slots)
def test_a_slot_is_found_again_from_its_stored_name(slot: Slot) -> None:
    place, _, field = slot.encoded.partition("/")
    assert slot_in(place_in(slot.place.home, place), field) == slot


@given(st.text(min_size=1).filter(lambda text: not any("\ud800" <= character <= "\udfff" for character in text)))
def test_an_encoded_context_is_decoded_again(context_id: str) -> None:
    assert decode_id(Place(Scope("acme", context_id)).encoded.removeprefix("context:")) == context_id


@pytest.mark.parametrize("name", ["", "%", "%zz", "telegram:1", "%41", "%ff", "%FF", ".hidden"])
def test_names_that_encode_no_id_are_refused(name: str) -> None:
    with pytest.raises(InvalidDirective):
        decode_id(name)


def test_the_parts_of_an_identity_cover_each_of_its_lines_once() -> None:
    acme = Scope("acme")
    system = Directive(Slot(Place(acme), Kind.SYSTEM), 3, "one\n\ntwo")
    soul = Directive(Slot(EVERYWHERE, Kind.SOUL), 2, "calm")
    policy, parts = measure_parts(Role.MEMBER, [soul, system], lambda text: len(text.split()))
    lines = policy.text.split("\n")
    for part in parts:
        assert "\n".join(lines[part.first_line : part.first_line + part.lines]) == part.text
        assert part.tokens == len(part.text.split())
    assert [part.directive for part in parts] == [None, None, system, soul, None]
    assert sum(part.lines for part in parts) + len(parts) - 1 == len(lines)


def test_the_parts_show_a_draft_in_place_of_its_directive() -> None:
    acme = Scope("acme")
    slot = Slot(Place(acme), Kind.SYSTEM)
    drafted = with_drafts([Directive(slot, 3, "old")], {slot: "new words"}, acme)
    parts = measure_parts(Role.MEMBER, drafted, lambda text: len(text.split()))[1]
    assert [part.directive.text for part in parts if part.directive] == ["new words"]
