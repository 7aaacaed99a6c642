"""Choose the good exchanges for a prompt: a few for the whole session, and those relevant to the message. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from connectors.message import may_see
from grounding.documents.sparse import term_set
from grounding.memory.karma.marks import Marked
from grounding.run_context import RecalledTurn, Trace

STANDING_AT_MOST = 4
CHOSEN_AT_MOST = 4
"""More fit into no budget."""
ALIKE = 0.5
"""The share of common terms from which two questions have the same subject, so that one exchange represents both."""
MARKED_BONUS = 0.25
"""Added to the score of an earlier turn that is marked as good, in standard deviations of the scores found. It then
precedes an unmarked turn that fits as well, but none that fits clearly better."""
_PER_MARK = 0.02
"""Added to the likeness of an exchange for each further mark, up to five."""


def good_ones(marked: Iterable[Marked], audience: str | None) -> list[Marked]:
    """Return the exchanges that *audience* may see, the best first.

    They are ordered by the surplus of good over bad marks, then the newest day, then the turn.
    """
    seen = (one for one in marked if one.is_good and one.exchange and may_see(one.exchange.audience, audience))
    by_turn = sorted(seen, key=lambda one: one.turn_id)
    by_day = sorted(by_turn, key=lambda one: one.marked_on, reverse=True)
    return sorted(by_day, key=lambda one: one.bad - one.good)


def may_stand(marked: Marked) -> bool:
    """Say whether an exchange may be an example in the system message.

    It may not if it is made of others' words, or if it is for the whole workspace but only one member vouches for it.
    """
    exchange = marked.exchange
    return exchange is not None and not exchange.foreign and (bool(exchange.audience) or marked.is_vouched_for)


def standing(good: Sequence[Marked]) -> tuple[Marked, ...]:
    """Return the few of *good* (see `good_ones`) that the system message shows for any question, on different subjects.

    See `may_stand`.
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
    """Return those of *good* whose likeness to the message (by turn) reaches *minimum*, the best first.

    Turns in *besides*, which the prompt shows anyway, and repetitions are left out.
    """
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
    """Return *recalled* (the best first) with the turns in *good* moved forward."""
    if not any(one.turn_id in good for one in recalled):
        return list(recalled)
    scored = [
        one.model_copy(update={"score": one.score + MARKED_BONUS}) if one.turn_id in good else one for one in recalled
    ]
    return sorted(scored, key=lambda one: -one.score)


def trace_of(marked: Marked, score: float = 0.0) -> Trace | None:
    """Return *marked* as a prompt shows it; None if it is no good example."""
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
