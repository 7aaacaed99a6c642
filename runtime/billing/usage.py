"""Counts model calls, their tokens and their cost, per workspace and model.

Keys (owner ``usage``, under the workspace's tag): ``models`` one hash of counters; ``counted`` one key per call, so
that no call is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from connectors.message import Scope, Usage, redis_key
from connectors.redis_calls import RedisCall
from runtime.billing.budgets import NANO

if TYPE_CHECKING:
    from redis.asyncio import Redis

REPLY = "reply"
"""The purpose of a call that answers a turn."""
TRANSCRIPTION = "transcription"
"""The purpose of a call that transcribes a recording."""

_OWNER = "usage"
_COUNTED_SECONDS = 7 * 24 * 3600
_RECORD = """
if not redis.call('SET', KEYS[2], '', 'NX', 'EX', ARGV[1]) then return 0 end
for at = 2, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 1
"""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The calls to one model and their tokens, as the provider counted them; the cost in US dollars.

    ``replies``: the calls that answered a turn. ``estimated``: the calls whose tokens were counted here, because the
    provider reported none.
    """

    model: str
    calls: int = 0
    replies: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost_usd: float = 0.0
    estimated: int = 0


class UsageCounters:
    """The counters of all workspaces. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def record_call(
        self, scope: Scope, call: str, model: str, usage: Usage, *, is_reply: bool = False
    ) -> RedisCall[bool]:
        """Return the Redis call that counts the model call named *call* once; its result is False if it was counted
        before. *is_reply*: it answered a turn."""
        counters = {
            "calls": 1,
            "replies": int(is_reply),
            "prompt": usage.prompt,
            "cached": usage.cached,
            "completion": usage.completion,
            "cost_nano_usd": round(usage.cost_usd * NANO),
        }
        if usage.estimated:
            counters["estimated"] = 1
        return RedisCall.script(
            _RECORD,
            keys=[redis_key(_OWNER, scope.tag, "models"), redis_key(_OWNER, scope.tag, "counted", call)],
            args=[_COUNTED_SECONDS, *(part for name, value in counters.items() for part in (f"{name} {model}", value))],
            parse=bool,
        )

    async def totals(self, scope: Scope) -> list[ModelUsage]:
        """Return the usage of a workspace, by model."""
        counters: Any = await self._redis.hgetall(redis_key(_OWNER, scope.tag, "models"))
        models: dict[str, ModelUsage] = {}
        for field, value in counters.items():
            name, _, model = field.partition(" ")
            change: dict[str, Any] = {name: int(value)}
            if name == "cost_nano_usd":
                change = {"cost_usd": int(value) / NANO}
            models[model] = replace(models.get(model, ModelUsage(model)), **change)
        return [models[model] for model in sorted(models)]
