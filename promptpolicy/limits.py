"""Whether every identity that a change touches stays within its cap. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from connectors.message import Role
from promptpolicy.policy import CountTokens, PolicyTooLarge, baseline, compose, measure
from promptpolicy.slot import EVERYWHERE, Directive, Level, Place, Slot, places_of


def check_fits(slot: Slot, text: str | None, current: Iterable[Directive], count: CountTokens, max_tokens: int) -> None:
    """Check the change of *slot* to *text* (None clears it) where *current* is all that it may meet.

    Every identity that the slot is part of is composed in full: for a directive of everywhere or of a
    workspace, that of each workspace and context with directives of its own. Clearing is checked too,
    since it may uncover a longer skill of the same name. Raises `PolicyTooLarge`, with the place in its
    text, unless the identity was over the cap before and gets smaller.
    """
    role = max(Role, key=lambda one: count(baseline(one)))
    held: dict[Place, list[Directive]] = {slot.place: []}
    for directive in current:
        held.setdefault(directive.slot.place, []).append(directive)
    for place in sorted(filter(lambda one: _touches(slot.place, one), held), key=_by_name):
        before = [one for part in _chain(place) for one in held.get(part, ())]
        after = [one for one in before if one.slot != slot]
        if text is not None:
            after.append(Directive(slot, 0, text))
        try:
            compose(role, after, count, max_tokens)
        except PolicyTooLarge as error:
            if measure(role, before, count).tokens <= max(max_tokens, error.policy.tokens):
                raise PolicyTooLarge(f"{_where(place)}: {error}", error.policy) from None


def _touches(changed: Place, place: Place) -> bool:
    return changed in _chain(place)


def _chain(place: Place) -> tuple[Place, ...]:
    return (EVERYWHERE,) if place.scope is None else places_of(place.scope)


def _by_name(place: Place) -> tuple[str, str]:
    return ("", "") if place.scope is None else (place.scope.workspace_id, place.scope.context_id or "")


def _where(place: Place) -> str:
    if place.scope is None:
        return "in every workspace"
    if place.level is Level.WORKSPACE:
        return f"in the workspace {place.scope.workspace_id}"
    return f"in the context {place.scope.context_id} of the workspace {place.scope.workspace_id}"
