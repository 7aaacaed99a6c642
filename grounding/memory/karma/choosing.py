"""Which good exchanges a prompt shows: a few that stand for a session, and those that bear on the message. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from connectors.message import may_see
from grounding.documents.sparse import term_set
from grounding.memory.karma.marks import Marked
from grounding.run_context import RecalledTurn, Trace

STANDING_AT_MOST = 4
CHOSEN_AT_MOST = 4
"""More fit no budget."""
ALIKE = 0.5
"""Share of the terms of two questions from which they are about the same: one of them stands for both."""
MARKED_BONUS = 0.25
"""What a good mark adds to an earlier turn's score, in standard deviations of those that were found: it comes before an
unmarked one that fits as well, and before none that fits clearly better."""
_PER_MARK = 0.02
"""What each further mark adds to the likeness of an exchange, up to five of them."""


def good_ones(marked: Iterable[Marked], audience: str | None) -> list[Marked]:
    """Those that may be shown to *audience*, the best first: by how many people more say good than bad, then by day,
    the newest first, then by turn."""
    seen = (one for one in marked if one.is_good and one.exchange and may_see(one.exchange.audience, audience))
    by_turn = sorted(seen, key=lambda one: one.turn_id)
    by_day = sorted(by_turn, key=lambda one: one.marked_on, reverse=True)
    return sorted(by_day, key=lambda one: one.bad - one.good)


def may_stand(marked: Marked) -> bool:
    """Whether an example may be in the system message: not if it is made of others' words, nor for a whole workspace
    if one member alone vouches for it."""
    exchange = marked.exchange
    return exchange is not None and not exchange.foreign and (bool(exchange.audience) or marked.is_vouched_for)


def standing(good: Sequence[Marked]) -> tuple[Marked, ...]:
    """The few of *good* (see `good_ones`) that stand whatever is asked, each about something else.

    They stand in the system message: see `may_stand`.
    """
    chosen: list[Marked] = []
    for one in good:
        if len(chosen) == STANDING_AT_MOST:
            break
        if may_stand(one) and not any(_are_alike(one, other) for other in chosen):
            chosen.append(one)
    return tuple(chosen)


def bearing(
    good: Sequence[Marked], likeness: Mapping[str, float], minimum: float, besides: Collection[str]
) -> tuple[Trace, ...]:
    """Those of *good* whose likeness to the message (by turn) reaches *minimum*, the best first, without the turns of
    *besides*, which the prompt shows anyway; of those that say the same the best."""
    found = [
        (one, likeness[one.turn_id])
        for one in good
        if one.turn_id not in besides and likeness.get(one.turn_id, minimum - 1) >= minimum
    ]
    found.sort(key=lambda pair: -(pair[1] + _PER_MARK * min(pair[0].good - pair[0].bad, 5)))
    chosen: list[tuple[Marked, float]] = []
    for one, score in found:
        if len(chosen) < CHOSEN_AT_MOST and not any(_say_the_same(one, other) for other, _ in chosen):
            chosen.append((one, score))
    return tuple(trace for one, score in chosen if (trace := trace_of(one, score)))


def preferred(recalled: Sequence[RecalledTurn], good: Collection[str]) -> list[RecalledTurn]:
    """*recalled*, the best first, in which those of the turns *good* have come forward."""
    if not any(one.turn_id in good for one in recalled):
        return list(recalled)
    scored = [
        one.model_copy(update={"score": one.score + MARKED_BONUS}) if one.turn_id in good else one for one in recalled
    ]
    return sorted(scored, key=lambda one: -one.score)


def trace_of(marked: Marked, score: float = 0.0) -> Trace | None:
    """*marked* as a prompt shows it."""
    exchange = marked.exchange
    if exchange is None or not marked.is_good:
        return None
    return Trace(
        turn_id=marked.turn_id,
        asked=exchange.asked,
        answered=exchange.answered,
        marked_on=marked.marked_on,
        good=marked.good,
        score=round(score, 6),
        foreign=exchange.foreign,
        shared=not exchange.audience,
    )


def _are_alike(one: Marked, other: Marked) -> bool:
    left, right = _terms(one), _terms(other)
    return bool(left) and len(left & right) >= ALIKE * len(left | right)


def _say_the_same(one: Marked, other: Marked) -> bool:
    return _words(one) == _words(other)


def _terms(marked: Marked) -> frozenset[str]:
    return term_set(marked.exchange.asked) if marked.exchange else frozenset()


def _words(marked: Marked) -> tuple[str, str]:
    exchange = marked.exchange
    return (exchange.asked.casefold(), exchange.answered.casefold()) if exchange else ("", "")
