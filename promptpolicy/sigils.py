"""Sigils: named sets of permission scopes, and whose is which. Pure.

A scope is written ``what:do`` (``documents:read``). In a sigil ``*`` stands for any *what*, any *do*, or alone for
both. Of what is bound the most specific holds: to the user, else to the context, else to the role; what is bound to a
place binds the threads in it. Of several people who are answered together each scope must be everybody's. Who is only
said to be somebody, by a caller who may not speak for others, has no more by that name than by the role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product

from config.settings import Settings
from config.sigils import SHIPPED_SIGILS
from connectors.message import Role

ANY = "*"


@dataclass(frozen=True, slots=True)
class Sigil:
    """A set of scopes, sorted and without those that another covers. ``name`` is only for people."""

    name: str
    scopes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, scopes: Iterable[str]) -> Sigil:
        """The sigil of *scopes* as they are written in the settings."""
        pairs = {_pair(scope) for scope in scopes}
        held = {one for one in pairs if not any(other != one and _covers(other, one) for other in pairs)}
        return cls(name, tuple(sorted(map(_written, held))))

    def allows(self, scope: str) -> bool:
        """Whether *scope*, which names one permission, is among these."""
        return any(_covers(_pair(held), _pair(scope)) for held in self.scopes)

    def meet(self, other: Sigil) -> Sigil:
        """What both allow; it has the name of the one that allows no more than that."""
        found = (_both(_pair(one), _pair(two)) for one, two in product(self.scopes, other.scopes))
        scopes = Sigil.of("", (_written(pair) for pair in found if pair is not None)).scopes
        for one in (self, other):
            if one.scopes == scopes:
                return one
        return Sigil("+".join(sorted({*self.name.split("+"), *other.name.split("+")})), scopes)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who asks: ``user`` is ``connector:user_id``."""

    user: str
    role: Role


class Sigils:
    """All sigils of a process, and what they are bound to."""

    def __init__(self, sigils: Mapping[str, Iterable[str]], bindings: Mapping[str, str]) -> None:
        """*sigils* and *bindings* are added to those that ship, or take their place. Raises KeyError for a binding to
        a sigil that there is not."""
        given = {**SHIPPED_SIGILS, **sigils}
        self.all = {name: Sigil.of(name, given[name]) for name in sorted(given)}
        bound = {**{f"role:{role.value}": role.value for role in Role}, **bindings}
        self.bindings = {bound_to: self.all[bound[bound_to]] for bound_to in sorted(bound)}

    @classmethod
    def from_settings(cls, settings: Settings) -> Sigils:
        """Those that *settings* name; they were checked there."""
        return cls({name: one.scopes for name, one in settings.sigils.items()}, settings.sigil_bindings)

    def held_by(self, holders: Iterable[Holder], context_id: str, *, vouched: bool = True) -> Sigil:
        """What *holders*, one or more, may have done for them together in a context. Without *vouched* nobody has more
        than by their role."""
        return reduce(Sigil.meet, [self._of(holder, context_id, vouched=vouched) for holder in holders])

    def of_person(self, user: str, role: Role) -> Sigil:
        """What holds for one person wherever no context has a sigil."""
        return self._of(Holder(user, role), "", vouched=True)

    def unneeded(self, needed: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """By the names of the sigils that are not as shipped, those of their scopes that allow nothing of *needed*:
        most likely they are misspelt."""
        wanted = [_pair(scope) for scope in needed]
        found = {
            name: tuple(scope for scope in sigil.scopes if not any(_covers(_pair(scope), one) for one in wanted))
            for name, sigil in self.all.items()
            if sigil.scopes != Sigil.of("", SHIPPED_SIGILS.get(name, ())).scopes
        }
        return {name: scopes for name, scopes in found.items() if scopes}

    def _of(self, holder: Holder, context_id: str, *, vouched: bool) -> Sigil:
        by_role = self.bindings[f"role:{holder.role.value}"]
        named = self.bindings.get(f"user:{holder.user}") or self._of_place(context_id)
        if named is None:
            return by_role
        return named if vouched else named.meet(by_role)

    def _of_place(self, context_id: str) -> Sigil | None:
        """What is bound to a context itself, else to the place that it is a thread of: ``slack:C1`` of
        ``slack:C1/1712.0001``."""
        while context_id:
            if found := self.bindings.get(f"context:{context_id}"):
                return found
            context_id = context_id.rpartition("/")[0]
        return None


def _pair(scope: str) -> tuple[str, str]:
    what, _, do = scope.partition(":")
    return (what, do) if do else (ANY, ANY)


def _written(pair: tuple[str, str]) -> str:
    return ANY if pair == (ANY, ANY) else ":".join(pair)


def _covers(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return all(mine in (ANY, theirs) for mine, theirs in zip(one, other, strict=True))


def _both(one: tuple[str, str], other: tuple[str, str]) -> tuple[str, str] | None:
    met = [
        mine if theirs in (ANY, mine) else theirs if mine == ANY else ""
        for mine, theirs in zip(one, other, strict=True)
    ]
    return (met[0], met[1]) if all(met) else None
