"""What workspaces and people may still spend on model calls: charged before a call, corrected after it.

A call is charged its reservation, an upper bound, before it is made. When its cost is known, the cost replaces the
reservation. If nobody learns the cost, for example because the process was killed, the reservation stands.

Invariant, for every limit: what is spent in the period is at most the limit, plus what settled calls cost beyond their
reservations.

Keys (owner ``budgets``, under the workspace's tag): ``limits`` what was set for the workspace, one hash; ``spent`` one
hash of counters per day and per month; ``call`` one key per call with its reservation, or ``settled``; ``told`` who was
told today that a budget is used up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from config.settings import Settings
from connectors.message import Scope, redis_key
from runtime.budget_terms import (
    TERMS,
    UNLIMITED,
    BudgetExceeded,
    Cost,
    Limits,
    Period,
    State,
    Term,
    What,
    Whose,
    period_end,
    period_name,
)
from runtime.stored import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "budgets"
_VERSION = 1
_CALL_SECONDS = 7 * 24 * 3600
_SPENT_SECONDS: Mapping[Period, int] = {"day": 8 * 24 * 3600, "month": 62 * 24 * 3600}
_TOLD_SECONDS = 2 * 24 * 3600

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

# A call that was reserved or settled before is not charged again. A call without a name is only checked.
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
    """The budgets of all workspaces. Raises `connectors.message.StoreUnavailable` throughout.

    *clock* gives seconds since the epoch. A call that is settled after midnight is charged its reservation on the first
    day, and the difference to its cost on the second.
    """

    def __init__(self, redis: Redis, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._defaults = default_limits(settings)
        self._reserve = redis.register_script(_RESERVE)
        self._settle = redis.register_script(_SETTLE)
        self._put = redis.register_script(_PUT)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    async def reserve(self, scope: Scope, call: str, estimate: Cost, user: str = "") -> None:
        """Charge *estimate* for *call* (unique in the workspace) to the workspace's budget and to *user*'s, if named.

        Again does no harm. Raises `BudgetExceeded`, also if nothing at all is left, and `runtime.stored.NewerFormat`.
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
        """Check before calls whose cost nobody knows. Raises `BudgetExceeded` if nothing is left."""
        await self.reserve(scope, "", Cost(), user)

    async def settle(self, scope: Scope, call: str, cost: Cost, user: str = "") -> bool:
        """Charge *cost* for *call* in place of its reservation, if it has one; False if it was settled before."""
        now = self._now()
        _, day, month = self._keys(scope, now)
        settled = await self._settle(
            keys=[day, month, _key(scope, "call", call)],
            args=[
                *(user, cost.tokens, cost.nano, _SPENT_SECONDS["day"], _SPENT_SECONDS["month"], _CALL_SECONDS),
            ],
        )
        return bool(settled)

    async def release(self, scope: Scope, call: str, user: str = "") -> None:
        """Charge nothing for *call*: its provider refused it."""
        await self.settle(scope, call, Cost(), user)

    async def set(self, scope: Scope, limits: Mapping[str, float | str]) -> None:
        """Let *limits* (by `Term.name`; tokens, dollars or `UNLIMITED`) hold in the workspace instead of the settings';
        what is left out is as the settings have it. Raises `runtime.stored.NewerFormat`."""
        named = {term.name: term for term in TERMS}
        flat = [
            part
            for name, limit in limits.items()
            for part in (name, limit if isinstance(limit, str) else named[name].units(limit))
        ]
        newer = await self._put(keys=[_key(scope, "limits")], args=[_VERSION, *flat])
        if newer:
            raise _newer(newer)

    async def state(self, scope: Scope, user: str = "") -> State:
        """How the workspace's budget stands, and *user*'s in it. Raises `runtime.stored.NewerFormat`."""
        [state] = await self.states([scope], user)
        return state

    async def states(self, scopes: Sequence[Scope], user: str = "") -> list[State]:
        """`state` for each of *scopes*, in one round trip. Raises `runtime.stored.NewerFormat`."""
        now = self._now()
        fields = [_field(whose, what, user) for whose in ("workspace", "user") for what in ("tokens", "usd")]
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                limits, day, month = self._keys(scope, now)
                pipe.hgetall(limits)
                pipe.hmget(day, fields)
                pipe.hmget(month, fields)
            found = await pipe.execute() if scopes else []
        return [
            self._state(
                found[at],
                dict(zip(fields, found[at + 1], strict=True)),
                dict(zip(fields, found[at + 2], strict=True)),
                user,
            )
            for at in range(0, len(found), 3)
        ]

    def _state(
        self,
        stored: Mapping[str, str],
        day: Mapping[str, str | None],
        month: Mapping[str, str | None],
        user: str,
    ) -> State:
        if int(stored.get("v", _VERSION)) > _VERSION:
            raise _newer(stored["v"])
        spent = {"day": day, "month": month}
        return State(
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


def default_limits(settings: Settings) -> Limits:
    """What the settings bound."""
    limits: dict[Term, int | None] = {}
    for term in TERMS:
        limit: Any = getattr(settings, f"budget_{term.name}")
        limits[term] = None if limit is None else term.units(limit)
    return limits


def _limit(stored: str | None, default: int | None) -> int | None:
    if stored is None:
        return default
    return None if stored == UNLIMITED else int(stored)


def _field(whose: Whose | str, what: What | str, user: str) -> str:
    return f"{whose} {what}" if whose == "workspace" else f"user {what} {user}"


def _key(scope: Scope, *parts: str) -> str:
    return redis_key(_OWNER, scope.tag, *parts)


def _newer(version: str) -> NewerFormat:
    return NewerFormat(
        f"the workspace's budget is stored in format {version}, and this version of Agent Runtime reads up to "
        f"{_VERSION}: run the newer version that wrote it"
    )
