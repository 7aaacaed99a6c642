"""Sigils (named sets of permission scopes), and who holds which. Pure.

A scope is written ``what:do``, for example ``documents:read``. In a sigil, ``*`` stands for any *what*, for any *do*,
or alone for both.

A person has the most specific sigil that is bound to them: the one of the user, else of the context, else of the role.
A sigil of a place also applies in its threads. If several people are answered together, only scopes that all of them
have are allowed. If a caller who may not speak for others only claims that somebody is the author (not *vouched*),
that person's own sigil allows no more than the role's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product

from config.settings import Settings
from config.sigils import SHIPPED_SIGILS
from connectors.message import Role

ANY = "*"


@dataclass(frozen=True, slots=True)
class Sigil:
    """A set of scopes, sorted, without scopes that another one covers. ``name`` is only for people."""

    name: str
    scopes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, scopes: Iterable[str]) -> Sigil:
        """Create a sigil from *scopes* in the syntax of the settings."""
        pairs = {_parse_scope(scope) for scope in scopes}
        minimal = {pair for pair in pairs if not any(other != pair and _covers(other, pair) for other in pairs)}
        return cls(name, tuple(sorted(map(_format_scope, minimal))))

    def allows(self, scope: str) -> bool:
        """Return whether the sigil includes *scope*, which names one permission."""
        return any(_covers(_parse_scope(own), _parse_scope(scope)) for own in self.scopes)

    def meet(self, other: Sigil) -> Sigil:
        """Return the sigil of the scopes that both allow. If that is one of the two sigils, returns that one."""
        pairs = (
            _intersect_scopes(_parse_scope(scope), _parse_scope(other_scope))
            for scope, other_scope in product(self.scopes, other.scopes)
        )
        scopes = Sigil.of("", (_format_scope(pair) for pair in pairs if pair is not None)).scopes
        for sigil in (self, other):
            if sigil.scopes == scopes:
                return sigil
        return Sigil("+".join(sorted({*self.name.split("+"), *other.name.split("+")})), scopes)


@dataclass(frozen=True, slots=True)
class Holder:
    """A person who asks. ``user`` is ``connector:user_id``."""

    user: str
    role: Role


class Sigils:
    """All sigils of a process and their bindings."""

    def __init__(self, sigils: Mapping[str, Iterable[str]], bindings: Mapping[str, str]) -> None:
        """Add *sigils* and *bindings* to the shipped ones, or replace those of the same name.

        Raises KeyError for a binding to an unknown sigil.
        """
        scopes = {**SHIPPED_SIGILS, **sigils}
        self.all = {name: Sigil.of(name, scopes[name]) for name in sorted(scopes)}
        names = {**{f"role:{role.value}": role.value for role in Role}, **bindings}
        self.bindings = {holder: self.all[names[holder]] for holder in sorted(names)}

    @classmethod
    def from_settings(cls, settings: Settings) -> Sigils:
        """Create the sigils of *settings*, which are already validated."""
        return cls({name: sigil.scopes for name, sigil in settings.sigils.items()}, settings.sigil_bindings)

    def held_by(self, holders: Iterable[Holder], context_id: str, *, vouched: bool = True) -> Sigil:
        """Return what *holders*, one or more, are all allowed in a context. Without *vouched*, no more than their roles
        allow."""
        return reduce(Sigil.meet, [self._sigil_of_holder(holder, context_id, vouched=vouched) for holder in holders])

    def of_person(self, user: str, role: Role) -> Sigil:
        """Return the sigil of one person in contexts without their own sigil."""
        return self._sigil_of_holder(Holder(user, role), "", vouched=True)

    def binding_of(self, holder: Holder, context_id: str = "") -> tuple[str, Sigil]:
        """Return what binds a person's sigil in a context, as in ``[sigil_bindings]``, and the sigil."""
        names = (f"user:{holder.user}", *map("context:{}".format, _places(context_id)), f"role:{holder.role.value}")
        return next((name, self.bindings[name]) for name in names if name in self.bindings)

    def unused_scopes(self, needed: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return the scopes that cover none of *needed*, by sigil: most likely they are misspelt.

        Leaves out unchanged shipped sigils.
        """
        needed_pairs = [_parse_scope(scope) for scope in needed]
        useless = {
            name: tuple(
                scope for scope in sigil.scopes if not any(_covers(_parse_scope(scope), pair) for pair in needed_pairs)
            )
            for name, sigil in self.all.items()
            if sigil.scopes != Sigil.of("", SHIPPED_SIGILS.get(name, ())).scopes
        }
        return {name: scopes for name, scopes in useless.items() if scopes}

    def _sigil_of_holder(self, holder: Holder, context_id: str, *, vouched: bool) -> Sigil:
        binding, sigil = self.binding_of(holder, context_id)
        by_role = self.bindings[f"role:{holder.role.value}"]
        return sigil if vouched or binding.startswith("role:") else sigil.meet(by_role)


def _places(context_id: str) -> Iterator[str]:
    """Yield a context and the places that contain it (``slack:C1/1712``, ``slack:C1``)."""
    while context_id:
        yield context_id
        context_id = context_id.rpartition("/")[0]


def _parse_scope(scope: str) -> tuple[str, str]:
    what, _, do = scope.partition(":")
    return (what, do) if do else (ANY, ANY)


def _format_scope(pair: tuple[str, str]) -> str:
    return ANY if pair == (ANY, ANY) else ":".join(pair)


def _covers(pair: tuple[str, str], other: tuple[str, str]) -> bool:
    return all(mine in (ANY, theirs) for mine, theirs in zip(pair, other, strict=True))


def _intersect_scopes(pair: tuple[str, str], other: tuple[str, str]) -> tuple[str, str] | None:
    what, do = (
        mine if theirs in (ANY, mine) else theirs if mine == ANY else ""
        for mine, theirs in zip(pair, other, strict=True)
    )
    return (what, do) if what and do else None
