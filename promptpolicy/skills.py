"""Skills are named directives. Of several with one name, the most specific applies. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from promptpolicy.slot import Directive, Kind


def effective(directives: Iterable[Directive]) -> list[Directive]:
    """Return the skills among *directives* that apply, sorted by name.

    A context's skill replaces a workspace's skill of the same name, and that replaces a global one.
    """
    chosen: dict[str, Directive] = {}
    for directive in directives:
        if directive.slot.kind is not Kind.SKILL:
            continue
        other = chosen.get(directive.slot.name)
        if other is None or other.slot.place.level.rank < directive.slot.place.level.rank:
            chosen[directive.slot.name] = directive
    return [chosen[name] for name in sorted(chosen)]
