"""The global context in Redis: numbered lines in every prompt of a workspace, of a place, or of a person.

Keys (owner ``global_context``, under the workspace's tag). ``of`` is empty for the workspace's lines, else the
audience:

- ``lines:<of>``: a hash of line ids, never reused, to lines, and the counter ``last``
- ``history:<of>``: a stream of the newest edits
- ``waiting:<of>``: a hash of edits that wait for approval
- ``given:<editor>``: the numbering that an editor saw
- ``done:<key>``: the result of an edit

Line ids are permanent; line numbers belong to one editor. An edit is checked against what its editor saw and applied in
one atomic step. If the line has changed since, the edit is refused, with the line's present text.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import structlog

from connectors.message import CALLER_PREFIX, Scope, encode_id, redis_key
from connectors.redis_calls import RedisCall, ask
from grounding.memory.global_context.lines import (
    Editor,
    EditOrigin,
    EditResult,
    GlobalContextFull,
    GlobalContextRefused,
    Line,
    LineChange,
    LineChanged,
    NoSuchLine,
    NothingWaits,
    Owner,
    PendingEdit,
    TooManyWaiting,
    folded,
    owner_in,
    weight,
)
from grounding.prompt_input import Tokens
from grounding.transcript import UnknownFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


# The Lua scripts. Each is one atomic step under one hash tag.
#
# Common keys: the editor's numbering, then the lines of the workspace and, if another audience is in view, its lines.
# ``ARGV[1]`` is the number of these line hashes. A line's name is its owner's letter (``w``, ``u``) and its id. Lines
# of format 1 date from a version that showed everything said in groups to the workspace (`runtime.ingress.upgrade`).
#
# A numbering is a hash. ``at`` is when it was last read (in the server's milliseconds). ``lines`` holds the names in
# the order of their numbers, each with the version that the editor has seen (0: none) and, if it is not one more than
# the previous, its number: ``w3:1 w4:2 u1:0:7``. Of deleted lines it keeps the newest `MAX_BLANKS`.
#
# One counter per owner yields the ids and the versions of lines. No two lines ever have the same version, so a version
# also identifies its line.

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

_OWNER = "global_context"
_GIVEN_SECONDS = 7 * 24 * 3600
"""How long a numbering is stored: as long as a turn may be resumed."""
_DONE_SECONDS = 24 * 3600
HISTORY_MAX_EDITS = 1000
WAITING_MAX_EDITS = 50
_LETTERS: dict[Owner, str] = {"workspace": "w", "user": "u", "place": "u"}
_log = structlog.get_logger()


class GlobalContexts:
    """The lines of all workspaces. Every method raises `connectors.message.StoreUnavailable` and `UnknownFormat`.

    *max_tokens* limits the lines of one view. After a pause of *idle_seconds* an editor's session is over.
    """

    def __init__(
        self,
        redis: Redis,
        tokens: Tokens,
        *,
        max_tokens: int,
        idle_seconds: int,
    ) -> None:
        self._redis = redis
        self._tokens = tokens
        self._max_tokens = max_tokens
        self._idle_seconds = idle_seconds
        self._edit = redis.register_script(EDIT)
        self._decide = redis.register_script(DECIDE)
        self._settle = redis.register_script(SETTLE)
        self._forget = redis.register_script(FORGET)

    async def open(self, editor: Editor, *, store: bool = True) -> tuple[Line, ...]:
        """Return the lines in *editor*'s view by number, those of the workspace first; one round trip.

        Within a session numbers stay: deleted lines are blanks (only the newest are shown) and new lines come at the
        end. Without *store* the call has no effect on the numbering.
        """
        return await ask(self._redis, self.open_call(editor, store=store))

    def open_call(self, editor: Editor, *, store: bool = True) -> RedisCall[tuple[Line, ...]]:
        """Return the call of `open`."""

        def lines(answer: Sequence[Any]) -> tuple[Line, ...]:
            _raise_for(answer, self._max_tokens)
            numbers, names, packed = answer[1::3], answer[2::3], answer[3::3]
            return tuple(
                _line(editor.scope, int(number), *one) for number, *one in zip(numbers, names, packed, strict=True)
            )

        keys = [self._given(editor), *self._lines(editor.scope)]
        seconds = _GIVEN_SECONDS if store else 0
        return RedisCall.script(OPEN, keys, [len(keys) - 1, self._idle_seconds * 1000, seconds], lines)

    async def append(self, editor: Editor, content: str, by: EditOrigin, *, waits: bool = False) -> EditResult:
        """Append a line for the owner `Editor.appends_to`. Raises `UnfitLine` and `GlobalContextFull`."""
        line = self._checked(content)
        return await self._edited(editor, "append", _LETTERS[editor.appends_to], line, by, "", waits=waits)

    async def replace(
        self,
        editor: Editor,
        number: int,
        content: str,
        by: EditOrigin,
        expected: int | None = None,
        *,
        waits: bool = False,
    ) -> EditResult:
        """Change line *number* to *content*.

        Raises `LineChanged` if the line is not as *editor* saw it (for programs: not at version *expected*, if given),
        and `NoSuchLine`, `UnfitLine` and `GlobalContextFull`.
        """
        return await self._edited(
            editor, "replace", str(number), self._checked(content), by, _check(editor, expected), waits=waits
        )

    async def delete(
        self, editor: Editor, number: int, by: EditOrigin, expected: int | None = None, *, waits: bool = False
    ) -> EditResult:
        """Delete line *number*; its number stays blank in this session. Raises the errors of `replace`."""
        return await self._edited(editor, "delete", str(number), "", by, _check(editor, expected), waits=waits)

    async def share(self, editor: Editor, number: int, by: EditOrigin) -> str:
        """Move line *number* of the audience to the whole workspace in one step and return its text.

        Raises the errors of `replace`.
        """
        shared = await self._edited(editor, "share", str(number), "", by, _check(editor, None), waits=False)
        _log.info("context.shared", workspace_id=editor.scope.workspace_id, by=by.author)
        return shared.content

    async def counts(self, scope: Scope) -> dict[str, int]:
        """Return the number of lines by audience, without those that have none. The workspace has the empty name."""
        start = self._key(scope, "lines", "")
        names = sorted([str(name) async for name in self._redis.scan_iter(match=f"{start}*", count=1000)])
        counted = {unquote(name.removeprefix(start)): int(await self._redis.hlen(name)) - 1 for name in names}
        return {audience: count for audience, count in counted.items() if count > 0}  # the field `last` is no line

    async def unsettled(self, scope: Scope) -> list[Line]:
        """Return the lines of people that an earlier version showed to everybody. Their numbers are ids."""
        found: Any = await self._redis.hgetall(self._key(scope, "lines", ""))
        old = [(id_, packed) for id_, packed in found.items() if id_ != "last" and json.loads(packed)["f"] == 1]
        lines = [_line(scope, int(id_), f"w{id_}", packed) for id_, packed in sorted(old, key=lambda one: int(one[0]))]
        return [line for line in lines if ":" in line.author and not line.author.startswith(CALLER_PREFIX)]

    async def settle(self, scope: Scope, line: Line) -> int:
        """Move *line* of `unsettled` to the scope's audience. Returns 0 if it changed meanwhile."""
        every = Scope(scope.workspace_id)
        packed: Any = await self._redis.hget(self._key(every, "lines", ""), str(line.number))
        keys = [self._key(every, "lines", ""), self._lines(scope)[-1], self._key(every, "settled")]
        return int(
            await self._settle(keys=keys, args=[str(line.number), packed or "", encode_id(scope.audience or "")])
        )

    async def settled(self, scope: Scope) -> int:
        """Return how many lines that `settle` moved still exist."""
        found: Any = await self._redis.smembers(self._key(scope, "settled"))
        named = [one.rsplit("/", 1) for one in sorted(found)]
        return sum([bool(await self._redis.hexists(self._key(scope, "lines", of), id_)) for of, id_ in named])

    async def begin_session(self, editor: Editor) -> None:
        """Let the next `open` number the lines anew. Until then the present numbers hold."""
        key = self._given(editor)
        if await self._redis.exists(key):
            await self._redis.hset(key, "at", "0")

    async def history(self, scope: Scope, limit: int = 50) -> list[LineChange]:
        """Return the newest *limit* edits of the scope's audience (else of the workspace), the newest first."""
        name = self._key(scope, "history", encode_id(scope.audience or ""))
        found: Any = await self._redis.xrevrange(name, count=limit)
        for _, one in found:
            if one["v"] != "1":
                raise UnknownFormat(f"an edit was kept with format {one['v']}; this runtime reads 1: upgrade it")
        return [
            LineChange(
                action=one["action"],
                line=one["line"],
                by=one["by"],
                turn_id=one["turn"],
                at=one["at"],
                origin=one["origin"],
                before=one["before"],
                after=one["after"],
            )
            for _, one in found
        ]

    async def waiting(self, scope: Scope) -> list[PendingEdit]:
        """Return the edits that wait for approval, the oldest first, of the same owner as in `history`."""
        found: Any = await self._redis.hgetall(self._key(scope, "waiting", encode_id(scope.audience or "")))
        return [
            _waiting(id_, owner_in(scope), found[id_])
            for id_ in sorted((one for one in found if one != "last"), key=int)
        ]

    async def approve(self, scope: Scope, id_: str, by: str) -> None:
        """Apply a waiting edit, of the same owner as in `history`.

        Raises `NothingWaits`, `NoSuchLine`, `LineChanged` and `GlobalContextFull`; then the edit keeps waiting.
        """
        await self._decided(scope, id_, "approve", by)

    async def deny(self, scope: Scope, id_: str, by: str) -> None:
        """Drop a waiting edit. Raises `NothingWaits`."""
        await self._decided(scope, id_, "deny", by)

    async def forget_person(self, scope: Scope) -> None:
        """Delete the lines of `scope.audience`, their waiting edits and their history."""
        if scope.audience is None:
            raise ValueError("a person is forgotten: name one in the scope")
        of = encode_id(scope.audience)
        await self._forget(keys=[self._key(scope, part, of) for part in ("lines", "history", "waiting")])

    def _checked(self, content: str) -> str:
        if not self._tokens.fits(content, self._max_tokens):
            raise GlobalContextFull(
                f"the line alone takes more than the {self._max_tokens} tokens that there are for all lines: shorten it"
            )
        return folded(content)

    async def _edited(
        self, editor: Editor, action: str, target: str, content: str, by: EditOrigin, check: str, *, waits: bool
    ) -> EditResult:
        scope = editor.scope
        lines = self._lines(scope)
        owners = ["", scope.audience][: len(lines)]
        further = [self._key(scope, part, encode_id(one or "")) for one in owners for part in ("history", "waiting")]
        done = hashlib.sha256((by.key or uuid.uuid4().hex).encode("utf-8", "surrogatepass")).hexdigest()
        answer: Any = await self._edit(
            keys=[self._given(editor), *lines, self._key(scope, "done", done), *further],
            args=[
                len(lines),
                _GIVEN_SECONDS,
                self._max_tokens,
                HISTORY_MAX_EDITS,
                action,
                target,
                content,
                weight(content, by.origin, self._tokens.count) if content else 0,
                by.author,
                by.turn_id,
                self._at(),
                by.origin,
                check,
                int(waits),
                WAITING_MAX_EDITS,
                _DONE_SECONDS,
            ],
        )
        _raise_for(answer, self._max_tokens)
        _log.info(
            "context.changed",
            workspace_id=scope.workspace_id,
            action=action,
            origin=by.origin,
            waits=answer[0] == "waits",
        )
        return (
            EditResult(waits=str(answer[1]))
            if answer[0] == "waits"
            else EditResult(int(answer[1]), "".join(answer[2:]))
        )

    async def _decided(self, scope: Scope, id_: str, what: Literal["approve", "deny"], by: str) -> None:
        lines = self._lines(scope)
        of = encode_id(scope.audience or "")
        keys = [lines[0], lines[-1], self._key(scope, "history", of), self._key(scope, "waiting", of)]
        args: list[str | int] = [id_, what, by, self._at(), self._max_tokens, HISTORY_MAX_EDITS]
        answer: Any = await self._decide(keys=keys, args=args)
        if answer[0] == "gone":
            raise NoSuchLine("the line was deleted since that edit was proposed: deny it")
        if answer[0] == "changed":
            raise LineChanged.proposed(str(answer[2]), str(answer[3]), int(answer[4]))
        _raise_for(answer, self._max_tokens)
        _log.info("context.decided", workspace_id=scope.workspace_id, decision=what)

    def _lines(self, scope: Scope) -> list[str]:
        owners = [""] if scope.audience is None else ["", scope.audience]
        return [self._key(scope, "lines", encode_id(owner)) for owner in owners]

    def _given(self, editor: Editor) -> str:
        return self._key(editor.scope, "given", editor.encoded)

    @staticmethod
    def _at() -> str:
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @staticmethod
    def _key(scope: Scope, *parts: str) -> str:
        return redis_key(_OWNER, scope.tag, *parts)


def _check(editor: Editor, expected: int | None) -> str:
    if expected is not None:
        return str(expected)
    return "" if editor.kind == "api" else "seen"


def _raise_for(answer: Any, max_tokens: int) -> None:
    """Raise the error that a script's *answer* stands for, if any."""
    word, *more = answer
    if word == "full":
        raise GlobalContextFull(
            f"no room: all lines take {more[0]} of {max_tokens} tokens, and this one {more[1]}. "
            "Merge lines that belong together into shorter ones, or delete what no longer matters, and try again"
        )
    if word == "range":
        count = int(more[0])
        numbers = f"the lines are 0 to {count - 1}" if count else "there are no lines"
        raise NoSuchLine(f"there is no line of that number: {numbers}")
    if word == "gone":
        raise NoSuchLine("that line was deleted; to have it back, append it")
    if word == "changed":
        raise LineChanged.seen(int(more[0]), str(more[1]), str(more[2]), int(more[3]))
    if word == "shared":
        raise GlobalContextRefused("the whole workspace can see that line already")
    if word == "waiting_full":
        raise TooManyWaiting(f"{more[0]} edits wait for approval already: have somebody approve or deny them first")
    if word == "unknown":
        raise NothingWaits("no edit of that number waits for approval")
    if word == "format":
        raise UnknownFormat(f"a line of the global context has format {more[0]}; this runtime reads 1: upgrade it")


def _line(scope: Scope, number: int, name: str, packed: str) -> Line:
    owner: Owner = "workspace" if name[0] == "w" else owner_in(scope)
    if not packed:
        return Line(number, "", owner)
    one = json.loads(packed)
    return Line(number, one["c"], owner, one["a"], one["t"], one["at"], int(one["v"]), one["o"])


def _waiting(id_: str, owner: Owner, packed: str) -> PendingEdit:
    one = json.loads(packed)
    if one["f"] != 1:
        raise UnknownFormat(f"an edit that waits has format {one['f']}; this runtime reads 1: upgrade it")
    return PendingEdit(id_, one["action"], owner, one["c"], one["before"], one["a"], one["t"], one["at"], one["o"])
