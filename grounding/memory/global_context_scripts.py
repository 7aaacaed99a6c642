"""The Lua scripts of `grounding.memory.global_context`. Each is one atomic step under one hash tag.

Common keys: the editor's numbering, then the lines of the workspace and, if another audience is in view, its lines.
``ARGV[1]`` is the number of these line hashes. A line's name is its owner's letter (``w``, ``u``) and its id. Lines of
format 1 date from a version that showed everything said in groups to the workspace (`runtime.audiences`).

A numbering is a hash. ``at`` is when it was last read (in the server's milliseconds). ``lines`` holds the names in the
order of their numbers, each with the version that the editor has seen (0: none) and, if it is not one more than the
previous, its number: ``w3:1 w4:2 u1:0:7``. Of deleted lines it keeps the newest `MAX_BLANKS`.

One counter per owner yields the ids and the versions of lines. No two lines ever have the same version, so a version
also identifies its line.
"""

MAX_BLANKS = 50
"""Without a limit an editor who never pauses would collect a blank for each deleted line."""

_COMMON = """
local owners, letters = tonumber(ARGV[1]), {'w', 'u'}
local raw, lines, order, sums = {}, {}, {}, {w = 0, u = 0}
for owner = 1, owners do
  local flat, ids = redis.call('HGETALL', KEYS[owner + 1]), {}
  for at = 1, #flat, 2 do
    local id = tonumber(flat[at])
    if id then
      local name, line = letters[owner] .. flat[at], cjson.decode(flat[at + 1])
      if line.f ~= 1 and line.f ~= 2 then return {'format', tostring(line.f)} end
      -- A person's line of an earlier version is skipped: its owner is not known yet
      if line.f == 2 or owner == 2 or not string.find(line.a, ':', 1, true) or string.sub(line.a, 1, 6) == 'token:' then
        ids[#ids + 1] = id
        raw[name], lines[name] = flat[at + 1], line
        sums[letters[owner]] = sums[letters[owner]] + line.k
      end
    end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do order[#order + 1] = letters[owner] .. string.format('%d', id) end
end
local given, place = {}, {}
local function next_number() return #given > 0 and given[#given][3] + 1 or 0 end
local function give(name, seen, number)
  given[#given + 1] = {name, seen, number or next_number()}
  place[name] = #given
end
local function remembered()
  for name, seen, number in string.gmatch(redis.call('HGET', KEYS[1], 'lines') or '', '(%a%d+):(%d+):?(%d*)') do
    give(name, tonumber(seen), tonumber(number))
  end
end
local function extend()
  for _, name in ipairs(order) do
    if not place[name] then give(name, 0) end
  end
end
local function number_of(name) return given[place[name]][3] end
local function at_number(asked)
  for _, one in ipairs(given) do
    if one[3] == asked then return one end
  end
end
local function now()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local function keep(seconds)
  local parts, blanks, expected = {}, -MAX_BLANKS, 0
  for _, one in ipairs(given) do
    if not lines[one[1]] then blanks = blanks + 1 end
  end
  for _, one in ipairs(given) do
    if blanks > 0 and not lines[one[1]] then
      blanks = blanks - 1
    else
      local number = one[3] == expected and '' or string.format(':%d', one[3])
      parts[#parts + 1] = one[1] .. ':' .. string.format('%d', one[2]) .. number
      expected = one[3] + 1
    end
  end
  redis.call('HSET', KEYS[1], 'v', 1, 'lines', table.concat(parts, ' '))
  redis.call('EXPIRE', KEYS[1], seconds)
end
local function use() redis.call('HSET', KEYS[1], 'at', string.format('%d', now())) end
local function fits(letter, more)
  local whole = letter == 'w' and sums.w or sums.w + sums.u
  return whole + more <= tonumber(ARGV[3]), whole
end
local function hash_of(name) return KEYS[(string.sub(name, 1, 1) == 'w') and 2 or 3] end
local function id_of(name) return string.sub(name, 2) end
local function note(key, fields)
  redis.call('XADD', key, 'MAXLEN', '~', ARGV[4], '*', 'v', 1, unpack(fields))
end
""".replace("MAX_BLANKS", str(MAX_BLANKS))

OPEN = (
    _COMMON
    + """
-- ARGV: number of owners, idle milliseconds, seconds to store the numbering (0: do not store it)
local last = tonumber(redis.call('HGET', KEYS[1], 'at') or '0')
if math.abs(now() - last) <= tonumber(ARGV[2]) then remembered() end
extend()
for _, one in ipairs(given) do
  if lines[one[1]] then one[2] = lines[one[1]].v end
end
if tonumber(ARGV[3]) > 0 then
  keep(ARGV[3])
  use()
end
local answer = {'ok'}
for _, one in ipairs(given) do
  answer[#answer + 1] = one[3]
  answer[#answer + 1] = one[1]
  answer[#answer + 1] = raw[one[1]] or ''
end
return answer
"""
)
"""Returns the numbered lines: within a session the old numbers with new lines at the end, after a pause new numbers."""

EDIT = (
    _COMMON
    + """
-- KEYS after the lines: the call's result, then for each owner its history and its waiting edits
-- ARGV: number of owners, seconds to store the numbering, token limit, most history entries, action (append, replace,
-- delete, or share: move a line of the audience to the workspace), line number or the owner's letter, content, tokens,
-- author, turn, at, origin, check ('seen', '' or a version), '1' to wait, most waiting edits, seconds to store results
local done = KEYS[owners + 2]
local known = redis.call('GET', done)
if known then return cjson.decode(known) end
local action, content, tokens = ARGV[5], ARGV[7], tonumber(ARGV[8])
local author, turn, at, origin = ARGV[9], ARGV[10], ARGV[11], ARGV[12]
remembered()
extend()
local name, line, before, letter
if action == 'append' then
  letter, before = ARGV[6], ''
else
  local asked = tonumber(ARGV[6])
  if asked < 0 or asked >= next_number() then return {'range', next_number()} end
  local one = at_number(asked)
  line = one and lines[one[1]]
  if not line then return {'gone', asked} end
  name = one[1]
  letter = string.sub(name, 1, 1)
  local expected = ARGV[13] == 'seen' and one[2] or tonumber(ARGV[13])
  if expected and expected ~= line.v then
    one[2] = line.v
    keep(ARGV[2])
    return {'changed', asked, line.c, line.a, line.v}
  end
  before = line.c
end
if action == 'share' then
  if letter == 'w' then return {'shared'} end
  content, tokens, turn, letter = line.c, line.k, line.t, 'w'
  origin = (line.o == 'retrieved' or line.o == 'others') and line.o or 'person'
end
local more = action == 'replace' and tokens - line.k or (action ~= 'delete' and tokens or 0)
local room, whole = fits(letter, more)
if more > 0 and not room then return {'full', whole, tokens} end
local third = owners + 3 + 2 * ((letter == 'w') and 0 or 1)
local history, waiting = KEYS[third], KEYS[third + 1]
local fields = {'by', author, 'turn', turn, 'at', at, 'origin', origin, 'before', before, 'after', content}
if ARGV[14] == '1' then
  if redis.call('HLEN', waiting) > tonumber(ARGV[15]) then return {'waiting_full', ARGV[15]} end
  local id = string.format('%d', redis.call('HINCRBY', waiting, 'last', 1))
  redis.call('HSET', waiting, id, cjson.encode({f = 1, action = action, line = name and id_of(name) or '',
    v = line and line.v or 0, c = content, k = tokens, before = before, a = author, t = turn, at = at, o = origin}))
  note(history, {'action', 'propose ' .. action, 'line', name and id_of(name) or '', unpack(fields)})
  local answer = {'waits', id}
  redis.call('SET', done, cjson.encode(answer), 'EX', ARGV[16])
  return answer
end
if action == 'share' then
  note(KEYS[owners + 5], {'action', action, 'line', id_of(name), unpack(fields)})
end
if action == 'delete' or action == 'share' then
  redis.call('HDEL', hash_of(name), id_of(name))
  lines[name] = nil
end
if action ~= 'delete' then
  local id, version
  if action ~= 'replace' then
    local hash = KEYS[(letter == 'w') and 2 or 3]
    version = redis.call('HINCRBY', hash, 'last', 1)
    id = string.format('%d', version)
    name = letter .. id
    give(name, version)
    lines[name] = true
  else
    id, version = id_of(name), redis.call('HINCRBY', hash_of(name), 'last', 1)
    given[place[name]][2] = version
  end
  redis.call('HSET', hash_of(name), id,
    cjson.encode({f = 2, c = content, k = tokens, v = version, a = author, t = turn, at = at, o = origin}))
end
note(history, {'action', action, 'line', id_of(name), unpack(fields)})
keep(ARGV[2])
if redis.call('HGET', KEYS[1], 'at') ~= '0' then use() end -- '0': the next read begins a new session
local answer = {'ok', number_of(name), content}
redis.call('SET', done, cjson.encode(answer), 'EX', ARGV[16])
return answer
"""
)
"""Makes one edit as a whole, or returns why not. A repeated call with the same key returns the first result."""

DECIDE = """
-- KEYS: lines of the workspace, lines of the owner, its history, its waiting edits
-- ARGV: id, 'approve' or 'deny', who decides, at, token limit, most history entries
local packed = redis.call('HGET', KEYS[4], ARGV[1])
if not packed or ARGV[1] == 'last' then return {'unknown'} end
local asked = cjson.decode(packed)
if asked.f ~= 1 then return {'format', tostring(asked.f)} end
local fields = {'line', asked.line, 'by', ARGV[3], 'turn', asked.t, 'at', ARGV[4], 'origin', asked.o,
  'before', asked.before, 'after', asked.c}
local function note(action)
  redis.call('HDEL', KEYS[4], ARGV[1])
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'v', 1,
    'action', action .. ' ' .. asked.action, unpack(fields))
end
if ARGV[2] == 'deny' then
  note('deny')
  return {'ok'}
end
local current = asked.line ~= '' and redis.call('HGET', KEYS[2], asked.line)
local line = current and cjson.decode(current)
if asked.action ~= 'append' then
  if not line then return {'gone', 0} end
  if line.v ~= asked.v then return {'changed', 0, line.c, line.a, line.v} end
end
if asked.action == 'delete' then
  redis.call('HDEL', KEYS[2], asked.line)
else
  local whole = 0
  for at = 1, (KEYS[1] == KEYS[2]) and 1 or 2 do
    local flat = redis.call('HGETALL', KEYS[at])
    for field = 1, #flat, 2 do
      if tonumber(flat[field]) then whole = whole + cjson.decode(flat[field + 1]).k end
    end
  end
  local more = asked.k - (line and line.k or 0)
  if more > 0 and whole + more > tonumber(ARGV[5]) then return {'full', whole, asked.k} end
  local version = redis.call('HINCRBY', KEYS[2], 'last', 1)
  local id = line and asked.line or string.format('%d', version)
  redis.call('HSET', KEYS[2], id, cjson.encode({f = 2, c = asked.c, k = asked.k, v = version,
    a = asked.a, t = asked.t, at = asked.at, o = 'approved'}))
  fields[2] = id
end
note('approve')
return {'ok'}
"""
"""Applies or drops a waiting edit. If its line has changed since, does neither."""

SETTLE = """
-- KEYS: lines of the workspace, lines of the owner, settled. ARGV: id, packed line, owner
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
local line = cjson.decode(ARGV[2])
line.f, line.v = 2, redis.call('HINCRBY', KEYS[2], 'last', 1)
local id = string.format('%d', line.v)
redis.call('HSET', KEYS[2], id, cjson.encode(line))
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[3] .. '/' .. id)
return 1
"""
"""Moves a line of an earlier version to its owner."""

FORGET = """
-- KEYS: lines of a person, their history, their waiting edits. The counters stay, so that no id is used twice.
for at = 1, #KEYS do
  if at == 2 then
    redis.call('DEL', KEYS[at])
  else
    for _, field in ipairs(redis.call('HKEYS', KEYS[at])) do
      if field ~= 'last' then redis.call('HDEL', KEYS[at], field) end
    end
  end
end
return 1
"""
"""Deletes a person's lines with their history and waiting edits."""
