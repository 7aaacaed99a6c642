"""The Lua scripts of `grounding.memory.records.store`. Each is one atomic step on the keys of one workspace."""

LOOK = """
-- KEYS: done, texts, kept. ARGV: digest, id of a further record to read, or ''
-- Returns: the call's earlier result, its record, the id under the digest, its record, the further record; '' for none
local done = redis.call('GET', KEYS[1]) or ''
local said = ''
if done ~= '' then said = redis.call('HGET', KEYS[3], cjson.decode(done).id) or '' end
local id = redis.call('HGET', KEYS[2], ARGV[1]) or ''
local known = id ~= '' and redis.call('HGET', KEYS[3], id) or ''
local other = ARGV[2] ~= '' and redis.call('HGET', KEYS[3], ARGV[2]) or ''
return {done, said, id, known or '', other or ''}
"""
"""Reads at one moment all that adding a record depends on."""

WRITE = """
-- KEYS: due, unindexed, owners, done, said of the known record; then for each record: kept, texts, its old list, its
--   new list, standing, history, said
-- ARGV: number of records, result to store for the call ('': none), seconds to store it, most history entries, most
--   stored turns, turn that must not have said the known record ('': any); then for each record 13:
--   1 owner, 2 id, 3 version it must have now (0: none), 4 packed, 5 place in lists, 6 old digest, 7 new digest,
--   8 id that the new digest must have now ('*': any), 9 due in milliseconds or '', 10 '1' if standing,
--   11 version to index or '', 12 turn or '', 13 packed history entry or ''
local count, per_key, per_arg = tonumber(ARGV[1]), 7, 13
if ARGV[2] ~= '' and redis.call('EXISTS', KEYS[4]) == 1 then return 'moved' end
if ARGV[6] ~= '' and redis.call('ZSCORE', KEYS[5], ARGV[6]) then return 'said' end
for at = 0, count - 1 do
  local k, a = 5 + at * per_key, 6 + at * per_arg
  local packed = redis.call('HGET', KEYS[k + 1], ARGV[a + 2])
  local version = packed and cjson.decode(packed).version or 0
  if version ~= tonumber(ARGV[a + 3]) then return 'moved' end
  local digest, expected = ARGV[a + 7], ARGV[a + 8]
  if digest ~= '' and expected ~= '*' and (redis.call('HGET', KEYS[k + 2], digest) or '') ~= expected then
    return 'moved'
  end
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for at = 0, count - 1 do
  local k, a = 5 + at * per_key, 6 + at * per_arg
  local kept, texts, leaves, joins = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local standing, history, said = KEYS[k + 5], KEYS[k + 6], KEYS[k + 7]
  local of, id, place, had, gets = ARGV[a + 1], ARGV[a + 2], ARGV[a + 5], ARGV[a + 6], ARGV[a + 7]
  local name = of .. '/' .. id
  redis.call('HSET', kept, id, ARGV[a + 4])
  redis.call('SADD', KEYS[3], of)
  if gets ~= '' then
    if had ~= '' and had ~= gets and redis.call('HGET', texts, had) == id then redis.call('HDEL', texts, had) end
    redis.call('HSET', texts, gets, id)
  end
  if leaves ~= joins then redis.call('ZREM', leaves, place) end
  redis.call('ZADD', joins, 0, place)
  if ARGV[a + 9] ~= '' then
    redis.call('ZADD', KEYS[1], ARGV[a + 9], name)
  else
    redis.call('ZREM', KEYS[1], name)
  end
  if ARGV[a + 10] == '1' then
    redis.call('ZADD', standing, 0, place)
  else
    redis.call('ZREM', standing, place)
  end
  if ARGV[a + 11] ~= '' then redis.call('ZADD', KEYS[2], ARGV[a + 11], name) end
  if ARGV[a + 12] ~= '' then
    redis.call('ZADD', said, now, ARGV[a + 12])
    redis.call('ZREMRANGEBYRANK', said, 0, -1 - tonumber(ARGV[5]))
  end
  if ARGV[a + 13] ~= '' then
    redis.call('XADD', history, 'MAXLEN', '~', ARGV[4], '*', 'change', ARGV[a + 13])
  end
end
if ARGV[2] ~= '' then redis.call('SET', KEYS[4], ARGV[2], 'EX', ARGV[3]) end
return 'ok'
"""
"""Writes all the records if every one still has the version that the caller read; else writes nothing."""

PAGE = """
-- KEYS: for each list the list and the hash of its records. ARGV: limit, place to begin before, or ''
-- Returns the packed records of all lists, the newest first
local limit, bound = tonumber(ARGV[1]), ARGV[2] == '' and '+' or '(' .. ARGV[2]
local found = {}
for at = 1, #KEYS, 2 do
  for _, place in ipairs(redis.call('ZREVRANGEBYLEX', KEYS[at], bound, '-', 'LIMIT', 0, limit)) do
    found[#found + 1] = {place, KEYS[at + 1]}
  end
end
table.sort(found, function(one, other) return one[1] > other[1] end)
local answer = {}
for at = 1, math.min(#found, limit) do
  local id = string.match(found[at][1], '|(.*)$')
  answer[#answer + 1] = redis.call('HGET', found[at][2], id) or ''
end
return answer
"""

ERASE = """
-- KEYS: due, unindexed, kept, texts, list, standing, history, said, came. ARGV: of, id, version, place, digest
local packed = redis.call('HGET', KEYS[3], ARGV[2])
if not packed then return 'gone' end
if cjson.decode(packed).version ~= tonumber(ARGV[3]) then return 'moved' end
local name = ARGV[1] .. '/' .. ARGV[2]
redis.call('HDEL', KEYS[3], ARGV[2])
if redis.call('HGET', KEYS[4], ARGV[5]) == ARGV[2] then redis.call('HDEL', KEYS[4], ARGV[5]) end
redis.call('ZREM', KEYS[5], ARGV[4])
redis.call('ZREM', KEYS[6], ARGV[4])
redis.call('ZREM', KEYS[1], name)
redis.call('DEL', KEYS[7], KEYS[8])
redis.call('SREM', KEYS[9], ARGV[2])
redis.call('ZADD', KEYS[2], 0, name)
return 'ok'
"""
"""Deletes a record and marks it as still to be deleted from the index."""

MOVE = """
-- KEYS: due, unindexed, owners, settled; then for the old and for the new owner: kept, texts, list, standing,
--   history, said, came
-- ARGV: old owner, new owner, id, version it must have now, packed, place in lists, digest, new version, history
--   entry or '', most history entries
local packed = redis.call('HGET', KEYS[5], ARGV[3])
if not packed or cjson.decode(packed).version ~= tonumber(ARGV[4]) then return 'moved' end
local former, latter, place = ARGV[1] .. '/' .. ARGV[3], ARGV[2] .. '/' .. ARGV[3], ARGV[6]
redis.call('HDEL', KEYS[5], ARGV[3])
redis.call('HSET', KEYS[12], ARGV[3], ARGV[5])
if redis.call('HGET', KEYS[6], ARGV[7]) == ARGV[3] then redis.call('HDEL', KEYS[6], ARGV[7]) end
redis.call('HSETNX', KEYS[13], ARGV[7], ARGV[3])
redis.call('ZREM', KEYS[7], place)
redis.call('ZADD', KEYS[14], 0, place)
if redis.call('ZREM', KEYS[8], place) == 1 then redis.call('ZADD', KEYS[15], 0, place) end
for at = 9, 10 do
  if redis.call('EXISTS', KEYS[at]) == 1 then redis.call('RENAME', KEYS[at], KEYS[at + 7]) end
end
if ARGV[9] ~= '' then redis.call('XADD', KEYS[16], 'MAXLEN', '~', ARGV[10], '*', 'change', ARGV[9]) end
if redis.call('SREM', KEYS[11], ARGV[3]) == 1 then redis.call('SADD', KEYS[18], ARGV[3]) end
local due = redis.call('ZSCORE', KEYS[1], former)
if due then
  redis.call('ZREM', KEYS[1], former)
  redis.call('ZADD', KEYS[1], due, latter)
end
redis.call('ZADD', KEYS[2], 0, former, ARGV[8], latter)
redis.call('SADD', KEYS[3], ARGV[2])
if ARGV[2] == '' then redis.call('SREM', KEYS[4], ARGV[3]) end
return 'ok'
"""
"""Moves a record to another owner and marks it to be indexed anew for both."""

FORGET = """
-- KEYS: owners, kept, all other keys of one owner. ARGV: owner, '1' if the index holds nothing of theirs
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
for at = 3, #KEYS do redis.call('DEL', KEYS[at]) end
if ARGV[2] == '1' then redis.call('SREM', KEYS[1], ARGV[1]) end
return 1
"""
"""Deletes the remaining keys of an owner who has no records left."""

INDEXED = """
-- KEYS: unindexed, kept. ARGV: owner, then pairs of an id and its indexed version (0: removed from the index)
-- Returns the ids of those that changed since
local again = {}
for at = 2, #ARGV, 2 do
  local packed = redis.call('HGET', KEYS[2], ARGV[at])
  local version = packed and cjson.decode(packed).version or 0
  local name = ARGV[1] .. '/' .. ARGV[at]
  if version ~= tonumber(ARGV[at + 1]) then
    redis.call('ZADD', KEYS[1], version, name)
    again[#again + 1] = ARGV[at]
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return again
"""
"""Marks records as indexed; those that changed since stay marked as not indexed."""
