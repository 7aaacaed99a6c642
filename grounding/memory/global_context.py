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
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import structlog

from connectors.message import CALLER_PREFIX, Scope, encode_id, redis_key
from grounding.memory import global_context_scripts as scripts
from grounding.memory.global_context_lines import (
    By,
    Change,
    Edited,
    Editor,
    GlobalContextFull,
    GlobalContextRefused,
    Line,
    LineChanged,
    NoSuchLine,
    NothingWaits,
    Owner,
    TooManyWaiting,
    Waiting,
    folded,
    owner_in,
    weight,
)
from grounding.tokens import Tokens
from grounding.transcript.entry import UnknownFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._redis = redis
        self._tokens = tokens
        self._max_tokens = max_tokens
        self._idle_seconds = idle_seconds
        self._now = now
        self._open = redis.register_script(scripts.OPEN)
        self._edit = redis.register_script(scripts.EDIT)
        self._decide = redis.register_script(scripts.DECIDE)
        self._settle = redis.register_script(scripts.SETTLE)
        self._forget = redis.register_script(scripts.FORGET)

    async def open(self, editor: Editor, *, store: bool = True) -> tuple[Line, ...]:
        """Return the lines in *editor*'s view by number, those of the workspace first; one round trip.

        Within a session numbers stay: deleted lines are blanks (only the newest are shown) and new lines come at the
        end. Without *store* the call has no effect on the numbering.
        """
        keys = [self._given(editor), *self._lines(editor.scope)]
        seconds = _GIVEN_SECONDS if store else 0
        answer: Any = await self._open(keys=keys, args=[len(keys) - 1, self._idle_seconds * 1000, seconds])
        _raise_for(answer)
        numbers, names, packed = answer[1::3], answer[2::3], answer[3::3]
        return tuple(
            _line(editor.scope, int(number), *one) for number, *one in zip(numbers, names, packed, strict=True)
        )

    async def append(self, editor: Editor, content: str, by: By, *, waits: bool = False) -> Edited:
        """Append a line for the owner `Editor.appends_to`. Raises `UnfitLine` and `GlobalContextFull`."""
        line = self._checked(content)
        return await self._edited(editor, "append", _LETTERS[editor.appends_to], line, by, "", waits=waits)

    async def replace(
        self, editor: Editor, number: int, content: str, by: By, expected: int | None = None, *, waits: bool = False
    ) -> Edited:
        """Change line *number* to *content*.

        Raises `LineChanged` if the line is not as *editor* saw it (for programs: not at version *expected*, if given),
        and `NoSuchLine`, `UnfitLine` and `GlobalContextFull`.
        """
        return await self._edited(
            editor, "replace", str(number), self._checked(content), by, _check(editor, expected), waits=waits
        )

    async def delete(
        self, editor: Editor, number: int, by: By, expected: int | None = None, *, waits: bool = False
    ) -> Edited:
        """Delete line *number*; its number stays blank in this session. Raises the errors of `replace`."""
        return await self._edited(editor, "delete", str(number), "", by, _check(editor, expected), waits=waits)

    async def share(self, editor: Editor, number: int, by: By) -> str:
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

    async def history(self, scope: Scope, limit: int = 50) -> list[Change]:
        """Return the newest *limit* edits of the scope's audience (else of the workspace), the newest first."""
        name = self._key(scope, "history", encode_id(scope.audience or ""))
        found: Any = await self._redis.xrevrange(name, count=limit)
        for _, one in found:
            if one["v"] != "1":
                raise UnknownFormat(f"an edit was kept with format {one['v']}; this runtime reads 1: upgrade it")
        return [
            Change(
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

    async def waiting(self, scope: Scope) -> list[Waiting]:
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
        self, editor: Editor, action: str, target: str, content: str, by: By, check: str, *, waits: bool
    ) -> Edited:
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
        self._raise_for(answer)
        _log.info(
            "context.changed",
            workspace_id=scope.workspace_id,
            action=action,
            origin=by.origin,
            waits=answer[0] == "waits",
        )
        return Edited(waits=str(answer[1])) if answer[0] == "waits" else Edited(int(answer[1]), "".join(answer[2:]))

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
        self._raise_for(answer)
        _log.info("context.decided", workspace_id=scope.workspace_id, decision=what)

    def _raise_for(self, answer: Any) -> None:
        if answer[0] == "full":
            raise GlobalContextFull(
                f"no room: all lines take {answer[1]} of {self._max_tokens} tokens, and this one {answer[2]}. "
                "Merge lines that belong together into shorter ones, or delete what no longer matters, and try again"
            )
        _raise_for(answer)

    def _lines(self, scope: Scope) -> list[str]:
        owners = [""] if scope.audience is None else ["", scope.audience]
        return [self._key(scope, "lines", encode_id(owner)) for owner in owners]

    def _given(self, editor: Editor) -> str:
        return self._key(editor.scope, "given", editor.encoded)

    def _at(self) -> str:
        return self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @staticmethod
    def _key(scope: Scope, *parts: str) -> str:
        return redis_key(_OWNER, scope.tag, *parts)


def _check(editor: Editor, expected: int | None) -> str:
    if expected is not None:
        return str(expected)
    return "" if editor.kind == "api" else "seen"


def _raise_for(answer: Any) -> None:
    """Raise the error that a script's *answer* stands for, if any."""
    word, *more = answer
    if word == "range":
        count = int(more[0])
        there = f"the lines are 0 to {count - 1}" if count else "there are no lines"
        raise NoSuchLine(f"there is no line of that number: {there}")
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


def _waiting(id_: str, owner: Owner, packed: str) -> Waiting:
    one = json.loads(packed)
    if one["f"] != 1:
        raise UnknownFormat(f"an edit that waits has format {one['f']}; this runtime reads 1: upgrade it")
    return Waiting(id_, one["action"], owner, one["c"], one["before"], one["a"], one["t"], one["at"], one["o"])
