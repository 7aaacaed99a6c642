"""The Lua scripts of the transcript, each one atomic step. The callers document keys and arguments."""

from __future__ import annotations

APPEND = """
if KEYS[5] and redis.call('HGET', KEYS[5], 'token') ~= ARGV[5] then return -1 end
if not redis.call('SET', KEYS[4], '1', 'NX', 'EX', ARGV[1]) then return 0 end
local fields_per_entry = tonumber(ARGV[4])
local at, entries = 6, 0
while at <= #ARGV do
  local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, at, at + fields_per_entry - 1))
  redis.call('XADD', KEYS[3], '*', 'key', ARGV[3], 'id', id)
  at = at + fields_per_entry
  entries = entries + 1
end
redis.call('HINCRBY', KEYS[2], 'entries', entries)
redis.call('HINCRBY', KEYS[2], 'turns', ARGV[2])
redis.call('HSET', KEYS[2], 'v', '1')
return entries
"""

# Returns a page of this session, newest first, with later edits, in one round trip: every turn reads it.
TAIL_PAGE = """
local after = redis.call('HGET', KEYS[2], 'session_after') or '0-0'
local page = redis.call('XREVRANGE', KEYS[1], ARGV[1], '(' .. after, 'COUNT', ARGV[2])
if redis.call('EXISTS', KEYS[3]) == 0 then return page end
for _, entry in ipairs(page) do
  local fields, text = entry[2], nil
  for at = 1, #fields, 2 do
    if fields[at] == 'message' and fields[at + 1] ~= '' then text = redis.call('HGET', KEYS[3], fields[at + 1]) end
  end
  for at = 1, #fields, 2 do
    if fields[at] == 'text' and text then fields[at + 1] = text end
  end
end
return page
"""

# Stores who began the session, so that the same command, delivered again later, does not begin another one.
BEGIN_SESSION = """
if ARGV[1] ~= '' and redis.call('HGET', KEYS[2], 'session_by') == ARGV[1] then return 0 end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local after = newest[1] and newest[1][1] or '0-0'
redis.call('HSET', KEYS[2], 'v', '1', 'session_after', after, 'session_by', ARGV[1])
return 1
"""

# Deletes the entries of the turn ARGV[1], whose ids the caller found. The instruction to the Markdown copy comes after
# those that copy the entries.
FORGET_TURN = """
local gone, answered = 0, 0
for at = 3, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at])
  if entry[1] then
    gone = gone + redis.call('XDEL', KEYS[1], ARGV[at])
    for field = 1, #entry[1][2], 2 do
      local name, value = entry[1][2][field], entry[1][2][field + 1]
      if name == 'role' and value == 'inbound' then answered = 1 end
      if name == 'message' and value ~= '' then redis.call('HDEL', KEYS[4], value) end
    end
  end
end
if gone > 0 then
  redis.call('HINCRBY', KEYS[2], 'entries', -gone)
  redis.call('HINCRBY', KEYS[2], 'turns', -answered)
end
redis.call('XADD', KEYS[3], '*', 'key', ARGV[2], 'forget', ARGV[1])
return gone
"""

FORGET_ALL = """
redis.call('DEL', KEYS[1], KEYS[2], KEYS[4])
redis.call('XADD', KEYS[3], '*', 'key', ARGV[1], 'forget', '')
return 1
"""

# Replaces the log by the one assembled under another key, if nothing was appended meanwhile.
RESTORE = """
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if redis.call('XLEN', KEYS[1]) ~= tonumber(ARGV[1]) or (newest[1] and newest[1][1] or '') ~= ARGV[2] then return 0 end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('HSET', KEYS[3], 'v', '1', 'entries', ARGV[3], 'turns', ARGV[4])
return 1
"""
