"""What the outbox does in one atomic step each, as Lua for Redis. Keys and arguments come from
`runtime.delivery.outbox`.

All keys of a script are of one partition. Those that are found on the way (whoever else awaits a reply, the turns of a
stream) are named after the ones that are given.
"""

from __future__ import annotations

# What is stored of a turn ends by itself. Which turns of a conversation have something, by when that ends (epoch
# seconds, by the server's clock), is kept with it: to forget a conversation nothing else need be looked at.
_KEEP = """
local function keep(turn, index, id, seconds)
  local now = tonumber(redis.call('TIME')[1])
  redis.call('EXPIRE', turn, seconds)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', '(' .. now)
  redis.call('ZADD', index, now + seconds, id)
  redis.call('EXPIRE', index, seconds + 1)
end
"""

# The streams of those who wait for it elsewhere lie beside the one that is named: their names end otherwise. What any
# process may deliver stands in its conversation's line, too; a consumer that is named gets what waits there right away.
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
  entered[#entered + 1] = id
end
enter(ARGV[8], ARGV[7])
if #entered == 0 then
  local waiting = {}
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    local address = string.match(field, '^to:(.*)$')
    local id = address and redis.call('HGET', KEYS[1], field)
    if id and #redis.call('XRANGE', root .. 'out:' .. address, id, id) > 0 then waiting[#waiting + 1] = address end
  end
  return {0, entered, {}, waiting}
end
redis.call('HSET', KEYS[1], 'v', ARGV[1])
local stored = redis.call('HSETNX', KEYS[1], 'message', ARGV[2])
keep(KEYS[1], KEYS[4], ARGV[5], ARGV[3])
for at = 13, #ARGV do
  local address = redis.call('HGET', KEYS[3], ARGV[at])
  if address then
    redis.call('HDEL', KEYS[3], ARGV[at])
    enter(address, string.find(address, '@', 1, true) and ARGV[9] or '')
  end
end
if ARGV[10] == '' then return {stored, entered, {}, {}} end
local function read()
  return redis.pcall('XREADGROUP', 'GROUP', ARGV[12], ARGV[10], 'COUNT', ARGV[11], 'STREAMS', KEYS[2], '>')
end
local found = read()
if found and found.err then
  redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[12], '0', 'MKSTREAM')
  found = read()
end
return {stored, entered, found and not found.err and found[1][2] or {}, {}}
"""
)

AWAIT = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""

# An entry is delivered by whom it was given to, and not before the older ones of its conversation are done. One that
# stands first in the line and not in the stream was taken away by who knows of no lines, and holds up nobody.
# 0: an older one is not done; -1: the entry is another's; -2: it is done.
HOLD = (
    _KEEP
    + """
if KEYS[3] then
  local pending = redis.pcall('XPENDING', KEYS[4], ARGV[6], ARGV[5], ARGV[5], 1, ARGV[1])
  if pending.err or #pending == 0 then
    return #redis.call('XRANGE', KEYS[4], ARGV[5], ARGV[5]) == 0 and -2 or -1
  end
  local function age(id)
    local ms, number = string.match(id, '(%d+)-(%d+)')
    return tonumber(ms), tonumber(number)
  end
  local ms, number = age(ARGV[5])
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
local fields = redis.call('HGETALL', KEYS[1])
if ARGV[4] ~= '' then
  for at = 1, #fields, 2 do
    if fields[at] == 'message' then fields[at + 1] = '' end
  end
end
redis.call('HSET', KEYS[1], 'holder', ARGV[1])
if ARGV[3] ~= '' then redis.call('HSETNX', KEYS[1], 'part:0', ARGV[3]) end
keep(KEYS[1], KEYS[2], ARGV[7], ARGV[2])
return fields
"""
)

# What only grows is nobody's: it may be marked until somebody delivers. What was held and has no holder was forgotten.
# With a line and its stream: not while another turn's reply waits in them, which is older then.
# -1: somebody else delivers; -2: forgotten; 0: an older one is not done.
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

# What was forgotten meanwhile has no holder, and is not to come back.
DONE = """
local holder = redis.call('HGET', KEYS[1], 'holder')
if holder and holder ~= ARGV[1] then return -1 end
if holder and ARGV[4] then redis.call('HSET', KEYS[1], unpack(ARGV, 4)) end
redis.call('XACK', KEYS[3], ARGV[3], ARGV[2])
redis.call('XDEL', KEYS[3], ARGV[2])
redis.call('LREM', KEYS[2], 1, ARGV[2])
return 1
"""

# As many turns as ARGV[2] at most; how many there were.
FORGET = """
local ids = redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)
for _, id in ipairs(ids) do redis.call('DEL', ARGV[1] .. id) end
if #ids > 0 then redis.call('ZREM', KEYS[1], unpack(ids)) end
return #ids
"""

# What is for one process alone: every entry of its streams, with the reply where that is still stored.
ARRIVED = """
local found = {}
for number, stream in ipairs(KEYS) do
  local root = string.match(stream, '^(.-})')
  for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
    local fields = entry[2]
    local turn = root .. ':turn:' .. fields[2] .. ':' .. fields[4]
    local stored = redis.call('HMGET', turn, 'v', 'message')
    found[#found + 1] = {number, entry[1], fields, stored}
  end
end
return found
"""

# Of a page of turns, the newest first, the one of whose first parts one is sent, or shown, as the message ARGV[2];
# empty where none is, and -1 where there are no more.
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
