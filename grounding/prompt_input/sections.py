"""A block's text while it is being cut: pieces between a head and a foot, given up one by one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from grounding.prompt_input.tokens import ELLIPSIS, Tokens, clip, utf8_length

_MIN_CUT_TOKENS = 12
"""A piece is not cut to less than this: a few words of a passage help nobody."""

_INVISIBLE = (0xAD, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF, *range(0x2060, 0x2065), *range(0xE0000, 0xE0080))
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS: dict[int, str | None] = {
    **dict.fromkeys((*range(32), *range(127, 160), *_INVISIBLE, *_REORDERING)),
    **dict.fromkeys((0x0A, 0x85, 0x2028, 0x2029), "\n"),
    0x09: "\t",
}
_CHANGED = re.compile(
    "[" + "".join(re.escape(chr(code)) for code in _CONTROLS if 0x0A < code <= 0xFFFF or code < 9) + "]"
)
"""A character of the basic plane that is not left as it is. Looking for one is much cheaper than translating a text
that has none; with characters of other planes in the same set it would not be."""
_TAGS = re.compile("[\U000e0000-\U000e007f]")
_DELIMITERS = (
    "conversation_summary",
    "recent_conversation",
    "earlier_turns",
    "workspace_passages",
    "memory_records",
    "approach",
    "censors",
    "codex",
    "environment",
    "good_answers",
    "now",
    "tool_result",
    "global-context",
    "system",
    "instructions",
)
_OUR_SPEAKERS = ("assistant", "system", "developer", "agentruntime")
# Possessive: who writes a bracket and a thousand blanks would else have each of them tried with each other.
_OUR_TAG = re.compile(r"<(?=\s*+/?+\s*+(?:" + "|".join(map(re.escape, _DELIMITERS)) + r")\b)", re.IGNORECASE)
_TEMPLATE_TOKEN = re.compile(
    r"<(?=[|｜])|(?<=[|｜])>|<(?=<\s*/?SYS)|<(?=/?(?:s|bos|eos|pad|unk|(?:start|end)_of_turn)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\])"
)
_HARMLESS = {"<": "‹", ">": "›", "[": "("}
_BRACKETED = re.compile(r"^([ \t]*)\[([^\]\n]*)\](?!\()", re.MULTILINE)
_LIKE_A_LABEL = re.compile(r"›|\.(?:md|txt)\b|\d{4}-\d\d-\d\d", re.IGNORECASE)


def neutral(text: str) -> str:
    """*text* without control and invisible characters, and without what a chat template could take for its own.

    Tokens such as ``<|im_start|>`` get another bracket, so that no text can open a message of its own. The
    bracket is never just taken out: what is left and right of it could then become a token.
    """
    if _CHANGED.search(text) or (not text.isascii() and _TAGS.search(text)):
        text = text.translate(_CONTROLS)
    if "<" in text or ">" in text or "[" in text:
        text = _TEMPLATE_TOKEN.sub(lambda match: _HARMLESS[match[0]], text)
    return text


def as_data(text: str) -> str:
    """*text* as evidence inside a delimited block: `neutral`, and unable to close or open a delimiter."""
    text = neutral(text)
    return _OUR_TAG.sub("&lt;", text) if "<" in text else text


def as_excerpt(text: str) -> str:
    """`as_data` in which no line begins like the label of another excerpt; its brackets become round."""
    text = as_data(text)
    return _BRACKETED.sub(_unlabelled, text) if "[" in text else text


def _unlabelled(match: re.Match[str]) -> str:
    return f"{match[1]}({match[2]})" if _LIKE_A_LABEL.search(match[2]) else match[0]


def one_line(text: str) -> str:
    """A name from outside as data on one line."""
    return " ".join(as_data(text).split())


def speaker(name: str, otherwise: str = "user") -> str:
    """How a person called *name* is shown before their words; *otherwise* where they have no name.

    People choose their names: none ends before the colon that we put there, and none is the assistant's.
    """
    shown = one_line(name).replace(":", " ").strip()
    letters = "".join(filter(str.isalpha, unicodedata.normalize("NFKC", shown).casefold()))
    return f"{shown} (user)" if letters.startswith(_OUR_SPEAKERS) else shown or otherwise


def spoken(by: str, text: str) -> str:
    """What *by* (see `speaker`) said. Further lines are indented, so that none poses as another speaker's."""
    return f"{by}: " + "\n  ".join(text.splitlines())


@dataclass(frozen=True, slots=True)
class Section:
    """A block in the making.

    ``pieces`` stand in the order in which they are shown; ``keep`` lists their indices, the one to be
    kept longest first (default: the order shown). ``cut`` says whether the first piece that does not fit
    whole may be cut: always, only where it is the only one, or never. Without a piece left the section
    is empty: head and foot go too. Where there are *labels*, one for each piece, a piece stands below its own, which
    is shown once for pieces that follow each other.
    """

    head: str = ""
    pieces: tuple[str, ...] = ()
    foot: str = ""
    joint: str = "\n"
    keep: tuple[int, ...] | None = None
    cut: Literal["always", "only", "never"] = "always"
    labels: tuple[str, ...] = ()

    def fit(self, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        """The text of as many pieces as stay within both limits; empty where none does."""

        def fits(text: str) -> bool:
            return tokens.fits(text, max_tokens) and utf8_length(text) <= max_bytes

        order = self.keep if self.keep is not None else tuple(range(len(self.pieces)))
        is_all = len(order) == len(self.pieces)
        whole = self.whole if is_all else self._text({index: self.pieces[index] for index in order})
        if fits(whole):
            return whole
        kept = self._greedily(order, tokens, max_tokens)
        while kept and not fits(self._text({index: self.pieces[index] for index in kept})):
            kept.pop()
        texts = {index: self.pieces[index] for index in kept}
        left = [index for index in order if index not in texts]
        if left and (self.cut == "always" or (self.cut == "only" and not kept)):
            part = self._cut_piece(texts, left[0], tokens, max_tokens, max_bytes)
            if part:
                texts[left[0]] = part
        return self._text(texts)

    @property
    def whole(self) -> str:
        """The text of all pieces, uncut; empty where there is none."""
        if not self.pieces:
            return ""
        if self.labels:
            return self._text(dict(enumerate(self.pieces)))
        return self._around(self.joint.join(self.pieces))

    @property
    def body(self) -> str:
        """The text of all pieces without head and foot."""
        return self.joint.join(self._labelled(dict(enumerate(self.pieces))))

    def _greedily(self, order: tuple[int, ...], tokens: Tokens, max_tokens: int) -> list[int]:
        """The first pieces of *order* whose own tokens sum up to the limit: near enough to start from."""
        used = tokens.count(self.head) + tokens.count(self.foot)
        joint = tokens.count(self.joint)
        kept: list[int] = []
        for index in order:
            if not tokens.fits(self.pieces[index], max_tokens):
                break
            used += tokens.count(self.pieces[index]) + joint
            if used > max_tokens + joint:
                break
            kept.append(index)
        return kept

    def _cut_piece(self, kept: dict[int, str], index: int, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        around = self._text({**kept, index: ""})
        room_tokens = max_tokens - tokens.count(around)
        room_bytes = max_bytes - utf8_length(around)
        while room_tokens >= min(_MIN_CUT_TOKENS, max_tokens) and room_tokens > 0 and room_bytes > 0:
            part = clip(self.pieces[index], tokens, room_tokens, room_bytes)
            if not part or part == ELLIPSIS.strip():
                return ""
            text = self._text({**kept, index: part})
            over = utf8_length(text) - max_bytes
            if over <= 0 and tokens.fits(text, max_tokens):
                return part
            # Tokens at the joints may merge or split. Where the bytes are too many fewer tokens may change nothing for
            # long: a token is up to a hundred bytes, and each try counts all of a text.
            room_tokens, room_bytes = (room_tokens, room_bytes - over) if over > 0 else (room_tokens - 1, room_bytes)
        return ""

    def _text(self, kept: dict[int, str]) -> str:
        if not kept:
            return ""
        return self._around(self.joint.join(self._labelled(kept)))

    def _around(self, body: str) -> str:
        return "\n".join([part for part in (self.head, body, self.foot) if part])

    def _labelled(self, kept: dict[int, str]) -> Iterator[str]:
        shown = ""
        for index in sorted(kept):
            label = self.labels[index] if self.labels else ""
            yield f"{label}\n{kept[index]}" if label and label != shown else kept[index]
            shown = label


def keep_newest(pieces: Sequence[str]) -> tuple[int, ...]:
    """The order of keeping in which the last pieces stay longest."""
    return tuple(range(len(pieces) - 1, -1, -1))
