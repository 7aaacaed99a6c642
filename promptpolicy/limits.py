"""Check that every identity affected by a change stays within its token limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from connectors.message import Role
from promptpolicy.policy import CountTokens, PolicyTooLarge, baseline, compose, measure
from promptpolicy.slot import EVERYWHERE, Directive, Level, Place, Slot, places_of


def check_fits(slot: Slot, text: str | None, current: Iterable[Directive], count: CountTokens, max_tokens: int) -> None:
    """Check the change of *slot* to *text* (None clears it).

    *current* must contain all directives that can be in one identity with the slot. Composes every identity with the
    slot: for a global directive or one of a workspace, that of each workspace and context with its own directives.
    Clearing is checked too, because it may expose a longer skill of the same name.
    Raises `PolicyTooLarge`, with the place in its text, unless the identity was over the limit before and gets
    smaller.
    """
    role = max(Role, key=lambda role: count(baseline(role)))
    by_place: dict[Place, list[Directive]] = {slot.place: []}
    for directive in current:
        by_place.setdefault(directive.slot.place, []).append(directive)
    for place in sorted(filter(lambda place: _is_affected(slot.place, place), by_place), key=_by_name):
        before = [directive for part in _places_above(place) for directive in by_place.get(part, ())]
        after = [directive for directive in before if directive.slot != slot]
        if text is not None:
            after.append(Directive(slot, 0, text))
        try:
            compose(role, after, count, max_tokens)
        except PolicyTooLarge as error:
            if measure(role, before, count).tokens <= max(max_tokens, error.policy.tokens):
                raise PolicyTooLarge(f"{_where(place)}: {error}", error.policy) from None


def _is_affected(changed: Place, place: Place) -> bool:
    return changed in _places_above(place)


def _places_above(place: Place) -> tuple[Place, ...]:
    """Return the places whose directives apply in *place*, including itself."""
    return (EVERYWHERE,) if place.scope is None else places_of(place.scope)


def _by_name(place: Place) -> tuple[str, str]:
    return ("", "") if place.scope is None else (place.scope.workspace_id, place.scope.context_id or "")


def _where(place: Place) -> str:
    if place.scope is None:
        return "in every workspace"
    if place.level is Level.WORKSPACE:
        return f"in the workspace {place.scope.workspace_id}"
    return f"in the context {place.scope.context_id} of the workspace {place.scope.workspace_id}"
