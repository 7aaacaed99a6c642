"""What workspaces and people may still spend on model calls: reserved before a call, settled after it.

Invariant, for every limit: what is settled in the period plus what is held is at most the limit, and as much more as
the calls that were settled since cost beyond their estimates.

Keys (owner ``budgets``, under the workspace's tag): ``limits`` what was set for the workspace, one hash; ``spent`` one
hash of counters per day and per month; ``held`` the reservations of calls that are being made, one hash; ``settled``
one key per call, so that it is counted once; ``told`` who was told today that a budget is used up.
"""

from __future__ import annotations

import json
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
from runtime.stored import NewerFormat, pack
from runtime.usage import names

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "budgets"
_VERSION = 1
_SETTLED_SECONDS = 7 * 24 * 3600
_SPENT_SECONDS: Mapping[Period, int] = {"day": 8 * 24 * 3600, "month": 62 * 24 * 3600}
_TOLD_SECONDS = 2 * 24 * 3600

# Reservations are few, one for each call that is being made now: they are summed anew each time, so that no sum of
# them can ever drift from what they are. Times in whole milliseconds, by the server's clock: one process whose own is
# ahead would else end what the others hold.
_RESERVE = """
local version = redis.call('HGET', KEYS[1], 'v')
if version and tonumber(version) > tonumber(ARGV[1]) then return {'newer', version} end
local now, call, user = tonumber(ARGV[2]), ARGV[3], ARGV[4]
if now == nil then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local need = {tokens = tonumber(ARGV[5]), usd = tonumber(ARGV[6])}
local held = {}
for _, whose in ipairs({'workspace', 'user'}) do held[whose] = {tokens = 0, usd = 0} end
local all = redis.call('HGETALL', KEYS[4])
for at = 1, #all, 2 do
  local one = cjson.decode(all[at + 1])
  if one.expires <= now then
    redis.call('HDEL', KEYS[4], all[at])
  elseif all[at] ~= call then
    for _, what in ipairs({'tokens', 'usd'}) do
      held.workspace[what] = held.workspace[what] + one[what]
      if one.user == user then held.user[what] = held.user[what] + one[what] end
    end
  end
end
local bounded = false
for at = 10, #ARGV, 5 do
  local name, whose, what, period = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local limit = tonumber(redis.call('HGET', KEYS[1], name) or ARGV[at + 4])
  if limit and (whose == 'workspace' or user ~= '') then
    bounded = true
    local field = whose .. ' ' .. what
    if whose == 'user' then field = field .. ' ' .. user end
    local spent = redis.call('HGET', period == 'day' and KEYS[2] or KEYS[3], field)
    local used = tonumber(spent or '0') + held[whose][what]
    if used >= limit or used + need[what] > limit then
      redis.call('HDEL', KEYS[4], call)
      local first = redis.call('SADD', KEYS[5], user)
      redis.call('EXPIRE', KEYS[5], ARGV[8])
      return {'exceeded', name, string.format('%.0f', limit), first}
    end
  end
end
if bounded and ARGV[7] ~= '' and redis.call('EXISTS', KEYS[6]) == 0 then
  local expires = string.format(',"expires":%.0f}', now + tonumber(ARGV[9]))
  redis.call('HSET', KEYS[4], call, string.sub(ARGV[7], 1, -2) .. expires)
end
return {'ok'}
"""

_SETTLE = """
redis.call('HDEL', KEYS[3], ARGV[1])
if KEYS[5] and redis.call('EXISTS', KEYS[5]) == 1 then return 0 end
if not redis.call('SET', KEYS[4], ARGV[8], 'NX', 'EX', ARGV[5]) then
  local known = redis.call('GET', KEYS[4])
  if not KEYS[5] or known == ARGV[8] or known == '1' then return 0 end
  if not redis.call('SET', KEYS[5], ARGV[8], 'NX', 'EX', ARGV[5]) then return 0 end
end
for at = 1, 2 do
  redis.call('HINCRBY', KEYS[at], 'workspace tokens', ARGV[3])
  redis.call('HINCRBY', KEYS[at], 'workspace usd', ARGV[4])
  if ARGV[2] ~= '' then
    redis.call('HINCRBY', KEYS[at], 'user tokens ' .. ARGV[2], ARGV[3])
    redis.call('HINCRBY', KEYS[at], 'user usd ' .. ARGV[2], ARGV[4])
  end
  redis.call('EXPIRE', KEYS[at], ARGV[5 + at])
end
return 1
"""

_PUT = """
local version = redis.call('HGET', KEYS[1], 'v')
if version and tonumber(version) > tonumber(ARGV[1]) then return version end
redis.call('DEL', KEYS[1])
if #ARGV > 1 then redis.call('HSET', KEYS[1], 'v', unpack(ARGV)) end
return false
"""


class Budgets:
    """The budgets of all workspaces. Raises `connectors.message.StoreUnavailable` throughout.

    A reservation that is never settled ends after *held_seconds* by the server's clock, for which *clock* (seconds
    since the epoch) can stand in. Which day it is each process's own clock says: those that differ begin the day that
    far apart.
    """

    def __init__(
        self, redis: Redis, settings: Settings, held_seconds: float, clock: Callable[[], float] | None = None
    ) -> None:
        self._redis = redis
        self._held_seconds = held_seconds
        self._clock = clock
        self._defaults = default_limits(settings)
        self._reserve = redis.register_script(_RESERVE)
        self._settle = redis.register_script(_SETTLE)
        self._put = redis.register_script(_PUT)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock() if self._clock else time.time(), UTC)

    async def reserve(self, scope: Scope, call: str, estimate: Cost, user: str = "") -> None:
        """Hold *estimate* for *call* (unique in the workspace; again replaces), of the workspace's budget and, where it
        is named, of *user*'s.

        Nothing is held for a call that was settled before: who asks then stood still while another worker answered,
        and will never let go of it. Raises `BudgetExceeded`, also where nothing at all is left, and
        `runtime.stored.NewerFormat`.
        """
        if await self._is_unlimited(scope):
            return
        held = pack(_VERSION, user=user, tokens=estimate.tokens, usd=estimate.nano)
        await self._check(scope, call, estimate, user, held)

    async def _is_unlimited(self, scope: Scope) -> bool:
        """Whether nothing bounds what a workspace spends, so that nothing would be held there. To read that is nothing
        that a turn waits for: it comes with what else it reads."""
        if any(limit is not None for limit in self._defaults.values()):
            return False
        stored: Any = await self._redis.hgetall(_key(scope, "limits"))
        if int(stored.pop("v", _VERSION)) > _VERSION:
            return False  # the step that holds says so
        return all(limit == UNLIMITED for limit in stored.values())

    async def check(self, scope: Scope, user: str = "") -> None:
        """For calls whose cost nobody knows before. Raises `BudgetExceeded` where nothing is left."""
        await self._check(scope, "", Cost(), user, "")

    async def _check(self, scope: Scope, call: str, estimate: Cost, user: str, held: str) -> None:
        now = self._now()
        terms = [
            part
            for term, limit in self._defaults.items()
            for part in (term.name, term.whose, term.what, term.period, "" if limit is None else limit)
        ]
        milliseconds = "" if self._clock is None else round(now.timestamp() * 1000)
        said, *more = await self._reserve(
            keys=[
                *self._keys(scope, now),
                _key(scope, "told", period_name("day", now)),
                _key(scope, "settled", call),
            ],
            args=[
                *(_VERSION, milliseconds, call, user, estimate.tokens, estimate.nano, held, _TOLD_SECONDS),
                *(round(self._held_seconds * 1000), *terms),
            ],
        )
        if said == "newer":
            raise _newer(more[0])
        if said == "exceeded":
            term = next(term for term in TERMS if term.name == more[0])
            raise BudgetExceeded(
                term, term.amount(int(more[1])), first=bool(more[2]), until=period_end(term.period, now)
            )

    async def settle(
        self, scope: Scope, call: str, cost: Cost, user: str = "", *, held_as: str = "", by: str = ""
    ) -> bool:
        """Count what *call* did cost, now, and hold nothing more for it, or for what was *held_as* something else;
        False if it was counted before. One *by* another name is another call, and counted beside it."""
        now = self._now()
        _, day, month, held = self._keys(scope, now)
        counted = await self._settle(
            keys=[day, month, held, *(_key(scope, "settled", one) for one in names(call, by))],
            args=[
                *(held_as or call, user, cost.tokens, cost.nano, _SETTLED_SECONDS),
                *(_SPENT_SECONDS["day"], _SPENT_SECONDS["month"], by or "1"),
            ],
        )
        return bool(counted)

    async def release(self, scope: Scope, call: str) -> None:
        """Hold nothing more for *call*, which came to nothing."""
        await self._redis.hdel(_key(scope, "held"), call)

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
                limits, day, month, held = self._keys(scope, now)
                pipe.hgetall(limits)
                pipe.hmget(day, fields)
                pipe.hmget(month, fields)
                pipe.hvals(held)
            found = await pipe.execute() if scopes else []
        return [
            self._state(
                found[at],
                dict(zip(fields, found[at + 1], strict=True)),
                dict(zip(fields, found[at + 2], strict=True)),
                found[at + 3],
                user,
                now,
            )
            for at in range(0, len(found), 4)
        ]

    def _state(
        self,
        stored: Mapping[str, str],
        day: Mapping[str, str | None],
        month: Mapping[str, str | None],
        reservations: Sequence[str],
        user: str,
        now: datetime,
    ) -> State:
        if int(stored.get("v", _VERSION)) > _VERSION:
            raise _newer(stored["v"])
        spent = {"day": day, "month": month}
        live = [one for one in map(json.loads, reservations) if one["expires"] > now.timestamp() * 1000]
        return State(
            limits={term: _limit(stored.get(term.name), default) for term, default in self._defaults.items()},
            spent={term: int(spent[term.period][_field(term.whose, term.what, user)] or 0) for term in TERMS},
            held={
                term: sum(one[term.what] for one in live if term.whose == "workspace" or one["user"] == user)
                for term in TERMS
            },
            set_here={
                term.name: UNLIMITED if stored[term.name] == UNLIMITED else term.amount(int(stored[term.name]))
                for term in TERMS
                if term.name in stored
            },
        )

    def _keys(self, scope: Scope, now: datetime) -> tuple[str, str, str, str]:
        return (
            _key(scope, "limits"),
            _key(scope, "spent", period_name("day", now)),
            _key(scope, "spent", period_name("month", now)),
            _key(scope, "held"),
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
