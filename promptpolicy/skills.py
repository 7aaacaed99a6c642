"""Skill templates: named directives, of which the most specific one of a name holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from promptpolicy.slot import Directive, Kind


def effective(directives: Iterable[Directive]) -> list[Directive]:
    """The skills among *directives* that hold, by name: context before workspace before global."""
    chosen: dict[str, Directive] = {}
    for directive in directives:
        if directive.slot.kind is not Kind.SKILL:
            continue
        other = chosen.get(directive.slot.name)
        if other is None or other.slot.place.level.rank < directive.slot.place.level.rank:
            chosen[directive.slot.name] = directive
    return [chosen[name] for name in sorted(chosen)]
