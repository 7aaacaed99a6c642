"""People's marks on a reply, and the short exchange that later prompts may show. Pure.

Everybody has one mark per turn and can change it or take it back. Of two marks at once (two emoji on one message) the
newest counts; if it is removed, the other counts again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from connectors.message import ConversationKey, place_audience
from grounding.prompt_input import Strict

SCOPE = "karma:write"
"""The permission scope that is needed to mark."""
CLAIMED = "claimed"
"""The key in `Marked.voices` for all people whom only programs name. It has no colon, so it is no person's id."""
Sign = Literal["good", "bad"]
_SKIN_TONES = dict.fromkeys((*range(0x1F3FB, 0x1F400), 0xFE0F))
_SIGNS: Mapping[str, Sign] = {
    "👍": "good",
    ":+1:": "good",
    ":thumbsup:": "good",
    "👎": "bad",
    ":-1:": "bad",
    ":thumbsdown:": "bad",
}


class Opinion(Strict):
    """One person's marks on a turn: ``signs``, the newest last; empty if all were taken back.

    ``moment`` is the platform's time of the last event (seconds since the epoch; 0 if unknown), ``command`` the last
    command that marked, and ``changes`` the number of times that the mark changed.
    """

    user: str
    signs: tuple[Sign, ...] = ()
    moment: float = 0.0
    command: str = ""
    changes: int = 0
    by_admin: bool = False
    is_claimed: bool = False
    """Whether only a program names the person, by a token that may not speak for others: it could name anybody."""

    @property
    def mark(self) -> Sign | None:
        """The mark that counts."""
        return self.signs[-1] if self.signs else None


class Exchange(Strict):
    """The question and answer of a turn, and who may see them.

    ``audience`` is as in `connectors.message.Scope`, empty for the workspace; ``foreign`` as in
    `grounding.transcript.entry.TranscriptEntry`. ``asked_in`` are the ids of the messages that were answered.
    """

    asked: str
    answered: str
    audience: str
    foreign: Literal["", "retrieved", "others"] = ""
    asked_in: tuple[str, ...] = ()


class Marked(Strict):
    """A turn that somebody marked.

    ``exchange`` is None if the turn can be no example (an apology), and while no mark counts. ``marked_on`` is the day
    of the last change of a mark.
    """

    v: Literal[1] = 1
    turn_id: str
    conversation: str
    """`connectors.message.ConversationKey.encoded`."""
    opinions: tuple[Opinion, ...] = ()
    exchange: Exchange | None = None
    marked_on: str = ""
    messages: tuple[str, ...] = ()
    """The platform's ids of the reply's messages that people marked."""

    @property
    def key(self) -> ConversationKey:
        return ConversationKey.decode(self.conversation)

    @property
    def voices(self) -> Mapping[str, Sign]:
        """The marks by person.

        All people whom only programs name count as one voice, `CLAIMED`, because one token may have invented them all:
        the majority's mark, none in a draw.
        """
        said = {one.user: one.mark for one in self.opinions if one.mark is not None and not one.is_claimed}
        claimed = [one.mark for one in self.opinions if one.is_claimed]
        good, bad = claimed.count("good"), claimed.count("bad")
        return said if good == bad else {**said, CLAIMED: "good" if good > bad else "bad"}

    @property
    def good(self) -> int:
        return sum(sign == "good" for sign in self.voices.values())

    @property
    def bad(self) -> int:
        return sum(sign == "bad" for sign in self.voices.values())

    @property
    def verdict(self) -> Sign | None:
        """The majority's mark; None in a draw."""
        return None if self.good == self.bad else "good" if self.good > self.bad else "bad"

    @property
    def changes(self) -> int:
        """The number of times that anybody's mark changed."""
        return sum(one.changes for one in self.opinions)

    @property
    def is_good(self) -> bool:
        """Whether it is a good example. A draw is none."""
        return self.exchange is not None and self.verdict == "good"

    @property
    def is_marked(self) -> bool:
        """Whether anybody's mark counts."""
        return any(one.signs for one in self.opinions)

    @property
    def is_vouched_for(self) -> bool:
        """Whether an admin or at least two people marked it as good."""
        return self.good > 1 or any(one.by_admin for one in self.opinions if one.mark == "good")

    def opinion_of(self, user: str) -> Opinion:
        return next((one for one in self.opinions if one.user == user), Opinion(user=user))

    def with_exchange(self, exchange: Exchange | None, message_id: str, day: str) -> Marked:
        """Return the turn after a mark on *day*, on the message *message_id* (empty: on none).

        *exchange* is stored if the turn has none.
        """
        messages = self.messages if message_id in ("", *self.messages) else (*self.messages, message_id)
        return self.model_copy(update={"exchange": self.exchange or exchange, "messages": messages, "marked_on": day})

    def with_opinion(self, opinion: Opinion) -> Marked:
        others = tuple(one for one in self.opinions if one.user != opinion.user)
        changed = self.model_copy(update={"opinions": (*others, opinion)})
        # If no mark is left, the exchange is deleted. The opinions stay, to compare with later events.
        return changed if changed.is_marked else changed.model_copy(update={"exchange": None})


def read(packed: str) -> Marked:
    """Parse a stored turn. Raises `pydantic.ValidationError`.

    Earlier versions stored a ``reach``. A person's turn stays theirs; any other gets its place as audience, because
    nothing says that the place was public.
    """
    fields = json.loads(packed)
    exchange = fields.get("exchange")
    if not exchange or "reach" not in exchange:
        return Marked.model_validate_json(packed)
    reach, person = exchange.pop("reach"), exchange.pop("person", "")
    place = place_audience(ConversationKey.decode(fields["conversation"]).context_id)
    exchange["audience"] = person if reach == "person" else place
    return Marked.model_validate_json(json.dumps(fields))


def sign_of(emoji: str) -> Sign | None:
    """Return the mark that *emoji* (or its name between colons) stands for, ignoring skin tone; None for others."""
    return _SIGNS.get(emoji.translate(_SKIN_TONES).partition("::")[0])


def add_sign(opinion: Opinion, sign: Sign, *, moment: float = 0.0, by_admin: bool = False) -> Opinion:
    """Return *opinion* after its owner added *sign*; unchanged if a newer event is known."""
    if _is_late(opinion, moment):
        return opinion
    signs = (*(one for one in opinion.signs if one != sign), sign)
    return _with_signs(opinion, signs, moment, by_admin)


def remove_sign(opinion: Opinion, sign: Sign | None = None, *, moment: float = 0.0) -> Opinion:
    """Return *opinion* after its owner removed *sign*, or all signs; unchanged if a newer event is known."""
    if _is_late(opinion, moment):
        return opinion
    signs = () if sign is None else tuple(one for one in opinion.signs if one != sign)
    return _with_signs(opinion, signs, moment, opinion.by_admin)


def set_by_command(opinion: Opinion, sign: Sign | None, command: str, *, by_admin: bool = False) -> Opinion:
    """Return *opinion* after *command* set it to *sign* only; None removes all. A repeated command changes nothing."""
    if command and opinion.command == command:
        return opinion
    return set_sign(opinion, sign, by_admin=by_admin).model_copy(update={"command": command})


def set_sign(opinion: Opinion, sign: Sign | None, *, by_admin: bool = False) -> Opinion:
    """Return *opinion* set to *sign* only. Repeating it changes nothing."""
    return _with_signs(opinion, () if sign is None else (sign,), opinion.moment, by_admin)


def _is_late(opinion: Opinion, moment: float) -> bool:
    return 0.0 < moment < opinion.moment


def _with_signs(opinion: Opinion, signs: tuple[Sign, ...], moment: float, by_admin: bool) -> Opinion:
    changed = (signs[-1] if signs else None) != opinion.mark
    return opinion.model_copy(
        update={
            "signs": signs,
            "moment": max(moment, opinion.moment),
            "changes": opinion.changes + changed,
            "by_admin": by_admin,
        }
    )
