"""The atomic steps of the mailbox, as Lua for Redis. Keys and arguments come from `runtime.turns.mailbox`."""

from __future__ import annotations

REST_SECONDS = 5
"""A message that comes later than this after an unfinished one is not its rest."""

PUT_BACK = """
if redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
if redis.call('LLEN', KEYS[1]) + #ARGV - 3 > tonumber(ARGV[2]) then return -2 end
redis.call('SET', KEYS[4], '', 'EX', ARGV[3])
for at = 4, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[at]) end
if redis.call('HSETNX', KEYS[3], 'queued', '1') == 1 then redis.call('XADD', KEYS[2], '*', 'key', ARGV[1]) end
return 1
"""

# How many of the first messages one turn answers. A ``followup`` message is answered by itself, or if it looks
# unfinished together with its rest: the next messages of its author.
_TOGETHER = f"""
local function together(texts)
  if #texts < 2 then return #texts end
  local before = cjson.decode(texts[1])
  local alone = before['queue'] == 'followup'
  for at = 2, #texts do
    local one = cjson.decode(texts[at])
    if not alone then
      if one['queue'] == 'followup' then return at - 1 end
    elseif not before['message']['looks_unfinished']
      or one['message']['author']['id'] ~= before['message']['author']['id']
      or one['accepted_at'] - before['accepted_at'] > {REST_SECONDS} then
      return at - 1
    end
    before = one
  end
  return #texts
end
"""

# If a worker holds the conversation already, the last number is 1: it will answer the message next.
STORE = """
local waiting = redis.call('LLEN', KEYS[2])
local seen = redis.call('GET', KEYS[1])
if seen then return {0, seen, '', 0} end
if waiting >= tonumber(ARGV[5]) then return {-2, redis.call('HSETNX', KEYS[5], 'full', '1'), '', 0} end
redis.call('SET', KEYS[1], '', 'EX', ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[2])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[4], ARGV[3], ARGV[4]) end
if redis.call('HSETNX', KEYS[5], 'queued', '1') == 0 then
  return {1, '', redis.call('HGET', KEYS[5], 'turn') or '', redis.call('HEXISTS', KEYS[5], 'token')}
end
redis.call('XADD', KEYS[3], '*', 'key', ARGV[3])
return {1, '', '', 0}
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
  redis.call('HDEL', KEYS[1], 'token', 'by')
  redis.call('XADD', KEYS[3], '*', 'key', ARGV[4])
  return 1
end
redis.call('DEL', KEYS[1])
return 0
"""

# If nothing waits, the lease ends. The worker that takes a turn leaves its token in ``by``. If the same token takes the
# turn again, it has failed: ``attempts`` grows by 1. If another token is there, its process has ended without handing
# the turn back: ``crashes`` grows by 1.
TAKE = f"""{_TOGETHER}
local current, inbox, work, token = KEYS[1], KEYS[2], KEYS[3], ARGV[3]
if redis.call('HGET', current, 'token') ~= token then return -1 end
local turn = redis.call('HGET', current, 'turn')
local resumed = turn and 1 or 0
if not turn then
  local count = together(redis.call('LRANGE', inbox, 0, tonumber(ARGV[2]) - 1))
  if count == 0 then
    redis.call('XACK', work, ARGV[5], ARGV[6])
    redis.call('XDEL', work, ARGV[6])
    redis.call('DEL', current)
    return false
  end
  turn = ARGV[1]
  redis.call('HSET', current, 'turn', turn, 'count', count, 'attempts', 1)
elseif ARGV[4] == '1' then
  local by = redis.call('HGET', current, 'by')
  if by == token then
    redis.call('HINCRBY', current, 'attempts', 1)
  elseif by then
    redis.call('HINCRBY', current, 'crashes', 1)
  end
end
redis.call('HSET', current, 'by', token)
local attempts, count = redis.call('HGET', current, 'attempts'), tonumber(redis.call('HGET', current, 'count'))
local crashes = redis.call('HGET', current, 'crashes') or 0
return {{turn, attempts, resumed, redis.call('LRANGE', inbox, 0, count - 1), crashes}}
"""

EXTEND = f"""{_TOGETHER}
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[3] then return -1 end
if redis.call('HGET', KEYS[1], 'turn') ~= ARGV[1] then return {{}} end
local count = together(redis.call('LRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1))
count = math.max(count, tonumber(redis.call('HGET', KEYS[1], 'count')))
redis.call('HSET', KEYS[1], 'count', count)
return redis.call('LRANGE', KEYS[2], 0, count - 1)
"""

DONE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return -1 end
if redis.call('HGET', KEYS[1], 'turn') ~= ARGV[1] then return 0 end
redis.call('LTRIM', KEYS[2], redis.call('HGET', KEYS[1], 'count'), -1)
redis.call('HDEL', KEYS[1], 'turn', 'count', 'attempts', 'crashes', 'by', 'full', 'stop', 'dropped')
for at = 3, #KEYS do redis.call('SET', KEYS[at], ARGV[1], 'XX', 'KEEPTTL') end
return 1
"""

# The signal is stored with the turn, so that it is found if the news is lost, or if another worker resumes the turn.
STOP = """
local turn = redis.call('HGET', KEYS[1], 'turn')
if turn then redis.call('HSET', KEYS[1], 'stop', turn) end
if not KEYS[2] then return {turn or '', {}} end
local count = turn and tonumber(redis.call('HGET', KEYS[1], 'count')) or 0
local dropped = redis.call('LRANGE', KEYS[2], count, -1)
if count > 0 then redis.call('LTRIM', KEYS[2], 0, count - 1) else redis.call('DEL', KEYS[2]) end
return {turn or '', dropped}
"""

# Only if the turn answers that message alone: otherwise the answer is still wanted.
DROP = """
local turn = redis.call('HGET', KEYS[1], 'turn')
if not turn or redis.call('HGET', KEYS[1], 'count') ~= '1' then return '' end
local text = redis.call('LINDEX', KEYS[2], 0)
if not text or cjson.decode(text)['message']['message_id'] ~= ARGV[1] then return '' end
redis.call('HSET', KEYS[1], 'dropped', turn)
return turn
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
