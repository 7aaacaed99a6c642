"""What it takes to find and cut out of manifests the records that are to be kept nowhere. Scripts, and pure functions.

A manifest is kept in one step with its turn's place in a sorted set per record that it shows, so that whoever erases a
record reads the manifests of the turns that showed it and no others. What was cut lately is remembered: a turn that
read a record before it was erased, and is kept after it was cut, is refused in that step, and kept without it.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from grounding.run_context import RunContext
from runtime.stored import pack, unpack

VERSION = 1
GONE_SECONDS = 3600.0
"""So long it is known what was cut: longer than any turn takes from reading records to keeping what it read."""
OF_RECORDS = ("records", "censors")
"""What of a context names records. Censors stand in every prompt: of them it is only known that they were shown."""
_ID = re.compile(r'"id":"([^"]+)"')
"""In what `pack` made; quotation marks of texts are escaped there."""

_BASE64 = "64:"
"""Stands before what is compressed and then in base 64; without it, as it was once, it is in base 85, which has no
colon and is slow to write in Python."""

# Keys: the turn, the turns of the workspace, what was cut, the first turn whose records are known, censors that were
# shown, its material where ARGV[5] is 1, and the turns of each record that it shows (ARGV[6] names them). Turn ids sort
# by time, so that equal scores list them in order. Gives back what was cut meanwhile, and then keeps nothing; which
# turns are not among the newest any more; and whether its material was there.
KEEP = """
local shown, censors, gone = cjson.decode(ARGV[6]), cjson.decode(ARGV[7]), {}
if redis.call('EXISTS', KEYS[3]) == 1 then
  for _, ids in ipairs({shown, censors}) do
    for _, id in ipairs(ids) do
      if redis.call('ZSCORE', KEYS[3], id) then gone[#gone + 1] = id end
    end
  end
  if #gone > 0 then return {gone, {}, 0} end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[3])
local dropped = redis.call('ZRANGE', KEYS[2], 0, ARGV[4])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, ARGV[4])
redis.call('SETNX', KEYS[4], ARGV[3])
local oldest, first = redis.call('ZRANGE', KEYS[2], 0, 0)[1], 5 + tonumber(ARGV[5])
for at = 1, #shown do
  redis.call('ZADD', KEYS[first + at], 0, ARGV[3])
  redis.call('ZREMRANGEBYLEX', KEYS[first + at], '-', '(' .. oldest)
  redis.call('EXPIRE', KEYS[first + at], ARGV[2])
end
if #censors > 0 then
  redis.call('SADD', KEYS[5], unpack(censors))
  redis.call('EXPIRE', KEYS[5], ARGV[2])
end
return {{}, dropped, ARGV[5] == '1' and redis.call('EXPIRE', KEYS[6], ARGV[2]) or 1}
"""
# A manifest as it was read gives way to a shorter one; 0 where another took its place meanwhile.
REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
"""


def ids_of(context: Mapping[str, Any], names: Sequence[str] = OF_RECORDS) -> frozenset[str]:
    """The ids of the records that a context, as it is stored, names."""
    return frozenset(one["id"] for name in names for one in context.get(name) or ())


def spared(context: RunContext, gone: Collection[str]) -> tuple[RunContext, int]:
    """*context* without the records *gone*, and how many those were."""
    records = tuple(one for one in context.records if one.id not in gone)
    censors = tuple(one for one in context.censors if one.id not in gone)
    cut = len(context.records) + len(context.censors) - len(records) - len(censors)
    return context.model_copy(update={"records": records, "censors": censors}), cut


def each_without(stored: Sequence[str | None], gone: frozenset[str]) -> list[str | None]:
    """Manifests as they are stored without the records *gone*; None for those that have none of them."""
    return [_without(one, gone) for one in stored]


def _without(stored: str | None, gone: frozenset[str]) -> str | None:
    """Of many records each is not looked for by itself: of 2,000 that took 30 ms for every manifest."""
    text = decompressed(stored) if stored else ""
    if gone.isdisjoint(_ID.findall(text)):
        return None
    fields = unpack(text, VERSION, "a turn's manifest")
    context, cut = fields["context"], int(fields.pop("cut", 0))
    for name in OF_RECORDS:
        left = [one for one in context.get(name) or () if one["id"] not in gone]
        cut += len(context.get(name) or ()) - len(left)
        context[name] = left
    return compressed(pack(VERSION, **fields, cut=cut))


def compressed(text: str) -> str:
    return _BASE64 + base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def decompressed(stored: str) -> str:
    former = not stored.startswith(_BASE64)
    packed = base64.b85decode(stored) if former else base64.b64decode(stored.removeprefix(_BASE64))
    return zlib.decompress(packed).decode()
