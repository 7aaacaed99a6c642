"""The transcript in Redis: one append-only stream per conversation.

Keys (owner ``transcript``, in the conversation's partition): ``log`` the entries, ``meta`` their counts,
``turn`` which turns were recorded, ``export`` what still has to be copied to Markdown, ``amended`` what people
made of messages afterwards: by message its new text, empty where it was deleted. The log itself stays as it was.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, Fence, Scope, Superseded, partition_tag, redis_key
from grounding.transcript.entry import Entry, EntryRole, Forget, Reach, ToCopy
from grounding.transcript.restore import EntryId, Merged, merge
from grounding.transcript.scripts import APPEND, BEGIN_SESSION, FORGET_ALL, FORGET_TURN, RESTORE, TAIL_PAGE

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "transcript"
_RECORDED_SECONDS = 7 * 24 * 3600
"""How long a turn is remembered as recorded; no turn is taken up again after that."""
_PAGE = 64
_FIRST_PAGE = 4
"""Mostly the turn is the newest: its messages and the answer."""
_LONG_PAGE = 1000
_RESTORE_ATTEMPTS = 5
_SEARCHED_PAGES = 80
"""Work that follows turns may lag behind them by this many pages of the log: a flood, an outage."""

_ENTRIES_KNOWN = 512
"""Entries that tails showed lately, as many as `grounding.tail_entry` knows: of the next tail most are the same."""

Turn = tuple[ConversationKey, str]
"""A conversation and the id of one of its turns."""


@lru_cache(maxsize=_ENTRIES_KNOWN)
def _entry(flat: tuple[str, ...]) -> Entry:
    """The entry of the fields and values in *flat*. Raises `grounding.transcript.entry.UnknownFormat`."""
    return Entry.from_fields(dict(zip(flat[::2], flat[1::2], strict=True)))


class Transcript:
    """The logs of all conversations. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._append = redis.register_script(APPEND)
        self._tail_page = redis.register_script(TAIL_PAGE)
        self._begin_session = redis.register_script(BEGIN_SESSION)
        self._forget_turn = redis.register_script(FORGET_TURN)
        self._forget_all = redis.register_script(FORGET_ALL)
        self._restore = redis.register_script(RESTORE)

    async def append(
        self, key: ConversationKey, turn_id: str, entries: Sequence[Entry], fence: Fence | None = None
    ) -> bool:
        """Record a turn's entries at the end of the log, in order and as one step.

        A turn is recorded once: False if it was recorded before. Entries without text are left out. Raises
        `connectors.message.Superseded` where *fence* does not hold any more.
        """
        kept = [entry for entry in entries if entry.text.strip()]
        if not kept:
            return False
        flat = [part for entry in kept for pair in entry.fields().items() for part in pair]
        answered = 1 if any(entry.role is EntryRole.INBOUND for entry in kept) else 0
        added = await self._append(
            keys=[
                self._key(key, "log"),
                self._key(key, "meta"),
                redis_key(_OWNER, key.tag, "export"),
                self._key(key, "turn", turn_id),
                *([fence.name] if fence else ()),
            ],
            args=[
                _RECORDED_SECONDS,
                answered,
                key.encoded,
                len(kept[0].fields()) * 2,
                fence.token if fence else "",
                *flat,
            ],
        )
        if added == -1:
            raise Superseded("another worker holds the conversation now")
        return bool(added)

    async def amend(self, key: ConversationKey, message_id: str, text: str) -> None:
        """Let a message read *text* from now on, wherever it is read; without text it is left out."""
        await self._redis.hset(self._key(key, "amended"), message_id, text)

    async def _as_amended(self, key: ConversationKey, entries: list[Entry]) -> list[Entry]:
        ids = [entry.message_id for entry in entries if entry.message_id]
        if not ids:
            return entries
        texts: Any = await self._redis.hmget(self._key(key, "amended"), ids)
        return _amended(entries, dict(zip(ids, texts, strict=True)))

    async def tail(self, key: ConversationKey, max_entries: int, except_turn: str = "") -> list[Entry]:
        """The last *max_entries* spoken entries of this session, oldest first, without tool lines, what was deleted,
        and *except_turn*."""
        found: list[Entry] = []
        newest, count = "+", max_entries + 8
        for _ in range(8):  # a run of such lines longer than this many pages ends the tail
            page: Any = await self._tail_page(keys=self._tail_keys(key), args=[newest, count])
            for _, flat in page:
                entry = _entry(tuple(flat))
                if entry.role is not EntryRole.TOOL and entry.turn_id != except_turn and entry.text.strip():
                    found.append(entry)
            if len(found) >= max_entries or len(page) < count:
                break
            newest = f"({page[-1][0]}"
        return found[:max_entries][::-1]

    async def newest(self, key: ConversationKey, count: int) -> list[Entry]:
        """The last *count* entries of any role, oldest first."""
        page: Any = await self._redis.xrevrange(self._key(key, "log"), count=count)
        return await self._as_amended(key, [Entry.from_fields(fields) for _, fields in reversed(page)])

    async def of_turns(self, turns: Sequence[Turn]) -> dict[Turn, list[Entry]]:
        """`of_turn` of many at once, of those that have entries."""
        found = await self._newest_of(turns)
        async with self._redis.pipeline(transaction=False) as pipe:
            asked = {turn: [one.message_id for one in entries if one.message_id] for turn, entries in found.items()}
            asked = {turn: ids for turn, ids in asked.items() if ids}
            for (key, _), ids in asked.items():
                pipe.hmget(self._key(key, "amended"), ids)
            texts: Any = await pipe.execute() if asked else []
        for turn, (ids, amended) in zip(asked, zip(asked.values(), texts, strict=True), strict=True):
            found[turn] = _amended(found[turn], dict(zip(ids, amended, strict=True)))
        return {turn: entries for turn, entries in found.items() if entries}

    async def preceding(self, turns: Sequence[Turn]) -> dict[Turn, str]:
        """The turn before each of *turns*, all of them among the last of their conversations; none for a first one."""
        counts = Counter(key for key, _ in turns)
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, count in counts.items():
                pipe.xrevrange(self._key(key, "log"), count=_FIRST_PAGE * (count + 1))
            pages: Any = await pipe.execute() if counts else []
        before: dict[Turn, str] = {}
        for key, page in zip(counts, pages, strict=True):
            found = list(dict.fromkeys(fields.get("turn", "") for _, fields in page))
            older = dict(itertools.pairwise(found))
            for turn_id in (turn_id for other, turn_id in turns if other == key):
                if turn_id not in older and len(page) == _FIRST_PAGE * (counts[key] + 1):  # it lies further back
                    older[turn_id] = await self._turn_before(key, turn_id)
                before[key, turn_id] = older.get(turn_id, "")
        return {turn: previous for turn, previous in before.items() if previous}

    async def _turn_before(self, key: ConversationKey, turn_id: str) -> str:
        newest, is_past = "+", False
        for _ in range(_SEARCHED_PAGES):
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=_PAGE)
            for entry_id, fields in page:
                newest = f"({entry_id}"
                if is_past and fields.get("turn") != turn_id:
                    return str(fields.get("turn", ""))
                is_past = is_past or fields.get("turn") == turn_id
            if len(page) < _PAGE:
                break
        return ""

    async def recorded(self, turns: Sequence[Turn]) -> set[Turn]:
        """Those of *turns*, all of them among the last of their conversations, that the log holds."""
        return set(await self._newest_of(turns))

    async def _newest_of(self, turns: Sequence[Turn]) -> dict[Turn, list[Entry]]:
        """The entries of *turns* as they were recorded: one look at the end of each conversation mostly is enough."""
        counts = Counter(key for key, _ in turns)
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, count in counts.items():
                pipe.xrevrange(self._key(key, "log"), count=_FIRST_PAGE * count)
            pages: Any = await pipe.execute() if counts else []
        found: dict[Turn, list[Entry]] = {}
        for (key, count), page in zip(counts.items(), pages, strict=True):
            spoken = [Entry.from_fields(fields) for _, fields in reversed(page)]
            is_whole = len(page) < _FIRST_PAGE * count
            for turn_id in (turn_id for other, turn_id in turns if other == key):
                entries = [entry for entry in spoken if entry.turn_id == turn_id]
                if not is_whole and (not entries or spoken[0].turn_id == turn_id):  # it begins further back
                    entries = await self._of_turn(key, turn_id)
                if entries:
                    found[key, turn_id] = entries
        return found

    async def of_turn(self, key: ConversationKey, turn_id: str) -> list[Entry]:
        """The entries of one of the conversation's last turns, oldest first; none of a turn far back."""
        return await self._as_amended(key, await self._of_turn(key, turn_id))

    async def _of_turn(self, key: ConversationKey, turn_id: str) -> list[Entry]:
        found: list[Entry] = []
        newest, count = "+", _FIRST_PAGE
        for _ in range(_SEARCHED_PAGES):
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=count)
            for entry_id, fields in page:
                newest = f"({entry_id}"
                if fields.get("turn") == turn_id:
                    found.append(Entry.from_fields(fields))
                elif found:
                    return found[::-1]
            if len(page) < count:
                break
            count = _PAGE
        return found[::-1]

    async def reach(self, key: ConversationKey) -> Reach:
        """How many turns and entries the conversation has."""
        meta: Any = await self._redis.hgetall(self._key(key, "meta"))
        return Reach(turns=int(meta.get("turns", 0)), entries=int(meta.get("entries", 0)))

    async def reaches(self, keys: Sequence[ConversationKey]) -> list[Reach]:
        """`reach` of each of *keys*."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(self._key(key, "meta"), ["turns", "entries"])
            found: Any = await pipe.execute() if keys else []
        return [Reach(turns=int(turns or 0), entries=int(entries or 0)) for turns, entries in found]

    async def begin_session(self, key: ConversationKey, by: str = "") -> bool:
        """Let the tail show nothing of what was said until now. *by*, where given, is what asked for it (a message's
        id): False, and nothing changed, where the same began the session before."""
        began = await self._begin_session(keys=[self._key(key, "log"), self._key(key, "meta")], args=[by])
        return bool(began)

    async def turn_ids(self, key: ConversationKey) -> list[str]:
        """The turns of a conversation, each once, newest first."""
        found: dict[str, None] = {}
        newest = "+"
        while True:
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=_LONG_PAGE)
            found |= dict.fromkeys(fields.get("turn", "") for _, fields in page)
            if len(page) < _LONG_PAGE:
                return [turn_id for turn_id in found if turn_id]
            newest = f"({page[-1][0]}"

    async def conversations(self, scope: Scope) -> list[ConversationKey]:
        """All conversations of the scope's workspace that have a log. Looks at all keys: for work in the background."""
        found = set()
        async for name in self._redis.scan_iter(match=f"ar:{_OWNER}:*:log:{scope.workspace_id}/*", count=_LONG_PAGE):
            found.add(str(name).rpartition(":")[2])
        return [ConversationKey.decode(encoded) for encoded in sorted(found)]

    async def whole(self, key: ConversationKey) -> AsyncIterator[list[tuple[EntryId, Entry]]]:
        """The whole log, oldest first, in pages, as it was said; entries have their ids."""
        oldest = "-"
        while True:
            page: Any = await self._redis.xrange(self._key(key, "log"), min=oldest, count=_LONG_PAGE)
            if page:
                yield [(_moment(entry_id), Entry.from_fields(fields)) for entry_id, fields in page]
            if len(page) < _LONG_PAGE:
                return
            oldest = f"({page[-1][0]}"

    async def restore(self, key: ConversationKey, logged: Sequence[Entry], now_ms: int, *, dry_run: bool) -> Merged:
        """Put the turns of *logged* that are missing back into the log; which, with *dry_run*, would be. Idempotent.

        Raises `connectors.message.Superseded` where the conversation goes on at this very moment.
        """
        for _ in range(_RESTORE_ATTEMPTS):
            stored = [one async for page in self.whole(key) for one in page]
            merged = await asyncio.to_thread(merge, stored, logged, now_ms)
            if dry_run or not merged.restored or await self._exchange(key, stored, merged):
                return merged
        raise Superseded(f"{key.context_id} goes on while it is restored: try again")

    async def _exchange(self, key: ConversationKey, stored: Sequence[tuple[EntryId, Entry]], merged: Merged) -> bool:
        beside = self._key(key, "restoring")
        await self._redis.delete(beside)
        for start in range(0, len(merged.entries), _LONG_PAGE):
            async with self._redis.pipeline(transaction=False) as pipe:
                for (milliseconds, number), entry in merged.entries[start : start + _LONG_PAGE]:
                    fields: Any = entry.fields()
                    pipe.xadd(beside, fields, id=f"{milliseconds}-{number}")
                await pipe.execute()
        answered = {entry.turn_id for _, entry in merged.entries if entry.role is EntryRole.INBOUND}
        newest = "{}-{}".format(*stored[-1][0]) if stored else ""
        return bool(
            await self._restore(
                keys=[self._key(key, "log"), beside, self._key(key, "meta")],
                args=[len(stored), newest, len(merged.entries), len(answered)],
            )
        )

    async def as_amended(self, key: ConversationKey, entries: list[Entry]) -> list[Entry]:
        """*entries* of *key* as people made them read since they were said."""
        return await self._as_amended(key, entries)

    async def last_turn(self, key: ConversationKey) -> str:
        """The newest turn of a conversation; empty where it has none."""
        page: Any = await self._redis.xrevrange(self._key(key, "log"), count=1)
        return str(page[0][1].get("turn", "")) if page else ""

    async def forget_turn(self, key: ConversationKey, turn_id: str) -> int:
        """Take a turn out of the log and, soon after, of its Markdown copy; how many entries that were."""
        entry_ids: list[str] = []
        newest = "+"
        for _ in range(_SEARCHED_PAGES):
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=_PAGE)
            entry_ids += [entry_id for entry_id, fields in page if fields.get("turn") == turn_id]
            if len(page) < _PAGE or (entry_ids and page[-1][1].get("turn") != turn_id):
                break
            newest = f"({page[-1][0]}"
        gone = await self._forget_turn(
            keys=self._forgotten_keys(key),
            args=[turn_id, key.encoded, *entry_ids],
        )
        return int(gone)

    async def forget(self, key: ConversationKey) -> None:
        """Drop the whole log of a conversation and, soon after, its Markdown copy."""
        await self._forget_all(
            keys=self._forgotten_keys(key),
            args=[key.encoded],
        )

    def _forgotten_keys(self, key: ConversationKey) -> list[str]:
        export = redis_key(_OWNER, key.tag, "export")
        return [self._key(key, "log"), self._key(key, "meta"), export, self._key(key, "amended")]

    def _tail_keys(self, key: ConversationKey) -> list[str]:
        return [self._key(key, "log"), self._key(key, "meta"), self._key(key, "amended")]

    async def to_copy(self, partitions: Sequence[int], count: int) -> dict[int, list[ToCopy]]:
        """The oldest things, *count* of each of *partitions*, that still have to be done to the Markdown copies, in
        their order; by partition, where there is any."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in partitions:
                pipe.xrange(_export(partition), count=count)
            found: Any = await pipe.execute() if partitions else []
        waiting = {
            partition: [(export_id, ConversationKey.decode(fields["key"]), fields) for export_id, fields in some]
            for partition, some in zip(partitions, found, strict=True)
            if some
        }
        wanted: dict[ConversationKey, list[str]] = {}
        for _, key, fields in itertools.chain.from_iterable(waiting.values()):
            if "id" in fields:
                wanted.setdefault(key, []).append(fields["id"])
        entries = await self._between(wanted)
        return {
            partition: [ToCopy(export_id, key, _what(fields, entries.get(key, {}))) for export_id, key, fields in some]
            for partition, some in waiting.items()
        }

    async def _between(self, wanted: Mapping[ConversationKey, Sequence[str]]) -> dict[ConversationKey, dict[str, Any]]:
        """The fields of entries by their ids, in one look at each log: they stand together there."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, ids in wanted.items():
                # Not the first and the last: a clock that was set back may have put one in front of the other.
                pipe.xrange(self._key(key, "log"), min(ids, key=_moment), max(ids, key=_moment))
            found: Any = await pipe.execute() if wanted else []
        return {key: dict(entries) for key, entries in zip(wanted, found, strict=True)}

    async def copied(self, export_ids: Mapping[int, Sequence[str]]) -> None:
        """Let go of what was done to the Markdown copies, by partition."""
        done = {partition: ids for partition, ids in export_ids.items() if ids}
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition, ids in done.items():
                pipe.xdel(_export(partition), *ids)
            if done:
                await pipe.execute()

    @staticmethod
    def _key(key: ConversationKey, *parts: str) -> str:
        return redis_key(_OWNER, key.tag, *parts[:1], key.encoded, *parts[1:])


def _amended(entries: list[Entry], texts: Mapping[str, str | None]) -> list[Entry]:
    """*entries* with the *texts* that people made of messages; without those that they emptied."""
    if not any(text is not None for text in texts.values()):
        return entries
    now: list[Entry] = []
    for entry in entries:
        text = texts.get(entry.message_id)
        now.append(entry if text is None else replace(entry, text=text))
    return [entry for entry in now if entry.text.strip()]


def _what(fields: Mapping[str, str], entries: Mapping[str, Mapping[str, str]]) -> Entry | Forget | None:
    if "forget" in fields:
        return Forget(fields["forget"])
    found = entries.get(fields["id"])
    return Entry.from_fields(found) if found else None


def _export(partition: int) -> str:
    return redis_key(_OWNER, partition_tag(partition), "export")


def _moment(entry_id: str) -> tuple[int, int]:
    milliseconds, number = entry_id.split("-")
    return int(milliseconds), int(number)
