"""Keep the beginning of a conversation's prompts the same, so that a model need not read it again.

Three things decide how much of a prompt an engine or a provider can reuse:

- the tail (`visible_history`): it keeps its first turn and grows at its end until it exceeds its limits; then it is
  compacted in one step to about a third;
- the session (`Shown`, stored by `Sessions`): what the last prompt of the conversation showed;
- what stays (`PrefixPolicy`): global context and context document are shown as in the last prompt, and changes are
  reported behind them in the block ``now``, or the block is shown anew, whichever makes the engine read fewer tokens.
  Every change is reported, and deleted text is never shown.

`SessionContinuity` is the entry point for a turn. `shared_prefix` measures the shared prefix of two prompts, and
`cache_breakpoints` gives the positions at which a provider may cache it. All but `Sessions` and `SessionContinuity` is
pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from connectors.message import ConversationKey, Fence, Superseded, redis_key
from connectors.redis_calls import RedisCall
from grounding.memory.context_document import ContextDocument, ContextDocuments, corrections, parse
from grounding.memory.global_context import prompt_line as shown_line
from grounding.prompt import layers
from grounding.prompt.layers import LARGEST_ENTRY_SHARE, ShownMessage, TailLimits, shown_message, speaker_names
from grounding.prompt_input import (
    PLACES,
    SEPARATOR,
    BlockFingerprint,
    ContextLine,
    EnvironmentInput,
    Injected,
    Layout,
    Prompt,
    PromptLimits,
    RunContext,
    SessionInput,
    Strict,
    SummaryInput,
    TailEntry,
    Tokens,
    Volatility,
    speaker,
)
from grounding.strategy import ASSISTANT
from grounding.transcript import EntryRole, TranscriptEntry

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAX_ENTRY_CHARACTERS = 2000
"""The stored messages of a session are cut to this length."""
AFTER_COMPACTION = 1 / 3
"""The share of the limits that is used after compaction.

A larger share loses less but compacts more often. Tokens read again per turn in the conversations of
``tests/unit/test_prefix_share.py``, 40 turns long: 839 with a half, 754 with a third, 725 with a quarter.
"""
UNSUMMARISED = 3 / 4
"""The share that turns may use if no context document covers them yet, because they would be shown nowhere else."""
TURNS_TO_COME = 8
"""For how many turns a reported change is expected to be repeated, until the tail is compacted or the session ends.

An estimate: at 40 tokens a message the tail's limit allows about as many.
"""
GET_SHOWN = """
local shown = redis.call('GET', KEYS[1])
if shown ~= ARGV[1] then return shown end
redis.call('DEL', KEYS[1])
return false
"""
KEEP_SHOWN = """
if KEYS[2] and redis.call('HGET', KEYS[2], 'token') ~= ARGV[4] then return -1 end
if redis.call('GET', KEYS[1]) == ARGV[3] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""
_OWNER = "sessions"
_ENDED, _ENDED_SECONDS = "ended", 24 * 3600
"""What marks a session as ended, and how long: longer than any turn takes."""
_NEW_LINE = re.compile(r"\n(?=\S)")
"""An entry of the tail begins at the left; its further lines are indented."""

Turn = tuple[TailEntry, ...]
Documents = tuple[ContextDocument | None, ContextDocument | None]
"""The newest context document of a conversation, and the one that its last prompt showed, if it is still stored."""


# Turns of a conversation


def tail_entry(entry: TranscriptEntry) -> TailEntry:
    """Return *entry* of the transcript as an entry of a tail."""
    by = ASSISTANT if entry.role is EntryRole.OUTBOUND else speaker(entry.author)
    text = entry.text[:MAX_ENTRY_CHARACTERS]
    return TailEntry(speaker=by, text=text, turn_id=entry.turn_id, user=entry.user, foreign=entry.foreign)


def split_turns(entries: Sequence[TailEntry]) -> list[Turn]:
    """Return *entries*, the oldest first, by turns: the messages of one or several people, and the reply to them.

    Messages of one turn have its id. Without ids (a history from a caller) whoever speaks after the assistant begins
    the next turn.
    """
    turns: list[list[TailEntry]] = []
    last: TailEntry | None = None
    for entry in entries:
        if last is None:
            is_same = False
        elif last.turn_id or entry.turn_id:
            is_same = last.turn_id == entry.turn_id
        else:
            is_same = last.speaker != ASSISTANT or entry.speaker == ASSISTANT
        if is_same:
            turns[-1].append(entry)
        else:
            turns.append([entry])
        last = entry
    return [tuple(turn) for turn in turns]


def last_turns(entries: Sequence[TailEntry], most: int) -> Turn:
    """Return the entries of the last *most* turns, each whole.

    A reply whose request is not among *entries* is left out, because nobody could tell what it answers, unless there
    is nothing else.
    """
    turns = split_turns(entries)
    if len(turns) > 1 and turns[0][0].speaker == ASSISTANT:
        del turns[0]
    return tuple([entry for turn in turns[-most:] for entry in turn])


def _turn_order(entries: Sequence[TailEntry]) -> Callable[[str], tuple[int, str]]:
    """Return a sort key for turn ids: their position in *entries*.

    Several machines make ids, and their clocks differ: ids decide only about turns that are not in *entries*.
    """
    positions = {entry.turn_id: position for position, entry in enumerate(entries) if entry.turn_id}
    last = entries[-1].turn_id if entries else ""

    def order(turn_id: str) -> tuple[int, str]:
        if turn_id in positions:
            return positions[turn_id], ""
        return (len(entries) if last and turn_id > last else -1), turn_id

    return order


# The turns that a prompt shows


@dataclass(frozen=True, slots=True)
class History:
    """The turns that a prompt shows.

    ``before`` is the turn just before them, empty if there is none. ``compacted`` says that they do not begin with the
    same turn as in the last prompt. ``partly`` are the turns with a person's message that was cut.
    """

    entries: Turn
    before: str
    compacted: bool
    partly: frozenset[str] = frozenset()

    @property
    def begins(self) -> str:
        """The first turn that is shown."""
        return self.entries[0].turn_id if self.entries else ""


def visible_history(
    entries: Sequence[TailEntry], begins: str, summarised: str, limits: TailLimits, tokens: Tokens
) -> History:
    """Return the turns from *begins* on if they are within the *limits*, else the last turns within a third of them.

    *summarised* is the last turn that the newest context document covers. If a single turn is larger than the limits,
    its end is shown.
    """
    turns = _Turns(entries, limits, tokens)
    start = turns.index(begins) if begins else None
    if start is not None and turns.hold(start, limits):
        return turns.shown_from(start, compacted=False)
    few = turns.start_within(limits.share(AFTER_COMPACTION))
    unsummarised = turns.start_within(limits.share(UNSUMMARISED), after=summarised)
    return turns.shown_from(min(few, unsummarised, max(0, len(turns) - 1)), compacted=True)


def newest(entries: Sequence[TailEntry], limits: TailLimits, tokens: Tokens) -> Turn:
    """Return as many of the last turns of *entries* as fit the *limits*, for a conversation that is not stored here."""
    turns = _Turns(entries, limits, tokens)
    return turns.shown_from(min(turns.start_within(limits), max(0, len(turns) - 1)), compacted=True).entries


class _Turns:
    """The turns of a conversation, their messages shortened for a block with the limits *whole*.

    If there are more messages than the block has lines, the first turn may be incomplete and is skipped.
    """

    def __init__(self, entries: Sequence[TailEntry], whole: TailLimits, tokens: Tokens) -> None:
        self._turns = split_turns(entries)
        self._order = _turn_order(entries)
        self._first = 1 if len(entries) > whole.lines and len(self._turns) > 1 else 0
        self._shown: dict[int, list[ShownMessage]] = {}
        self._names = speaker_names(entries)
        self._largest = whole.share(LARGEST_ENTRY_SHARE)
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._turns)

    def index(self, turn_id: str) -> int | None:
        for at in range(self._first, len(self._turns)):
            if self._turns[at][0].turn_id == turn_id:
                return at
        return None

    def hold(self, start: int, limits: TailLimits) -> bool:
        """Say whether the turns from *start* on are within the *limits*."""
        turns = len(self._turns) - start
        return turns <= limits.turns and limits.hold(_lines(self._from(start)), turns, self._tokens)

    def start_within(self, limits: TailLimits, *, after: str = "") -> int:
        """Return the earliest start from which the turns are within the *limits*, but not before the end of the turn
        *after*."""
        start = len(self._turns)
        end = self._order(after)
        while start > self._first and not (after and self._order(self._turns[start - 1][0].turn_id) <= end):
            if not self.hold(start - 1, limits):
                break
            start -= 1
        return start

    def shown_from(self, start: int, *, compacted: bool) -> History:
        while start < len(self._turns) - 1 and self._turns[start][0].speaker == ASSISTANT:
            start += 1  # an answer without its question would be unclear
        before = self._turns[start - 1][0].turn_id if start else ""
        shown = self._from(start)
        partly = frozenset([one.entry.turn_id for one in shown if not one.is_whole and one.entry.speaker != ASSISTANT])
        return History(tuple([one.entry for one in shown]), before, compacted, partly)

    def _from(self, start: int) -> list[ShownMessage]:
        return [message for at in range(start, len(self._turns)) for message in self._turn(at)]

    def _turn(self, at: int) -> list[ShownMessage]:
        if at not in self._shown:
            shown: list[ShownMessage] = []
            for entry in self._turns[at]:
                short = entry
                if len(entry.text) >= MAX_ENTRY_CHARACTERS:
                    short = entry.model_copy(update={"text": entry.text[:MAX_ENTRY_CHARACTERS]})
                message = shown_message(short, self._names[entry.speaker], self._largest, self._tokens)
                shown.append(message if short is entry else replace(message, is_whole=False))
            self._shown[at] = shown
        return self._shown[at]


def _lines(shown: Sequence[ShownMessage]) -> list[str]:
    return [line for message in shown for line in message.lines]


# The prefix that two prompts share


@dataclass(frozen=True, slots=True)
class Prefix:
    """The shared prefix of a prompt.

    ``broken_by`` is the first block that differs from the prompt before or was not in it, or the first block of the
    system message that disappeared. A block that grows at its end does not break the prefix; then it is the block
    behind. It is empty if no prompt before is known, or if nothing differs. ``tokens_kept`` are the shared tokens, by
    our count.
    """

    broken_by: str = ""
    tokens_kept: int = 0


UNKNOWN = Prefix()


def shared_prefix(before: Sequence[BlockFingerprint], prompt: Prompt) -> Prefix:
    """Return the prefix that *prompt* shares with the blocks *before*."""
    shared = 0
    now = [block for block in prompt.blocks if block.text]
    for at, (was, block, fingerprint) in enumerate(zip(before, now, prompt.fingerprints, strict=False)):
        if was == fingerprint:
            shared += was.tokens
            continue
        if was.system and was.name not in {block.name for block in now}:
            return Prefix(was.name, shared)  # its removal moves everything behind it
        if was.name != block.name or not was.begins(block):
            return Prefix(block.name, shared)
        behind = now[at + 1 :]  # the block has grown, which moves everything behind it
        return Prefix(behind[0].name if behind else "", shared + was.tokens)
    if not before or len(before) == len(now):
        return Prefix("", shared)
    return Prefix((now[len(before)] if len(now) > len(before) else before[len(now)]).name, shared)


def tokens_between(blocks: Sequence[BlockFingerprint], first: str, ends: Collection[str] = ()) -> int:
    """Return the tokens from the place of *first* to the volatile boundary, or to the first block in *ends*.

    An engine must read them again if *first* changes. *first* itself need not be among *blocks*.
    """
    total, counts, rank = 0, False, PLACES[first].prefix_stable
    for block in blocks:
        if not block.stays or block.name in ends:
            break
        counts = counts or (block.name in PLACES and PLACES[block.name].prefix_stable >= rank)
        total += block.tokens if counts else 0
    return total


def cache_breakpoints(prompt: Prompt) -> tuple[int, ...]:
    """Return the positions in the user message, in characters and ascending, up to which the next prompt may be equal.

    There is one after each block in front of the volatile boundary and, within the block that grows at its end, one
    before each entry and before the closing tag: the next prompt has further entries now. Each is at the same place
    as in the prompt before, so that a provider finds what it cached up to now. Empty if a block that changes with
    every turn comes first.
    """
    ends: list[int] = []
    at = 0
    for block in prompt.blocks:
        place = block.place
        if place.message != "user" or not block.text:
            continue
        if place.volatility is Volatility.TURN:
            break
        if place.volatility is Volatility.APPENDED:
            ends += [at + match.end() for match in _NEW_LINE.finditer(block.text)]
        else:
            ends.append(at + len(block.text) + len(SEPARATOR))
        at += len(block.text) + len(SEPARATOR)
    return tuple([end for end in ends if end < len(prompt.user)])


# The session: what the last prompt of a conversation showed


class Shown(Strict):
    """The session up to its last turn, and what that turn's prompt showed.

    If it is lost or out of date, an engine only has to read more tokens again.
    """

    v: Literal[1] = 1
    id: str
    """The id of its first turn."""
    began_on: str
    """A day."""
    turns: int = Field(ge=1)
    """The number of turns, including the last."""
    turn_id: str
    """The last turn."""
    audience: str = ""
    """The audience whose lines were among the global context."""
    begins: str = ""
    """The first turn of the tail."""
    document: str = ""
    """The id of the context document in the summary."""
    global_context: tuple[ContextLine, ...] | None = None
    environment: EnvironmentInput | None = None
    karma_floor: tuple[str, ...] = ()
    """The turns of the good answers that stay for the session."""
    injected: tuple[Injected, ...] = ()
    """The texts that formatters made for the session."""
    blocks: tuple[BlockFingerprint, ...] = ()


def session_input(before: Shown | None, turn_id: str, today: str) -> SessionInput | None:
    """Return the session of a turn. *before* is None for its first turn. None if there is neither."""
    if before is None and not turn_id:
        return None
    if before is None:
        return SessionInput(id=turn_id, began_on=today, turns=0)
    is_repeated = before.turn_id == turn_id  # the turn was interrupted and is answered again
    return SessionInput(id=before.id, began_on=before.began_on, turns=before.turns - (1 if is_repeated else 0))


def next_session_state(
    context: RunContext,
    prompt: Prompt,
    before: Shown | None,
    audience: str | None,
    whole: RunContext | None = None,
) -> Shown | None:
    """Return the state of the session after a turn; None if the turn belongs to no session.

    *whole* is *context* before parts were dropped to save memory; the next turn starts from it.
    """
    if context.session is None or not context.turn_id:
        return None
    blocks = prompt.fingerprints
    whole = whole or context
    begins = whole.tail[0].turn_id if whole.tail else ""
    document = whole.summary.id if whole.summary else ""
    if context.small_talk and before is not None:
        # The user message of small talk is only its text, so the next turn reuses the prompt before it.
        begins, document = before.begins, before.document
        system = _system_blocks(blocks)
        blocks = before.blocks if _system_blocks(before.blocks) == system else system
    return Shown(
        id=context.session.id,
        began_on=context.session.began_on,
        turns=context.session.turns + 1,
        turn_id=context.turn_id,
        audience=audience or "",
        begins=begins,
        document=document,
        global_context=context.global_context,
        environment=context.environment,
        karma_floor=_standing_answers(context, before),
        injected=tuple(one for one in context.injected if one.name not in PLACES and one.volatility == "session"),
        blocks=blocks,
    )


def _system_blocks(blocks: tuple[BlockFingerprint, ...]) -> tuple[BlockFingerprint, ...]:
    return tuple(block for block in blocks if block.system)


def _standing_answers(context: RunContext, before: Shown | None) -> tuple[str, ...]:
    """Return the standing good answers. Deleted ones stay away; if karma was unavailable, the list does not change."""
    if before is not None and any(part.block == "karma" for part in context.degraded):
        return before.karma_floor
    return tuple(trace.turn_id for trace in context.karma_floor)


class Sessions:
    """The sessions of all conversations in Redis. Every method raises `connectors.message.StoreUnavailable`.

    *idle_seconds* is the pause that ends a session. The key (owner ``sessions``, under the conversation's tag),
    ``shown:<conversation>``, expires with the session. If a session ends while a turn is answered, the key is marked as
    ended, and the turn's state is not stored: the next turn begins a session. The turn that reads the mark removes it.
    """

    def __init__(self, redis: Redis, idle_seconds: int) -> None:
        self._redis = redis
        self._idle_seconds = idle_seconds

    def get_call(self, key: ConversationKey) -> RedisCall[Shown | None]:
        """Return the call that reads what the last prompt showed: None after a pause or the end of a session, or if
        another release stored it."""
        return RedisCall.script(GET_SHOWN, [self._key(key)], [_ENDED], _shown)

    def keep_call(self, key: ConversationKey, shown: Shown, fence: Fence | None = None) -> RedisCall[None]:
        """Return the call that stores *shown* in place of the last state, unless the session has ended since `get_call`
        was sent. Its result raises `connectors.message.Superseded` if *fence* no longer holds."""

        def check(result: int) -> None:
            if result == -1:
                raise Superseded("another worker holds the conversation now")

        keys = [self._key(key), *([fence.name] if fence else ())]
        args = [shown.model_dump_json(), self._idle_seconds, _ENDED, fence.token if fence else ""]
        return RedisCall.script(KEEP_SHOWN, keys, args, check)

    async def end(self, key: ConversationKey) -> None:
        """Delete the session, so that the next turn begins a new one."""
        await self._redis.set(self._key(key), _ENDED, ex=_ENDED_SECONDS)

    @staticmethod
    def _key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "shown", key.encoded)


def _shown(raw: str | None) -> Shown | None:
    try:
        return None if raw is None else Shown.model_validate_json(raw)
    except ValidationError:
        return None


# What stays and what is shown anew


@dataclass(frozen=True, slots=True)
class Now:
    """The present data.

    ``shown`` is the document of the last prompt, None if it is deleted. ``lines`` and ``entries`` are None if they are
    unavailable.
    """

    lines: tuple[ContextLine, ...] | None
    latest: ContextDocument | None
    shown: ContextDocument | None
    entries: Turn | None


@dataclass(frozen=True, slots=True)
class ShownState:
    """What the prompt shows. ``deltas`` report changes of it; ``partly`` is that of `History`."""

    global_context: tuple[ContextLine, ...] | None
    document: ContextDocument | None = None
    tail: Turn = ()
    deltas: tuple[str, ...] = ()
    partly: frozenset[str] = frozenset()

    @property
    def summary(self) -> SummaryInput | None:
        """The document as the input of a prompt."""
        document = self.document
        if document is None:
            return None
        return SummaryInput(
            text=document.text,
            turns=document.turns,
            version=document.version,
            newest_turn_id=document.newest_turn_id,
            id=document.id,
            problem=document.lasting_problem.notice if document.lasting_problem else "",
        )

    def without_deltas(self, now: Now) -> ShownState:
        """Return the same with the present data instead of deltas."""
        return ShownState(now.lines, now.latest, self.tail, partly=self.partly)


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to show everything, and the tokens that an engine must read again for it."""

    cost: int
    state: ShownState


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """Decides what stays the same. With the *layout* ``user_first`` nothing behind the message can be reused."""

    tokens: Tokens
    layout: Layout

    def settle(
        self, before: Shown | None, now: Now, audience: str | None, budgets: PromptLimits, today: str
    ) -> ShownState:
        """Return what a turn shows, given the last prompt (*before*, None for the first turn) and the present data
        *now*.

        *audience* is the audience whose lines are among the global context.
        """
        begins, summarised = before.begins if before else "", now.latest.newest_turn_id if now.latest else ""
        limits = self._limits(before, budgets)
        history = visible_history(now.entries or (), begins, summarised, limits, self.tokens)
        lines = self._line_deltas(before, now.lines, audience)
        document = self._document_deltas(before, now, history)
        blocks = before.blocks if before else ()
        broken = ("summary", "tail") if document is None or (history.compacted and history.entries) else ()
        anew = ShownState(now.lines, now.latest, history.entries, partly=history.partly)
        options = [_Option(tokens_between(blocks, "global_context", broken), anew)]
        if lines is not None and before is not None:
            state = ShownState(before.global_context, now.latest, history.entries, lines, history.partly)
            reread = 0 if broken else tokens_between(blocks, "summary")
            options.append(_Option(self._cost_of(lines) + reread, state))
            if document is not None:
                both = (*lines, *document)
                state = ShownState(before.global_context, now.shown, history.entries, both, history.partly)
                options.append(_Option(self._cost_of(both), state))
        fitting = [option for option in options if self._fits(option.state.deltas, budgets, today)]
        return min(fitting, key=lambda option: (option.cost, len(option.state.deltas))).state

    def settle_small_talk(self, before: Shown | None, now: Now, audience: str | None) -> ShownState:
        """Do the same for small talk, whose prompt has only the global context and no block for changes."""
        unchanged = self._line_deltas(before, now.lines, audience) == ()
        return ShownState(before.global_context if unchanged and before else now.lines)

    def _limits(self, before: Shown | None, budgets: PromptLimits) -> TailLimits:
        """Return the limits of the tail. The size of the system message is taken from the turn *before*: a tail cut to
        fit would move with every turn."""
        if before is None or self.layout == "user_first":
            return TailLimits.of(budgets)
        return TailLimits.in_front(budgets, sum([block.load for block in before.blocks]))

    def _line_deltas(
        self, before: Shown | None, lines: Sequence[ContextLine] | None, audience: str | None
    ) -> tuple[str, ...] | None:
        """Return the changes of the global context, or None if it must be shown anew.

        It must be if a line was deleted or changed, because the old text must not stand beside the new one.
        """
        if before is None or before.global_context is None or lines is None or before.audience != (audience or ""):
            return None
        was = {line.number: line for line in before.global_context}
        is_now = {line.number: line for line in lines if line.content}
        for number, line in was.items():
            if line.content and (number not in is_now or is_now[number].content != line.content):
                return None
        return tuple(
            f"In the global context: {shown_line(number, line.content, is_marked=line.marked)}"
            for number, line in is_now.items()
            if was.get(number) != line
        )

    def _document_deltas(self, before: Shown | None, now: Now, history: History) -> tuple[str, ...] | None:
        """Return the changes of a newer context document that the shown turns of *history* do not cover.

        Returns None if the newest document must be shown.
        """
        shown, latest = now.shown, now.latest
        if before is None or latest is None or (shown.id if shown else "") != before.document:
            return None
        if shown is not None and shown.id == latest.id:
            return ()
        if history.compacted or self.layout == "user_first":
            return None
        order = _turn_order(now.entries or ())
        covered, last = order(shown.newest_turn_id if shown else ""), order(latest.newest_turn_id)
        not_whole = (order(history.before), *(order(turn) for turn in history.partly if order(turn) <= last))
        has_gap = covered < last and covered < max(not_whole)
        edited = latest.made_by == "person" or _by_people(latest) != _by_people(shown)
        text = shown.text if shown else ""
        return _added(text, latest.text) if has_gap or edited else _corrected(text, latest.text)

    def _cost_of(self, deltas: Sequence[str]) -> int:
        return TURNS_TO_COME * sum(self.tokens.count(delta) for delta in deltas)

    def _fits(self, deltas: Sequence[str], budgets: PromptLimits, today: str) -> bool:
        return not deltas or self.tokens.fits(layers.now_section(today, deltas).whole, budgets.now_tokens)


def _by_people(document: ContextDocument | None) -> tuple[object, ...]:
    return (document.kept, document.put) if document else ((), None)


def _added(was: str, is_now: str) -> tuple[str, ...] | None:
    """Return the lines that the newer document adds; None if it lost lines, which must not be shown any more."""
    before, after = _document_lines(was), _document_lines(is_now)
    if not set(before) <= set(after):
        return None
    return tuple(
        f"In the summary{', ' + title if title else ''}: {line.removeprefix('- ')}"
        for title, line in dict.fromkeys(after)
        if (title, line) not in before
    )


def _corrected(was: str, is_now: str) -> tuple[str, ...]:
    """Return the facts with a new value. The tail shows their origin, but the old summary contradicts it."""
    return tuple(f"Corrected in the summary, {line.section}: {line.text}" for line in corrections(is_now, was))


def _document_lines(text: str) -> list[tuple[str, str]]:
    return [(part.title, line.strip()) for part in parse(text) for line in part.body.splitlines() if line.strip()]


# The entry point for a turn


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a conversation: what its last prompt showed, the present data, and what the turn shows of them."""

    before: Shown | None
    there: Now
    settled: ShownState


@dataclass(frozen=True, slots=True)
class SessionContinuity:
    """Reads and stores sessions, and decides what a turn shows. Without *sessions* every turn begins a session."""

    contexts: ContextDocuments
    freezing: PrefixPolicy
    sessions: Sessions | None = None

    async def documents(self, key: ConversationKey, latest: ContextDocument | None, shown: Shown | None) -> Documents:
        """Return the *latest* document of *key*, and the one that the last prompt showed. Raises
        `connectors.message.StoreUnavailable` and `grounding.transcript.entry.UnknownFormat`."""
        if latest is None or shown is None or not shown.document:
            return latest, None
        if latest.id == shown.document or self.freezing.layout == "user_first":
            return latest, latest
        document = await self.contexts.version(key, shown.document)
        return latest, replace(document, problem=latest.problem) if document else None

    def go_on(
        self,
        before: Shown | None,
        lines: Sequence[ContextLine] | None,
        documents: Documents | None,
        entries: Turn | None,
        audience: str | None,
        budgets: PromptLimits,
        today: str,
    ) -> SessionState:
        """Return what a turn shows that comes after the one *before*."""
        latest, shown = documents or (None, None)
        now = Now(None if lines is None else tuple(lines), latest, shown, entries)
        return SessionState(before, now, self.freezing.settle(before, now, audience, budgets, today))

    def small_talk(
        self, before: Shown | None, lines: Sequence[ContextLine] | None, audience: str | None
    ) -> SessionState:
        """Return what small talk shows."""
        now = Now(None if lines is None else tuple(lines), None, None, None)
        return SessionState(before, now, self.freezing.settle_small_talk(before, now, audience))

    def instead(
        self, lines: Sequence[ContextLine] | None, history: Sequence[TailEntry], budgets: PromptLimits
    ) -> SessionState:
        """Return what a turn shows if a caller's *history* replaces the conversation."""
        now = Now(None if lines is None else tuple(lines), None, None, tuple(history))
        shown = newest(history, TailLimits.of(budgets), self.freezing.tokens)
        return SessionState(None, now, ShownState(now.lines, None, shown))
