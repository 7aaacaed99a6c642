"""What the mailbox does in one atomic step each, as Lua for Redis. Keys and arguments come from `runtime.mailbox`."""

from __future__ import annotations

STORE = """
local waiting = redis.call('LLEN', KEYS[2])
local seen = redis.call('GET', KEYS[1])
if seen then return {0, seen, ''} end
if waiting >= tonumber(ARGV[5]) then return {-2, redis.call('HSETNX', KEYS[5], 'full', '1'), ''} end
redis.call('SET', KEYS[1], '', 'EX', ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[2])
redis.call('HSET', KEYS[4], ARGV[3], ARGV[4])
if redis.call('HSETNX', KEYS[5], 'queued', '1') == 1 then redis.call('XADD', KEYS[3], '*', 'key', ARGV[3]) end
return {1, '', redis.call('HGET', KEYS[5], 'turn') or ''}
"""

PUT_BACK = """
if redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
if redis.call('LLEN', KEYS[1]) + #ARGV - 3 > tonumber(ARGV[2]) then return -2 end
redis.call('SET', KEYS[4], '', 'EX', ARGV[3])
for at = 4, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[at]) end
if redis.call('HSETNX', KEYS[3], 'queued', '1') == 1 then redis.call('XADD', KEYS[2], '*', 'key', ARGV[1]) end
return 1
"""

CLAIM = """
if redis.call('HGET', KEYS[1], 'queued') == false then
  redis.call('XACK', KEYS[2], ARGV[3], ARGV[1])
  redis.call('XDEL', KEYS[2], ARGV[1])
  return 0
end
redis.call('HSET', KEYS[1], 'token', ARGV[2])
return 1
"""

RENEW = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('XCLAIM', KEYS[2], ARGV[2], ARGV[3], 0, ARGV[4], 'JUSTID')
return 1
"""

RELEASE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return -1 end
redis.call('XACK', KEYS[3], ARGV[2], ARGV[3])
redis.call('XDEL', KEYS[3], ARGV[3])
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HDEL', KEYS[1], 'token')
  redis.call('XADD', KEYS[3], '*', 'key', ARGV[4])
  return 1
end
redis.call('DEL', KEYS[1])
return 0
"""

# How many of the first messages are one turn's. A message of its own (``followup``) has only its rest with it: what its
# author says next, where it looks unfinished. In JSON a word with bare quotes is a name, never what somebody wrote.
TOGETHER = """
local alone = '"queue":"followup"'
local function together(texts)
  if #texts == 0 then return 0 end
  if not string.find(texts[1], alone, 1, true) then
    for at = 2, #texts do
      if string.find(texts[at], alone, 1, true) then return at - 1 end
    end
    return #texts
  end
  local before = cjson.decode(texts[1])
  for at = 2, #texts do
    if not before['message']['looks_unfinished'] then return at - 1 end
    local one = cjson.decode(texts[at])
    if one['message']['author']['id'] ~= before['message']['author']['id'] then return at - 1 end
    if one['accepted_at'] - before['accepted_at'] > %d then return at - 1 end
    before = one
  end
  return #texts
end
"""

TAKE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[3] then return -1 end
local turn = redis.call('HGET', KEYS[1], 'turn')
local resumed = turn and 1 or 0
if not turn then
  local count = together(redis.call('LRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1))
  if count == 0 then return false end
  turn = ARGV[1]
  redis.call('HSET', KEYS[1], 'turn', turn, 'count', count, 'attempts', 0)
end
local attempts = redis.call('HINCRBY', KEYS[1], 'attempts', tonumber(ARGV[4]))
local count = tonumber(redis.call('HGET', KEYS[1], 'count'))
return {turn, attempts, resumed, redis.call('LRANGE', KEYS[2], 0, count - 1)}
"""

EXTEND = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[3] then return -1 end
if redis.call('HGET', KEYS[1], 'turn') ~= ARGV[1] then return {} end
local count = together(redis.call('LRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1))
count = math.max(count, tonumber(redis.call('HGET', KEYS[1], 'count')))
redis.call('HSET', KEYS[1], 'count', count)
return redis.call('LRANGE', KEYS[2], 0, count - 1)
"""

DONE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return -1 end
if redis.call('HGET', KEYS[1], 'turn') ~= ARGV[1] then return 0 end
redis.call('LTRIM', KEYS[2], redis.call('HGET', KEYS[1], 'count'), -1)
redis.call('HDEL', KEYS[1], 'turn', 'count', 'attempts', 'full')
for at = 3, #KEYS do redis.call('SET', KEYS[at], ARGV[1], 'XX', 'KEEPTTL') end
return 1
"""

AMEND = """
local taken = tonumber(redis.call('HGET', KEYS[1], 'count') or '0')
for at, text in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  if cjson.decode(text)['message']['message_id'] == ARGV[1] then
    if at <= taken then return 'answering' end
    if ARGV[2] ~= '' then
      redis.call('LSET', KEYS[2], at - 1, ARGV[2])
    else
      redis.call('LREM', KEYS[2], 1, text)
    end
    return 'amended'
  end
end
return redis.call('EXISTS', KEYS[3]) == 1 and 'answered' or 'unknown'
"""
