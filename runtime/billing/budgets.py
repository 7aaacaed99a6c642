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

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from config.settings import BUNDLED_MODELS, SMOLLM2, Settings
from connectors.message import AgentRuntimeError, Scope, redis_key
from connectors.message import Usage as Tokens
from grounding.prompt_input import Prompt
from grounding.prompt_input import Tokens as Counting
from grounding.retrieval import RerankUnavailable
from runtime.billing.prices import Prices
from runtime.billing.usage import Usage
from runtime.llm import LOCAL_MAX_OUTPUT_TOKENS, Completion, Message, Model, ModelFailed, Transcription
from runtime.stores import NewerFormat, retry_until_stored

if TYPE_CHECKING:
    from redis.asyncio import Redis


# ---- budget terms ----
#
# What a budget may bound, in which units, and what people are told when too little of it is left. Pure.


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


# ---- budgets ----


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

        Again does no harm. Raises `BudgetExceeded`, also if nothing at all is left, and `runtime.stores.NewerFormat`.
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
        what is left out is as the settings have it. Raises `runtime.stores.NewerFormat`."""
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
        """How the workspace's budget stands, and *user*'s in it. Raises `runtime.stores.NewerFormat`."""
        [state] = await self.states([scope], user)
        return state

    async def states(self, scopes: Sequence[Scope], user: str = "") -> list[State]:
        """`state` for each of *scopes*, in one round trip. Raises `runtime.stores.NewerFormat`."""
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


# ---- spending ----
#
# Pays for model calls: reserves what a call may take before it is made, settles what it took after it.
#
# One rule: a call is charged its reservation when it begins, which is an upper bound. If its provider reports what it
# took, or its whole answer can be counted here, that replaces the reservation. If its provider refused it before any
# word
# of an answer, the reservation is given back. In all other cases it stands: the call was stopped, interrupted,
# superseded, it broke off, or its process was killed.
#
# A call is charged to the workspace and, if a person asked for it, to that person. Each call has a name of its own, by
# which it is counted once, however often it is settled.


MESSAGE_TOKENS = 4
"""What a provider adds for each message: its role and its ends."""
IMAGE_TOKENS = 1600
"""For one picture: about what Anthropic counts for the largest that it does not shrink, more than OpenAI does."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays for a call: a workspace and, if a person asked for it, that person's budget there."""

    scope: Scope
    user: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a call was charged before it was made. ``call`` is its name, ``model`` the one that is asked first."""

    call: str
    model: str
    usage: Tokens


class Spending:
    """Reserves and settles model calls. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(
        self, settings: Settings, budgets: Budgets, usage: Usage, model: Model, prices: Prices, counting: Counting
    ) -> None:
        self._max_output_tokens = settings.llm_max_output_tokens
        self._budgets = budgets
        self._usage = usage
        self._model = model
        self._prices = prices
        self._counting = counting

    async def estimate(self, sent: int, *, first: str | None = None, output_tokens: int | None = None) -> Reservation:
        """Estimate what a call that sends about *sent* tokens may take at most, under a new name."""
        model = first or self._model.name
        output = output_tokens or self._max_output_tokens
        if model == SMOLLM2:
            output = min(output, LOCAL_MAX_OUTPUT_TOKENS)
        usd = await self._usd(model, sent, output)
        return Reservation(uuid.uuid4().hex, model, Tokens(sent, 0, output, usd, estimated=True))

    async def reserve(self, payer: Payer, purpose: str, reservation: Reservation) -> None:
        """Charge *reservation*. Repeats until the store has it. Raises `BudgetExceeded`."""
        most = reservation.usage
        cost = Cost(most.prompt + most.completion, most.cost_usd)
        try:
            await retry_until_stored(lambda: self._budgets.reserve(payer.scope, reservation.call, cost, payer.user))
        except BudgetExceeded as error:
            _log_exceeded(error, purpose)
            raise

    async def check(self, payer: Payer, purpose: str) -> None:
        """Check before calls whose cost nobody knows. Raises `BudgetExceeded` if nothing is left."""
        try:
            await self._budgets.check(payer.scope, payer.user)
        except BudgetExceeded as error:
            _log_exceeded(error, purpose)
            raise

    async def settle(self, payer: Payer, call: str, model: str, tokens: Tokens, *, is_reply: bool = False) -> None:
        """Charge *tokens* for *call* in place of its reservation, and count it for *model*. Again does no harm."""
        cost = Cost(tokens.prompt + tokens.completion, tokens.cost_usd)
        await asyncio.gather(
            self._usage.record(payer.scope, call, model, tokens, is_reply=is_reply),
            self._budgets.settle(payer.scope, call, cost, payer.user),
        )

    async def settle_answer(self, payer: Payer, completion: Completion, *, is_reply: bool = False) -> None:
        """Settle the call that brought *completion*. An answer that no call brought costs nothing."""
        if completion.call:
            await self.settle(payer, completion.call, completion.model, completion.usage, is_reply=is_reply)

    async def settle_unknown(self, payer: Payer, reservation: Reservation) -> None:
        """Settle a call whose cost nobody reports: its reservation stands."""
        await self.settle(payer, reservation.call, reservation.model, reservation.usage)

    async def settle_failed(self, payer: Payer, reservation: Reservation, error: ModelFailed) -> None:
        """Settle a call that brought no answer. Its reservation stands if a part of an answer came. Repeats until the
        store has it."""
        if error.shown:
            await retry_until_stored(lambda: self.settle_unknown(payer, reservation))
        else:
            await retry_until_stored(lambda: self._budgets.release(payer.scope, reservation.call, payer.user))

    async def settle_heard(self, payer: Payer, heard: Transcription) -> None:
        """Settle the transcription of a recording."""
        await self.settle(payer, heard.call, heard.model, heard.usage)

    async def ask(
        self,
        scope: Scope,
        purpose: str,
        messages: Sequence[Message],
        *,
        output_tokens: int | None = None,
    ) -> Completion:
        """Ask the model *messages* for nobody in particular, and pay for it. Events call it *purpose*.

        Raises `BudgetExceeded`, `runtime.llm.ModelFailed` and `connectors.message.StoreUnavailable`.
        """
        payer, text = Payer(scope), "\n".join(str(message["content"]) for message in messages)
        sent = await asyncio.to_thread(self._counting.count, text) + MESSAGE_TOKENS * len(messages)
        reservation = await self.estimate(sent, output_tokens=output_tokens)
        await self.reserve(payer, purpose, reservation)
        try:
            answer = await self._model.complete(messages, purpose=purpose, max_output_tokens=output_tokens)
        except ModelFailed as error:
            await self.settle_failed(payer, reservation, error)
            raise
        completion = await self.count_answer(answer, reservation)
        await retry_until_stored(lambda: self.settle_answer(payer, completion))
        return completion

    async def count_answer(self, completion: Completion, reservation: Reservation) -> Completion:
        """Name the call that brought *completion*, and count its tokens here if its provider reported none."""
        completion = replace(completion, call=reservation.call)
        reported, sent = completion.usage, reservation.usage.prompt
        if reported.prompt or reported.completion or not sent:
            return completion
        written = "\n".join([completion.text, *(call.name + call.arguments for call in completion.tool_calls)])
        output = await asyncio.to_thread(self._counting.count, written)
        usd = await self._usd(completion.model, sent, output)
        return replace(completion, usage=Tokens(sent, 0, output, usd, estimated=True))

    async def _usd(self, model: str, prompt: int, completion: int) -> float:
        """Give LiteLLM's price; 0.0 for the local model and for those without one."""
        return 0.0 if model in BUNDLED_MODELS else (await self._prices.of(model)).usd(prompt, completion)


class RerankCosts:
    """Counts reranking for the workspace: no person asked for it."""

    def __init__(self, usage: Usage, budgets: Budgets) -> None:
        self._usage = usage
        self._budgets = budgets

    async def check(self, scope: Scope) -> None:
        """Raises `grounding.retrieval.ranking.RerankUnavailable` if the budget is used up."""
        try:
            await self._budgets.check(scope)
        except BudgetExceeded as error:
            raise RerankUnavailable(str(error), why="budget", retryable=False) from error

    async def count(self, scope: Scope, model: str, tokens: Tokens) -> None:
        """Count one call. Each call costs, also that of a turn that is taken up again."""
        call = uuid.uuid4().hex
        cost = Cost(tokens.prompt + tokens.completion, tokens.cost_usd)
        await asyncio.gather(
            self._usage.record(scope, call, model, tokens),
            self._budgets.settle(scope, call, cost),
        )


def prompt_tokens(prompt: Prompt, images: int) -> int:
    """Estimate what a provider will count for *prompt*. Pure."""
    system = sum(block.tokens for block in prompt.blocks if block.place.message == "system")
    return system + prompt.tokens_total + MESSAGE_TOKENS * len(prompt.messages) + IMAGE_TOKENS * images


def _log_exceeded(error: BudgetExceeded, purpose: str) -> None:
    term = error.term
    _log.warning(
        "budget.exceeded", scope=term.whose, what=term.what, period=term.period, limit=error.limit, purpose=purpose
    )
