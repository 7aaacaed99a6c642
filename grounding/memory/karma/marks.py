"""What people said of a reply, and the short trace of it that later prompts may show. Pure.

Everybody has one mark for each turn, which they can change and take back. Who says two things at once (two emoji on one
message) is taken at the newest; when that goes, the other holds again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from connectors.message import ConversationKey, place_audience

SCOPE = "karma:write"
"""The permission scope that whoever marks must hold."""
CLAIMED = "claimed"
"""In `Marked.voices` all who are only said to be somebody; no id of a person, which has a colon."""
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


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Opinion(_Strict):
    """What one person said of a turn: ``signs``, the newest last; none where all was taken back.

    ``moment`` is the platform's time of what came last (seconds since the epoch; 0: it says none), ``command`` the last
    command that said it, and ``changes`` counts how often the mark became another.
    """

    user: str
    signs: tuple[Sign, ...] = ()
    moment: float = 0.0
    command: str = ""
    changes: int = 0
    by_admin: bool = False
    is_claimed: bool = False
    """Whether only a program says who it is, by a token that may not speak for others: it may name anybody."""

    @property
    def mark(self) -> Sign | None:
        """What holds."""
        return self.signs[-1] if self.signs else None


class Exchange(_Strict):
    """What a turn's trace says, and who may see it.

    ``audience`` as in `connectors.message.Scope`, empty for the workspace. ``foreign`` as in
    `grounding.transcript.entry.Entry`. ``asked_in`` are the messages that were answered.
    """

    asked: str
    answered: str
    audience: str
    foreign: Literal["", "retrieved", "others"] = ""
    asked_in: tuple[str, ...] = ()


class Marked(_Strict):
    """A turn that somebody marked. ``exchange`` is None where it is no example, whatever people say of it (an apology),
    and while nobody's mark holds; ``marked_on`` is the day on which somebody last marked it or took a mark back."""

    v: Literal[1] = 1
    turn_id: str
    conversation: str
    """`connectors.message.ConversationKey.encoded`."""
    opinions: tuple[Opinion, ...] = ()
    exchange: Exchange | None = None
    marked_on: str = ""
    messages: tuple[str, ...] = ()
    """The platform's ids of the messages of the reply by which people marked it."""

    @property
    def key(self) -> ConversationKey:
        return ConversationKey.decode(self.conversation)

    @property
    def voices(self) -> Mapping[str, Sign]:
        """What is said of it, by who says so: people by their ids, and as `CLAIMED` all together of whom programs only
        say that they are somebody (one token may have made them all up): what most of them say, nothing in a draw."""
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
        """What more say of it than say the other."""
        return None if self.good == self.bad else "good" if self.good > self.bad else "bad"

    @property
    def changes(self) -> int:
        """How often anybody's mark became another."""
        return sum(one.changes for one in self.opinions)

    @property
    def is_good(self) -> bool:
        """Whether it is an example: a turn of which as many say the one as the other is none."""
        return self.exchange is not None and self.verdict == "good"

    @property
    def is_marked(self) -> bool:
        """Whether anybody's mark holds."""
        return any(one.signs for one in self.opinions)

    @property
    def is_vouched_for(self) -> bool:
        """Whether more than one member's word stands for it: an admin's, or that of two people."""
        return self.good > 1 or any(one.by_admin for one in self.opinions if one.mark == "good")

    def opinion_of(self, user: str) -> Opinion:
        return next((one for one in self.opinions if one.user == user), Opinion(user=user))

    def with_exchange(self, exchange: Exchange | None, message_id: str, day: str) -> Marked:
        """The same after a mark of *day* on the message *message_id* (empty: on none), with the words of *exchange*
        where it has none."""
        messages = self.messages if message_id in ("", *self.messages) else (*self.messages, message_id)
        return self.model_copy(update={"exchange": self.exchange or exchange, "messages": messages, "marked_on": day})

    def with_opinion(self, opinion: Opinion) -> Marked:
        others = tuple(one for one in self.opinions if one.user != opinion.user)
        changed = self.model_copy(update={"opinions": (*others, opinion)})
        # Nobody says anything of it any more: its words go, who said what when stays, for what comes again.
        return changed if changed.is_marked else changed.model_copy(update={"exchange": None})


def read(packed: str) -> Marked:
    """A marked turn as it is kept. Earlier versions kept a ``reach``: what was a person's is theirs; of all else
    nothing says that its place was public. Raises `pydantic.ValidationError`."""
    fields = json.loads(packed)
    exchange = fields.get("exchange")
    if not exchange or "reach" not in exchange:
        return Marked.model_validate_json(packed)
    reach, person = exchange.pop("reach"), exchange.pop("person", "")
    place = place_audience(ConversationKey.decode(fields["conversation"]).context_id)
    exchange["audience"] = person if reach == "person" else place
    return Marked.model_validate_json(json.dumps(fields))


def sign_of(emoji: str) -> Sign | None:
    """What *emoji* (or its name between colons) says of a reply, whatever its skin tone; None for all others."""
    return _SIGNS.get(emoji.translate(_SKIN_TONES).partition("::")[0])


def said(opinion: Opinion, sign: Sign, *, moment: float = 0.0, by_admin: bool = False) -> Opinion:
    """*opinion* after its owner said *sign*; as it was where that comes after something newer."""
    if _is_late(opinion, moment):
        return opinion
    signs = (*(one for one in opinion.signs if one != sign), sign)
    return _become(opinion, signs, moment, by_admin)


def took_back(opinion: Opinion, sign: Sign | None = None, *, moment: float = 0.0) -> Opinion:
    """*opinion* after its owner took *sign* back, or all that they said."""
    if _is_late(opinion, moment):
        return opinion
    signs = () if sign is None else tuple(one for one in opinion.signs if one != sign)
    return _become(opinion, signs, moment, opinion.by_admin)


def commanded(opinion: Opinion, sign: Sign | None, command: str, *, by_admin: bool = False) -> Opinion:
    """*opinion* after *command*, which says *sign* and nothing else; None takes back. A command that is delivered again
    says nothing new."""
    if command and opinion.command == command:
        return opinion
    signs = () if sign is None else (sign,)
    return _become(opinion, signs, opinion.moment, by_admin).model_copy(update={"command": command})


def put(opinion: Opinion, sign: Sign | None, *, by_admin: bool = False) -> Opinion:
    """*opinion* when it is *sign* and nothing else, however often that is said."""
    return _become(opinion, () if sign is None else (sign,), opinion.moment, by_admin)


def _is_late(opinion: Opinion, moment: float) -> bool:
    return 0.0 < moment < opinion.moment


def _become(opinion: Opinion, signs: tuple[Sign, ...], moment: float, by_admin: bool) -> Opinion:
    changed = (signs[-1] if signs else None) != opinion.mark
    return opinion.model_copy(
        update={
            "signs": signs,
            "moment": max(moment, opinion.moment),
            "changes": opinion.changes + changed,
            "by_admin": by_admin,
        }
    )
