"""Which of the calls that wait for one platform may be made now. Pure: every method is told the time.

Rates are kept by the generic cell rate algorithm (ITU-T I.371): each call moves a bucket's theoretical arrival time on
by 1 / rate, and a burst of calls may run ahead of it. A call has to be free in two buckets, its chat's and the
platform's. Only final parts may run ahead: signs and previews leave them that room, so that none of them ever has a
final part wait. Where a platform also counts how much is said in a place within a minute, a third bucket holds the
times of those calls, so that no minute ever has more (`Minute`). Chats of the same urgency are served by start-time
fair queueing (Goyal, Vin and Cheng, 1996): whoever has many calls waiting lines up behind those who have few.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

CHAT_BURST = 3
"""Final parts that may go to one chat at once before its rate holds; all platforms name a sustained rate."""
OPENING_BURST = 5
"""Replies that may begin to grow by the platform's own means at once; the others are said whole, or grow later."""
OVERALL_BURST = 10
"""Final parts that may go to all chats together at once."""
ON_THE_WAY_SECONDS = 1.0
"""How much longer one call may take to its platform than a later one: the platform counts when they arrive."""
MINUTE_SECONDS = 60.0 + ON_THE_WAY_SECONDS
MINUTE_PREVIEW_BURST = 4
"""Previews and first words that may follow each other as fast as the other rates allow; after that they are spread
over the minute."""
_REMEMBERED = 4096


class Urgency(IntEnum):
    """What goes first, where not everything can go."""

    FINAL = 0
    """What people wait for: parts of replies in their last form, notices."""
    BEGINNING = 1
    """The first words of a reply: a message like any other."""
    OPENING = 2
    """The first words of a reply that grows by the platform's own means."""
    PREVIEW = 3
    """How a reply grows by edits; the next one says the same and more."""
    ADDITION = 4
    """How a reply grows by the platform's own means, which only add to it."""
    SIGN = 5
    """That an answer is on its way."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Calls a second: to one chat by what they are, to the platform, and to all of it edits alone, openings alone and
    additions alone; 0 for no limit."""

    sends: float = 0.0
    edits: float = 0.0
    overall: float = 0.0
    edits_overall: float = 0.0
    openings_overall: float = 0.0
    additions_overall: float = 0.0

    def of(self, urgency: Urgency) -> float:
        """The rate in one chat."""
        return self.edits if urgency in (Urgency.PREVIEW, Urgency.ADDITION) else self.sends


@dataclass(slots=True, eq=False)
class Ticket:
    """A call that waits. ``tag`` is its place among those of the same urgency, ``number`` decides between equals."""

    chat: str
    urgency: Urgency
    tag: int
    number: int


class Minute:
    """The last calls in a place that takes *most* of them in any minute. Signs are none: they are no messages.

    Final parts may take all of it, previews and first words three fifths. Previews are spread: after a few at once, the
    k-th last call has to be the longer ago the larger k is, so that a long reply grows until its end, slower, and what
    is left of a minute is there for last forms.
    """

    def __init__(self, most: int) -> None:
        self._shown = most * 3 // 5
        self._made: deque[float] = deque(maxlen=most)

    def free_at(self, urgency: Urgency) -> float:
        """When a call may be made."""
        made = self._made
        if urgency is Urgency.SIGN:
            return -math.inf
        if urgency is Urgency.FINAL:
            return made[0] + MINUTE_SECONDS if len(made) == made.maxlen else -math.inf
        if urgency in (Urgency.BEGINNING, Urgency.OPENING):
            return made[-self._shown] + MINUTE_SECONDS if len(made) >= self._shown else -math.inf
        spread = range(min(MINUTE_PREVIEW_BURST, self._shown), len(made) + 1)
        steps = max(1, self._shown - MINUTE_PREVIEW_BURST + 1)
        return max(
            (made[-k] + MINUTE_SECONDS * min(1.0, (k - MINUTE_PREVIEW_BURST + 1) / steps) for k in spread),
            default=-math.inf,
        )

    def count(self, urgency: Urgency, now: float) -> None:
        """A call is made."""
        if urgency is not Urgency.SIGN:
            self._made.append(now)

    def is_over(self, now: float) -> bool:
        """Whether it is as if nothing had ever been said there."""
        return not self._made or self._made[-1] + MINUTE_SECONDS <= now


@dataclass(slots=True)
class _Chat:
    minute: Minute | None = None
    arrival: float = -math.inf
    held_until: float = -math.inf
    waiting: dict[Urgency, deque[Ticket]] = field(default_factory=dict)
    tags: dict[Urgency, int] = field(default_factory=dict)

    def first(self) -> Ticket | None:
        """The most urgent call that waits, and of those the first."""
        return self.waiting[min(self.waiting)][0] if self.waiting else None


class Schedule:
    """The calls to one platform. Times are seconds on any clock that does not go back. *most_in_a_minute* says of a
    chat how many messages and edits it takes in a minute; 0 for no limit of that kind."""

    def __init__(self, rates: Rates, most_in_a_minute: Callable[[str], int] = lambda _: 0) -> None:
        self._rates = rates
        self._most = most_in_a_minute
        self._arrival = -math.inf
        self._edits_arrival = -math.inf
        self._openings_arrival = -math.inf
        self._additions_arrival = -math.inf
        self._held_until = -math.inf
        self._chats: dict[str, _Chat] = {}
        self._busy: dict[str, _Chat] = {}
        """Those in which something waits."""
        self._served = dict.fromkeys(Urgency, 0)
        """By urgency: the tag of the call that was last allowed."""
        self._numbers = 0
        self._forgets_beyond = _REMEMBERED

    def add(self, chat: str, urgency: Urgency, now: float) -> Ticket:
        """Line a call up."""
        if len(self._chats) > self._forgets_beyond:
            self._forget(now)
        place = self._place(chat)
        tag = max(self._served[urgency], place.tags.get(urgency, -1) + 1)
        place.tags[urgency] = tag
        self._numbers += 1
        ticket = Ticket(chat, urgency, tag, self._numbers)
        place.waiting.setdefault(urgency, deque()).append(ticket)
        self._busy[chat] = place
        return ticket

    def take(self, chat: str, urgency: Urgency, now: float) -> bool:
        """Whether a call may be made at once, without lining up: nothing waits anywhere. It counts as made then."""
        if self._busy:
            return False
        ticket = self.add(chat, urgency, now)
        if self._free_at(ticket) <= now:
            self._count(ticket, now)
            return True
        self.remove(ticket)
        return False

    def follows(self, chat: str, now: float) -> bool:
        """Count a call that belongs to one that was allowed already: for the platform and the chat's minute, and not
        for the chat's rate again. False, and nothing is counted, where that minute is full."""
        minute = self._place(chat).minute
        if minute is not None:
            if minute.free_at(Urgency.FINAL) > now:
                return False
            minute.count(Urgency.FINAL, now)
        self._arrival = _moved(self._arrival, self._rates.overall, now)
        return True

    def edited(self, now: float) -> None:
        """Count a last form that is given by an edit. It waits for no preview, but previews everywhere for it."""
        self._edits_arrival = _moved(self._edits_arrival, self._rates.edits_overall, now)

    def remove(self, ticket: Ticket) -> None:
        """Take a call out that nobody wants any more; one that was allowed already is none."""
        place = self._busy.get(ticket.chat)
        line = place.waiting.get(ticket.urgency) if place else None
        if place is None or line is None or ticket not in line:
            return
        line.remove(ticket)
        if not line:
            del place.waiting[ticket.urgency]
        if not place.waiting:
            del self._busy[ticket.chat]

    def hold(self, chat: str | None, until: float) -> None:
        """Let nothing go to *chat*, or with None to anybody, before *until*."""
        if chat is None:
            self._held_until = max(self._held_until, until)
        else:
            place = self._place(chat)
            place.held_until = max(place.held_until, until)

    def due(self, now: float) -> list[Ticket]:
        """The calls that may be made now, in their order; they count as made."""
        allowed: list[Ticket] = []
        firsts = [ticket for place in self._busy.values() if (ticket := place.first()) and self._free_at(ticket) <= now]
        while firsts:
            ticket = min(firsts, key=lambda one: (one.urgency, one.tag, one.number))
            firsts.remove(ticket)
            if self._free_at(ticket) > now:
                continue
            self._count(ticket, now)
            allowed.append(ticket)
            place = self._busy.get(ticket.chat)
            following = place.first() if place else None
            if following is not None and self._free_at(following) <= now:
                firsts.append(following)
        return allowed

    def next_at(self) -> float | None:
        """When the next call may be made; None where none waits."""
        return min((self._free_at(ticket) for place in self._busy.values() if (ticket := place.first())), default=None)

    def _free_at(self, ticket: Ticket) -> float:
        place, last = self._chats[ticket.chat], ticket.urgency is Urgency.FINAL
        return max(
            self._held_until,
            place.held_until,
            place.arrival - _ahead(self._rates.sends, CHAT_BURST if last else 1),
            self._arrival - _ahead(self._rates.overall, OVERALL_BURST if last else 1),
            place.minute.free_at(ticket.urgency) if place.minute else -math.inf,
            self._own_kind_free_at(ticket.urgency),
        )

    def _own_kind_free_at(self, urgency: Urgency) -> float:
        """When the platform takes the next call of that kind, wherever."""
        match urgency:
            case Urgency.PREVIEW:
                return self._edits_arrival
            case Urgency.OPENING:
                return self._openings_arrival - _ahead(self._rates.openings_overall, OPENING_BURST)
            case Urgency.ADDITION:
                return self._additions_arrival
        return -math.inf

    def _count(self, ticket: Ticket, now: float) -> None:
        self.remove(ticket)
        self._served[ticket.urgency] = max(self._served[ticket.urgency], ticket.tag)
        place = self._chats[ticket.chat]
        place.arrival = _moved(place.arrival, self._rates.of(ticket.urgency), now)
        if place.minute is not None:
            place.minute.count(ticket.urgency, now)
        if ticket.urgency is Urgency.PREVIEW:
            self.edited(now)
        if ticket.urgency is Urgency.OPENING:
            self._openings_arrival = _moved(self._openings_arrival, self._rates.openings_overall, now)
        if ticket.urgency is Urgency.ADDITION:
            self._additions_arrival = _moved(self._additions_arrival, self._rates.additions_overall, now)
        self._arrival = _moved(self._arrival, self._rates.overall, now)

    def _forget(self, now: float) -> None:
        """Drop what is known of chats that are as free as if nothing had ever been said there."""
        self._chats = {
            name: place
            for name, place in self._chats.items()
            if place.waiting
            or max(place.arrival, place.held_until) > now
            or (place.minute is not None and not place.minute.is_over(now))
        }
        self._forgets_beyond = max(_REMEMBERED, 2 * len(self._chats))  # not with each call, where many are not quiet

    def _place(self, chat: str) -> _Chat:
        place = self._chats.get(chat)
        if place is None:
            most = self._most(chat)
            place = self._chats[chat] = _Chat(Minute(most) if most else None)
        return place


def _ahead(rate: float, burst: int) -> float:
    return (burst - 1) / rate if rate > 0 else 0.0


def _moved(arrival: float, rate: float, now: float) -> float:
    return max(now, arrival) + 1.0 / rate if rate > 0 else arrival
