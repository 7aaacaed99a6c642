"""What model calls cost, per workspace and model.

Keys (owner ``usage``, under the workspace's tag): ``models`` one hash of counters, ``counted`` one key per
(turn, purpose), so that a turn that is taken up again is not counted twice.
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

# What was counted for the turn may be another call, of a worker that stood still while this one took up its turn; one
# without a name, which is kept as 1, is taken for this.
_RECORD = """
local replies = 1
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
if not redis.call('SET', KEYS[2], ARGV[2], 'NX', 'EX', ARGV[1]) then
  local known = redis.call('GET', KEYS[2])
  if not KEYS[3] or known == ARGV[2] or known == '1' then return 0 end
  if not redis.call('SET', KEYS[3], ARGV[2], 'NX', 'EX', ARGV[1]) then return 0 end
  replies = 0
end
for at = 3, #ARGV, 2 do
  if replies == 1 or string.sub(ARGV[at], 1, 8) ~= 'replies ' then
    redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1])
  end
end
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


def names(purpose: str, call: str) -> tuple[str, ...]:
    """What a call is counted by: its purpose, and its own name where it has one."""
    return (purpose, f"{purpose}.{call}") if call else (purpose,)


class Usage:
    """The counters of all workspaces. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._record = redis.register_script(_RECORD)

    async def record(
        self, scope: Scope, turn_id: str, purpose: str, model: str, tokens: Tokens, *, call: str = ""
    ) -> bool:
        """Count one call, once per turn and *purpose*; False if it was counted before. Where the *call* has a name,
        another that was counted for the same is another, and this is counted beside it, once by its name."""
        counters = {
            "calls": 1,
            "replies": int(purpose == REPLY),
            "prompt": tokens.prompt,
            "cached": tokens.cached,
            "completion": tokens.completion,
            "cost_nano_usd": round(tokens.cost_usd * _NANO),
        }
        if tokens.estimated:
            counters["estimated"] = 1
        flat = [part for name, value in counters.items() for part in (f"{name} {model}", value)]
        counted = await self._record(
            keys=[
                redis_key(_OWNER, scope.tag, "models"),
                *(redis_key(_OWNER, scope.tag, "counted", turn_id, one) for one in names(purpose, call)),
            ],
            args=[_COUNTED_SECONDS, call or "1", *flat],
        )
        return bool(counted)

    async def counted_by(self, scope: Scope, turn_id: str, purpose: str) -> str:
        """The name of the call that was counted for the turn and *purpose*; empty where none was, ``1`` where it had
        none."""
        name: Any = await self._redis.get(redis_key(_OWNER, scope.tag, "counted", turn_id, purpose))
        return name or ""

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
