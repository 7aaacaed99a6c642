"""The atomic steps of the outbox, as Lua for Redis; keys and arguments come from `runtime.delivery.outbox`.

All keys of a script are in one partition. A script builds the names of further keys (other addresses, the turns of a
conversation) from the names that it gets.
"""

from __future__ import annotations

# Each turn's hash expires by itself. The conversation's index lists its turns by the time they expire (epoch seconds,
# by the server's clock), so that forgetting a conversation reads nothing else.
_KEEP = """
local function keep(turn, index, id, seconds)
  local now = tonumber(redis.call('TIME')[1])
  redis.call('EXPIRE', turn, seconds)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', '(' .. now)
  redis.call('ZADD', index, now + seconds, id)
  redis.call('EXPIRE', index, seconds + 1)
end
"""

# Store a reply and enter it at its address, and at every address that waits for an answer to one of its messages.
# An entry for one process expires; an entry that any process may deliver also stands in its conversation's line.
# Return the addresses of new entries; if there are none, the addresses at which the reply still waits. -1: the fence
# does not hold.
PUT = (
    _KEEP
    + """
if KEYS[5] and redis.call('HGET', KEYS[5], 'token') ~= ARGV[6] then return -1 end
local root = string.sub(KEYS[2], 1, -5 - #ARGV[8])
local entered = {}
local function enter(address, seconds)
  if redis.call('HEXISTS', KEYS[1], 'to:' .. address) == 1 then return end
  local id = redis.call('XADD', root .. 'out:' .. address, '*', 'key', ARGV[4], 'turn', ARGV[5])
  redis.call('HSET', KEYS[1], 'to:' .. address, id)
  if seconds ~= '' then
    redis.call('EXPIRE', root .. 'out:' .. address, seconds)
  else
    redis.call('RPUSH', root .. 'line:' .. address .. ':' .. ARGV[4], id)
  end
  entered[#entered + 1] = address
end
enter(ARGV[8], ARGV[7])
if #entered == 0 then
  local waiting = {}
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    local address = string.match(field, '^to:(.*)$')
    local id = address and redis.call('HGET', KEYS[1], field)
    if id and #redis.call('XRANGE', root .. 'out:' .. address, id, id) > 0 then waiting[#waiting + 1] = address end
  end
  return {entered, waiting}
end
redis.call('HSET', KEYS[1], 'v', ARGV[1])
redis.call('HSETNX', KEYS[1], 'message', ARGV[2])
keep(KEYS[1], KEYS[4], ARGV[5], ARGV[3])
for at = 10, #ARGV do
  local address = redis.call('HGET', KEYS[3], ARGV[at])
  if address then
    redis.call('HDEL', KEYS[3], ARGV[at])
    enter(address, string.find(address, '@', 1, true) and ARGV[9] or '')
  end
end
return {entered, {}}
"""
)

# Make the caller the holder of a reply, and return the reply's fields; empty if the reply was forgotten. With an entry:
# only while the entry is the caller's, and after the older entries of the conversation. An id that stands first in the
# line but not in the stream any more is dropped.
# 0: an older entry is not delivered yet; -1: the entry is another process's; -2: it was delivered.
HOLD = (
    _KEEP
    + """
if KEYS[3] then
  local pending = redis.pcall('XPENDING', KEYS[4], ARGV[5], ARGV[4], ARGV[4], 1, ARGV[1])
  if pending.err or #pending == 0 then
    return #redis.call('XRANGE', KEYS[4], ARGV[4], ARGV[4]) == 0 and -2 or -1
  end
  local function age(id)
    local ms, number = string.match(id, '(%d+)-(%d+)')
    return tonumber(ms), tonumber(number)
  end
  local ms, number = age(ARGV[4])
  local head = redis.call('LINDEX', KEYS[3], 0)
  while head do
    local head_ms, head_number = age(head)
    if head_ms > ms or head_ms == ms and head_number >= number then break end
    if #redis.call('XRANGE', KEYS[4], head, head) > 0 then return 0 end
    redis.call('LPOP', KEYS[3])
    head = redis.call('LINDEX', KEYS[3], 0)
  end
end
if redis.call('HEXISTS', KEYS[1], 'message') == 0 then return {} end
redis.call('HSET', KEYS[1], 'holder', ARGV[1])
keep(KEYS[1], KEYS[2], ARGV[3], ARGV[2])
return redis.call('HGETALL', KEYS[1])
"""
)

# Store the state of one part. Without a holder's name (a preview): only until a delivery holds the reply. With a line
# and its stream: only while no other turn's entry waits in them.
# -1: another process is the holder; -2: the reply was forgotten; 0: an older entry is not delivered yet.
MARK = (
    _KEEP
    + """
local holder = redis.call('HGET', KEYS[1], 'holder')
if ARGV[1] ~= '' and not holder then return -2 end
if ARGV[1] == '' and holder or ARGV[1] ~= '' and holder ~= ARGV[1] then return -1 end
local head = KEYS[3] and redis.call('LINDEX', KEYS[3], 0)
while head do
  local entry = redis.call('XRANGE', KEYS[4], head, head)[1]
  if entry then
    if entry[2][4] ~= ARGV[5] then return 0 end
    break
  end
  redis.call('LPOP', KEYS[3])
  head = redis.call('LINDEX', KEYS[3], 0)
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
if ARGV[1] == '' then keep(KEYS[1], KEYS[2], ARGV[5], ARGV[4]) end
return 1
"""
)

# Take an entry out of its stream and its line. -1: another process is the holder. A forgotten reply has no holder.
DONE = """
local holder = redis.call('HGET', KEYS[1], 'holder')
if holder and holder ~= ARGV[1] then return -1 end
redis.call('XACK', KEYS[3], ARGV[3], ARGV[2])
redis.call('XDEL', KEYS[3], ARGV[2])
redis.call('LREM', KEYS[2], 1, ARGV[2])
return 1
"""

# Delete up to ARGV[2] turns of a conversation, and return how many there were.
FORGET = """
local ids = redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)
for _, id in ipairs(ids) do redis.call('DEL', ARGV[1] .. id) end
if #ids > 0 then redis.call('ZREM', KEYS[1], unpack(ids)) end
return #ids
"""

# Look in one page of turns, newest first, for the turn with a part that is sent or shown as the platform's message
# ARGV[2]; return its id, '' if the page has none, -1 if there are no more pages.
TURN_OF = """
local ids = redis.call('ZREVRANGE', KEYS[1], ARGV[3], ARGV[3] + ARGV[4] - 1)
local sent, shown = 'sent:' .. ARGV[2], 'shown:' .. ARGV[2]
for _, id in ipairs(ids) do
  for _, state in ipairs(redis.call('HMGET', ARGV[1] .. id, unpack(ARGV, 5))) do
    if state == sent or state == shown then return id end
  end
end
return #ids < tonumber(ARGV[4]) and -1 or ''
"""
