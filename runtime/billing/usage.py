"""What model calls cost, per workspace and model.

Keys (owner ``usage``, under the workspace's tag): ``models`` one hash of counters, ``counted`` one key per call, so
that no call is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from connectors.message import Scope, redis_key
from connectors.message import Usage as Tokens

if TYPE_CHECKING:
    from redis.asyncio import Redis


_OWNER = "usage"
_COUNTED_SECONDS = 7 * 24 * 3600
REPLY = "reply"
"""The purpose of the call that answers a turn."""
TRANSCRIPTION = "transcription"
"""The purpose of calls that write down what was said."""
_NANO = 1_000_000_000
"""Cost is counted in whole billionths of a dollar, so that sums are exact."""

_RECORD = """
if not redis.call('SET', KEYS[2], '', 'NX', 'EX', ARGV[1]) then return 0 end
for at = 2, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1]) end
return 1
"""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Calls to one model and their tokens, as the provider counted them; cost in US dollars.

    ``replies`` are those of the calls that answered a turn; of ``estimated`` calls the provider said nothing, and they
    are counted by our own tokens."""

    model: str
    calls: int = 0
    replies: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost_usd: float = 0.0
    estimated: int = 0


class Usage:
    """The counters of all workspaces. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._record = redis.register_script(_RECORD)

    async def record(self, scope: Scope, call: str, model: str, tokens: Tokens, *, is_reply: bool = False) -> bool:
        """Count one call, once by its name; False if it was counted before. *is_reply* says that it answered a turn."""
        counters = {
            "calls": 1,
            "replies": int(is_reply),
            "prompt": tokens.prompt,
            "cached": tokens.cached,
            "completion": tokens.completion,
            "cost_nano_usd": round(tokens.cost_usd * _NANO),
        }
        if tokens.estimated:
            counters["estimated"] = 1
        counted = await self._record(
            keys=[redis_key(_OWNER, scope.tag, "models"), redis_key(_OWNER, scope.tag, "counted", call)],
            args=[_COUNTED_SECONDS, *(part for name, value in counters.items() for part in (f"{name} {model}", value))],
        )
        return bool(counted)

    async def totals(self, scope: Scope) -> list[ModelUsage]:
        """What a workspace has used, by model."""
        counters: Any = await self._redis.hgetall(redis_key(_OWNER, scope.tag, "models"))
        models: dict[str, ModelUsage] = {}
        for field, value in counters.items():
            name, _, model = field.partition(" ")
            known = models.setdefault(model, ModelUsage(model))
            change: dict[str, Any] = {name: int(value)}
            if name == "cost_nano_usd":
                change = {"cost_usd": int(value) / _NANO}
            models[model] = replace(known, **change)
        return [models[model] for model in sorted(models)]

    async def forget_workspace(self, scope: Scope) -> None:
        """Drop a workspace's counters."""
        await self._redis.delete(redis_key(_OWNER, scope.tag, "models"))
