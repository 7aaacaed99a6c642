"""What a budget may bound, in which units, and what people are told when too little of it is left. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from connectors.message import AgentRuntimeError

Whose = Literal["workspace", "user"]
What = Literal["tokens", "usd"]
Period = Literal["day", "month"]

NANO: Final = 1_000_000_000
"""Money is counted in whole billionths of a US dollar, so that sums are exact."""
UNLIMITED: Final = "unlimited"


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that a budget may bound: whose use, of what, in which period (UTC)."""

    whose: Whose
    what: What
    period: Period

    @property
    def name(self) -> str:
        """As settings, HTTP and the store call it, e.g. ``user_usd_per_day``."""
        return f"{self.whose}_{self.what}_per_{self.period}"

    def units(self, amount: float) -> int:
        """*amount* (tokens or dollars) in whole units: tokens, or billionths of a dollar."""
        return round(amount * NANO) if self.what == "usd" else round(amount)

    def amount(self, units: int) -> float:
        """The inverse of `units`: dollars, or tokens as an int."""
        return units / NANO if self.what == "usd" else units


_WHOSE: tuple[Whose, ...] = ("workspace", "user")
_WHAT: tuple[What, ...] = ("tokens", "usd")
_PERIODS: tuple[Period, ...] = ("month", "day")
TERMS: Final = tuple(Term(*each) for each in itertools.product(_WHOSE, _WHAT, _PERIODS))
"""All of them; of two that are exceeded at once the first is told, and so the longer period."""

Limits = Mapping[Term, int | None]
"""What each term is bounded to, in its units; None: not at all."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call takes: tokens (prompt and completion), and US dollars."""

    tokens: int = 0
    usd: float = 0.0

    @property
    def nano(self) -> int:
        return round(self.usd * NANO)

    def units(self, what: What) -> int:
        """This cost in *what*'s units."""
        return self.tokens if what == "tokens" else self.nano


class BudgetExceeded(AgentRuntimeError):
    """A call would go beyond what is left of a budget; it was not made.

    ``limit`` is in tokens or dollars. ``first`` says that the person was not told of it today; ``until`` is when
    the budget starts anew.
    """

    def __init__(self, term: Term, limit: float, *, first: bool, until: datetime) -> None:
        super().__init__(f"too little is left of {term.name}: the limit is {limit:g}")
        self.term = term
        self.limit = limit
        self.first = first
        self.until = until
        self.user_text = notice(term, until, first=first)


def notice(term: Term, until: datetime, *, first: bool) -> str:
    """What the person is told: once a day in full, then short."""
    clock = f"{until:%H:%M} UTC"
    when, span = (
        (f"at {clock}", "today") if term.period == "day" else (f"on {until.day} {until:%B}, {clock}", "this month")
    )
    whose = "your budget here" if term.whose == "user" else "the budget of this workspace"
    too_little = f"Too little is left of {whose} for {span}"
    if not first:
        return f"{too_little}."
    return f"{too_little}, so I cannot answer now. It is renewed {when}. An admin can raise it."


def period_name(period: Period, now: datetime) -> str:
    """The period that *now* lies in: ``2026-11-22`` or ``2026-11``, in UTC."""
    return f"{now.astimezone(UTC):%Y-%m-%d}" if period == "day" else f"{now.astimezone(UTC):%Y-%m}"


def period_end(period: Period, now: datetime) -> datetime:
    """When the period that *now* lies in is over."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return midnight + timedelta(days=1)
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


@dataclass(frozen=True, slots=True)
class State:
    """How a budget stands, for a workspace and, where one was asked for, one person in it; all in units.

    ``spent`` includes the reservations of calls that are being made. ``set_here`` are the terms that were set for the
    workspace itself, by name, as they were given.
    """

    limits: Limits
    spent: Mapping[Term, int]
    set_here: Mapping[str, float | str]

    def left(self, term: Term) -> int | None:
        """What may still be spent; None if it is not bounded."""
        limit = self.limits[term]
        return None if limit is None else max(0, limit - self.spent[term])

    def bounded(self, whose: Whose) -> tuple[Term, ...]:
        """The terms of *whose* that have a limit."""
        return tuple(term for term in TERMS if term.whose == whose and self.limits[term] is not None)
