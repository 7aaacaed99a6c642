"""How much workspaces and people may still spend on model calls.

A call is charged before it is made: `Budgets.reserve` charges an upper bound of its cost, the reservation. When the
cost is known, `Budgets.settle` replaces the reservation with it. If nobody learns the cost, for example because the
process was killed, the reservation stands.

Invariant, for every limit: what is spent in the period is at most the limit, plus what settled calls cost beyond their
reservations.

Keys (owner ``budgets``, under the workspace's tag): ``limits`` one hash of the limits that were set for the workspace;
``spent`` one hash of counters per day and per month; ``call`` one key per call, with its reservation or ``settled``;
``told`` one set per day of the people who were told that a budget is used up.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from config.settings import Settings
from connectors.message import AgentRuntimeError, Scope, Usage, redis_key
from connectors.redis_calls import RedisCall, ask
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

Whose = Literal["workspace", "user"]
What = Literal["tokens", "usd"]
Period = Literal["day", "month"]

NANO: Final = 1_000_000_000
"""Money is counted in whole billionths of a US dollar, so that sums are exact."""
UNLIMITED: Final = "unlimited"


@dataclass(frozen=True, slots=True)
class BudgetTerm:
    """One limit that a budget may have: for whom, on what, and in which period (UTC)."""

    whose: Whose
    what: What
    period: Period

    @property
    def name(self) -> str:
        """The name in settings, HTTP and the store, e.g. ``user_usd_per_day``."""
        return f"{self.whose}_{self.what}_per_{self.period}"

    def units(self, amount: float) -> int:
        """Convert *amount* (tokens or dollars) to whole units: tokens, or billionths of a dollar."""
        return round(amount * NANO) if self.what == "usd" else round(amount)

    def amount(self, units: int) -> float:
        """Convert *units* back: to dollars, or to tokens as an int."""
        return units / NANO if self.what == "usd" else units


_WHOSE: tuple[Whose, ...] = ("workspace", "user")
_WHAT: tuple[What, ...] = ("tokens", "usd")
_PERIODS: tuple[Period, ...] = ("month", "day")
TERMS: Final = tuple(BudgetTerm(*fields) for fields in itertools.product(_WHOSE, _WHAT, _PERIODS))
"""All terms. If two are exceeded at once, the person is told the first, and so the longer period."""

Limits = Mapping[BudgetTerm, int | None]
"""The limit of each term in its units; None if it has none."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a call: tokens (prompt and completion), and US dollars."""

    tokens: int = 0
    usd: float = 0.0

    @classmethod
    def of(cls, usage: Usage) -> Cost:
        """Return the cost of a call that took *usage*."""
        return cls(usage.prompt + usage.completion, usage.cost_usd)

    @property
    def nano(self) -> int:
        return round(self.usd * NANO)

    def units(self, what: What) -> int:
        """Return the part of the cost that a limit on *what* counts, in its units."""
        return self.tokens if what == "tokens" else self.nano


class BudgetExceeded(AgentRuntimeError):
    """A call was not made because it would exceed a budget.

    ``limit`` is in tokens or dollars. ``first``: the person was not yet told today. ``until``: when the budget is
    renewed.
    """

    def __init__(self, term: BudgetTerm, limit: float, *, first: bool, until: datetime) -> None:
        super().__init__(f"too little is left of {term.name}: the limit is {limit:g}")
        self.term = term
        self.limit = limit
        self.first = first
        self.until = until
        self.user_text = _notice(term, until, first=first)


def _notice(term: BudgetTerm, until: datetime, *, first: bool) -> str:
    """Tell the person once a day in full, then shortly."""
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
    """Return the period of *now* in UTC: ``2026-11-22`` or ``2026-11``."""
    return f"{now.astimezone(UTC):%Y-%m-%d}" if period == "day" else f"{now.astimezone(UTC):%Y-%m}"


def period_end(period: Period, now: datetime) -> datetime:
    """Return the end of the period of *now*."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "day":
        return midnight + timedelta(days=1)
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """The state of a workspace's budget and of one person's budget there (if one was asked for), all in units.

    ``spent`` includes the reservations of running calls. ``set_here``: the limits that were set for the workspace
    itself, by the term's name, in tokens, dollars or `UNLIMITED`.
    """

    limits: Limits
    spent: Mapping[BudgetTerm, int]
    set_here: Mapping[str, float | str]

    def left(self, term: BudgetTerm) -> int | None:
        """Return how much may still be spent; None if there is no limit."""
        limit = self.limits[term]
        return None if limit is None else max(0, limit - self.spent[term])

    def bounded(self, whose: Whose) -> tuple[BudgetTerm, ...]:
        """Return the terms of *whose* that have a limit."""
        return tuple(term for term in TERMS if term.whose == whose and self.limits[term] is not None)


_OWNER = "budgets"
_VERSION = 1
_CALL_SECONDS = 7 * 24 * 3600
_SPENT_SECONDS: Mapping[Period, int] = {"day": 8 * 24 * 3600, "month": 62 * 24 * 3600}
_TOLD_SECONDS = 2 * 24 * 3600

# Lua. Charges tokens and money to the workspace and, if one is named, to the user, for the day and for the month.
_CHARGE = """
local function charge(day, month, user, tokens, usd, day_seconds, month_seconds)
  for spent, seconds in pairs({[day] = day_seconds, [month] = month_seconds}) do
    redis.call('HINCRBY', spent, 'workspace tokens', tokens)
    redis.call('HINCRBY', spent, 'workspace usd', usd)
    if user ~= '' then
      redis.call('HINCRBY', spent, 'user tokens ' .. user, tokens)
      redis.call('HINCRBY', spent, 'user usd ' .. user, usd)
    end
    redis.call('EXPIRE', spent, seconds)
  end
end
"""

# Checks every limit, then charges. A call that was reserved or settled before is not charged again. A call without a
# name is only checked.
_RESERVE = (
    _CHARGE
    + """
local version = redis.call('HGET', KEYS[1], 'v')
if version and tonumber(version) > tonumber(ARGV[1]) then return {'newer', version} end
local call, user, need = ARGV[2], ARGV[3], {tokens = tonumber(ARGV[4]), usd = tonumber(ARGV[5])}
if call ~= '' and redis.call('EXISTS', KEYS[5]) == 1 then return {'ok'} end
for at = 10, #ARGV, 5 do
  local name, whose, what, period = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local limit = tonumber(redis.call('HGET', KEYS[1], name) or ARGV[at + 4])
  if limit and (whose == 'workspace' or user ~= '') then
    local field = whose .. ' ' .. what
    if whose == 'user' then field = field .. ' ' .. user end
    local spent = tonumber(redis.call('HGET', period == 'day' and KEYS[2] or KEYS[3], field) or '0')
    if spent >= limit or spent + need[what] > limit then
      local first = redis.call('SADD', KEYS[4], user)
      redis.call('EXPIRE', KEYS[4], ARGV[9])
      return {'exceeded', name, string.format('%.0f', limit), first}
    end
  end
end
if call ~= '' then
  redis.call('SET', KEYS[5], ARGV[4] .. ' ' .. ARGV[5], 'EX', ARGV[8])
  charge(KEYS[2], KEYS[3], user, ARGV[4], ARGV[5], ARGV[6], ARGV[7])
end
return {'ok'}
"""
)

# Charges the difference between a call's cost and its reservation, once.
_SETTLE = (
    _CHARGE
    + """
local call = redis.call('GET', KEYS[3]) or '0 0'
if call == 'settled' then return 0 end
redis.call('SET', KEYS[3], 'settled', 'EX', ARGV[6])
local tokens, usd = string.match(call, '^(%d+) (%d+)$')
tokens, usd = tonumber(ARGV[2]) - tonumber(tokens), tonumber(ARGV[3]) - tonumber(usd)
charge(KEYS[1], KEYS[2], ARGV[1], string.format('%.0f', tokens), string.format('%.0f', usd), ARGV[4], ARGV[5])
return 1
"""
)

_PUT = """
local version = redis.call('HGET', KEYS[1], 'v')
if version and tonumber(version) > tonumber(ARGV[1]) then return version end
redis.call('DEL', KEYS[1])
if #ARGV > 1 then redis.call('HSET', KEYS[1], 'v', unpack(ARGV)) end
return false
"""


class Budgets:
    """The budgets of all workspaces. Every method raises `connectors.message.StoreUnavailable`.

    *clock* returns seconds since the epoch. If a call is settled after midnight, its reservation counts for the first
    day and the difference to its cost for the second.
    """

    def __init__(self, redis: Redis, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._defaults = _default_limits(settings)
        self._reserve = redis.register_script(_RESERVE)
        self._put = redis.register_script(_PUT)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    async def reserve(self, scope: Scope, call: str, estimate: Cost, user: str = "") -> None:
        """Charge *estimate* for *call* (unique in the workspace) to the workspace and, if named, to *user*.

        A repetition charges nothing. Raises `BudgetExceeded`, also for an estimate of 0 if nothing is left, and
        `runtime.stores.NewerFormat`.
        """
        now = self._now()
        terms = [
            part
            for term, limit in self._defaults.items()
            for part in (term.name, term.whose, term.what, term.period, "" if limit is None else limit)
        ]
        answer, *details = await self._reserve(
            keys=[
                *self._keys(scope, now),
                _key(scope, "told", period_name("day", now)),
                _key(scope, "call", call),
            ],
            args=[
                *(_VERSION, call, user, estimate.tokens, estimate.nano),
                *(_SPENT_SECONDS["day"], _SPENT_SECONDS["month"], _CALL_SECONDS, _TOLD_SECONDS),
                *terms,
            ],
        )
        if answer == "newer":
            raise _newer(details[0])
        if answer == "exceeded":
            term = next(term for term in TERMS if term.name == details[0])
            raise BudgetExceeded(
                term, term.amount(int(details[1])), first=bool(details[2]), until=period_end(term.period, now)
            )

    async def check(self, scope: Scope, user: str = "") -> None:
        """Raise `BudgetExceeded` if nothing is left. For calls whose cost cannot be estimated."""
        await self.reserve(scope, "", Cost(), user)

    async def settle(self, scope: Scope, call: str, cost: Cost, user: str = "") -> bool:
        """Charge *cost* for *call* in place of its reservation, if it has one; False if it was settled before."""
        return await ask(self._redis, self.settle_call(scope, call, cost, user))

    def settle_call(self, scope: Scope, call: str, cost: Cost, user: str = "") -> RedisCall[bool]:
        """Return the call of `settle`."""
        _, day, month = self._keys(scope, self._now())
        return RedisCall.script(
            _SETTLE,
            keys=[day, month, _key(scope, "call", call)],
            args=[user, cost.tokens, cost.nano, _SPENT_SECONDS["day"], _SPENT_SECONDS["month"], _CALL_SECONDS],
            parse=bool,
        )

    async def release(self, scope: Scope, call: str, user: str = "") -> None:
        """Give the reservation of *call* back, because its provider refused it."""
        await self.settle(scope, call, Cost(), user)

    async def set(self, scope: Scope, limits: Mapping[str, float | str]) -> None:
        """Store the workspace's own *limits*, by `BudgetTerm.name`: tokens, dollars or `UNLIMITED`.

        The settings hold for terms that are left out. Raises `runtime.stores.NewerFormat`.
        """
        named = {term.name: term for term in TERMS}
        flat = [
            part
            for name, limit in limits.items()
            for part in (name, limit if isinstance(limit, str) else named[name].units(limit))
        ]
        newer = await self._put(keys=[_key(scope, "limits")], args=[_VERSION, *flat])
        if newer:
            raise _newer(newer)

    async def state(self, scope: Scope, user: str = "") -> BudgetState:
        """Return the state of the workspace's budget and of *user*'s there. Raises `runtime.stores.NewerFormat`."""
        [state] = await self.states([scope], user)
        return state

    async def states(self, scopes: Sequence[Scope], user: str = "") -> list[BudgetState]:
        """Return the `state` of each of *scopes*, in one round trip. Raises `runtime.stores.NewerFormat`."""
        now = self._now()
        fields = [_field(whose, what, user) for whose in _WHOSE for what in _WHAT]
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                limits, day, month = self._keys(scope, now)
                pipe.hgetall(limits)
                pipe.hmget(day, fields)
                pipe.hmget(month, fields)
            rows = await pipe.execute() if scopes else []
        return [
            self._state(limits, dict(zip(fields, day, strict=True)), dict(zip(fields, month, strict=True)), user)
            for limits, day, month in zip(rows[::3], rows[1::3], rows[2::3], strict=True)
        ]

    def _state(
        self,
        stored: Mapping[str, str],
        day: Mapping[str, str | None],
        month: Mapping[str, str | None],
        user: str,
    ) -> BudgetState:
        if int(stored.get("v", _VERSION)) > _VERSION:
            raise _newer(stored["v"])
        spent = {"day": day, "month": month}
        return BudgetState(
            limits={term: _limit(stored.get(term.name), default) for term, default in self._defaults.items()},
            # Below zero only if a call of yesterday was settled today, and cost less than its reservation.
            spent={term: max(0, int(spent[term.period][_field(term.whose, term.what, user)] or 0)) for term in TERMS},
            set_here={
                term.name: UNLIMITED if stored[term.name] == UNLIMITED else term.amount(int(stored[term.name]))
                for term in TERMS
                if term.name in stored
            },
        )

    def _keys(self, scope: Scope, now: datetime) -> tuple[str, str, str]:
        return (
            _key(scope, "limits"),
            _key(scope, "spent", period_name("day", now)),
            _key(scope, "spent", period_name("month", now)),
        )


def _default_limits(settings: Settings) -> Limits:
    limits: dict[BudgetTerm, int | None] = {}
    for term in TERMS:
        limit: Any = getattr(settings, f"budget_{term.name}")
        limits[term] = None if limit is None else term.units(limit)
    return limits


def _limit(stored: str | None, default: int | None) -> int | None:
    if stored is None:
        return default
    return None if stored == UNLIMITED else int(stored)


def _field(whose: Whose, what: What, user: str) -> str:
    return f"{whose} {what}" if whose == "workspace" else f"user {what} {user}"


def _key(scope: Scope, *parts: str) -> str:
    return redis_key(_OWNER, scope.tag, *parts)


def _newer(version: str) -> NewerFormat:
    return NewerFormat(
        f"the workspace's budget is stored in format {version}, and this version of Agent Runtime reads up to "
        f"{_VERSION}: run the newer version that wrote it"
    )
