"""The text of a block while it is being cut (`Section`), and escaping of text from outside.

Escaping has three levels: `neutral` for the user's own message, `as_data` for text inside a delimited block, and
`as_excerpt` for text below a label.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from grounding.prompt_input.tokens import ELLIPSIS, Tokens, clip, utf8_length

_MIN_CUT_TOKENS = 12
"""A piece is not cut to fewer tokens: a few words of a passage help nobody."""

_INVISIBLE = (0xAD, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF, *range(0x2060, 0x2065), *range(0xE0000, 0xE0080))
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS: dict[int, str | None] = {
    **dict.fromkeys((*range(32), *range(127, 160), *_INVISIBLE, *_REORDERING)),
    **dict.fromkeys((0x0A, 0x85, 0x2028, 0x2029), "\n"),
    0x09: "\t",
}
_CHANGED_CHARACTERS = "".join(re.escape(chr(code)) for code in _CONTROLS if 0x0A < code <= 0xFFFF or code < 9)
_CHANGED = re.compile(f"[{_CHANGED_CHARACTERS}]")
"""The characters of the basic plane that are replaced. Searching for one is much cheaper than translating a text that
has none; with characters of other planes in the same set it would not be."""
_SUSPICIOUS = re.compile(rf"[<>\[{_CHANGED_CHARACTERS}]")
"""Most text has none of these characters, and then nothing is escaped."""
_TAGS = re.compile("[\U000e0000-\U000e007f]")
_DELIMITERS = (
    "conversation_summary",
    "recent_conversation",
    "earlier_turns",
    "workspace_passages",
    "memory_records",
    "standing_rules",
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
# Possessive quantifiers: otherwise a bracket and a thousand blanks would take quadratic time.
_OUR_TAG = re.compile(r"<(?=\s*+/?+\s*+(?:" + "|".join(map(re.escape, _DELIMITERS)) + r")\b)", re.IGNORECASE)
_TEMPLATE_TOKEN = re.compile(
    r"<(?=[|｜])|(?<=[|｜])>|<(?=<\s*/?SYS)|<(?=/?(?:s|bos|eos|pad|unk|(?:start|end)_of_turn)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\])"
)
_HARMLESS = {"<": "‹", ">": "›", "[": "("}
_BRACKETED = re.compile(r"^([ \t]*)\[([^\]\n]*)\](?!\()", re.MULTILINE)
_LIKE_A_LABEL = re.compile(r"›|\.(?:md|txt)\b|\d{4}-\d\d-\d\d", re.IGNORECASE)


def neutral(text: str) -> str:
    """Return *text* without control and invisible characters and without the tokens of chat templates.

    Tokens such as ``<|im_start|>`` get another bracket, so that no text can open a message of its own. The bracket is
    replaced and not removed, because the text around it could then become a token.
    """
    if _CHANGED.search(text) or (not text.isascii() and _TAGS.search(text)):
        text = text.translate(_CONTROLS)
    if "<" in text or ">" in text or "[" in text:
        text = _TEMPLATE_TOKEN.sub(lambda match: _HARMLESS[match[0]], text)
    return text


def as_data(text: str) -> str:
    """Return *text* for the inside of a delimited block: `neutral`, and unable to close or open a delimiter."""
    if not _SUSPICIOUS.search(text) and (text.isascii() or not _TAGS.search(text)):
        return text
    text = neutral(text)
    return _OUR_TAG.sub("&lt;", text) if "<" in text else text


def as_excerpt(text: str) -> str:
    """Return `as_data` of *text*, with round brackets on lines that begin like the label of another excerpt."""
    text = as_data(text)
    return _BRACKETED.sub(_unlabelled, text) if "[" in text else text


def _unlabelled(match: re.Match[str]) -> str:
    return f"{match[1]}({match[2]})" if _LIKE_A_LABEL.search(match[2]) else match[0]


def one_line(text: str) -> str:
    """Return *text*, such as a name from outside, as data on one line."""
    return text if text.isalnum() else " ".join(as_data(text).split())


def speaker(name: str, otherwise: str = "user") -> str:
    """Return *name* as it is shown before a person's words; *otherwise* if it is empty.

    People choose their names, so colons are removed, and a name like the assistant's is marked.
    """
    shown = one_line(name).replace(":", " ").strip()
    letters = "".join(filter(str.isalpha, unicodedata.normalize("NFKC", shown).casefold()))
    return f"{shown} (user)" if letters.startswith(_OUR_SPEAKERS) else shown or otherwise


def speaker_text(by: str, text: str) -> str:
    """Return *text* after its speaker *by* (see `speaker`). Further lines are indented, so that none can pass for
    another speaker's."""
    return f"{by}: " + "\n  ".join(text.splitlines())


@dataclass(frozen=True, slots=True)
class Section:
    """Pieces of text between a head and a foot, given up one by one.

    ``pieces`` are in the order of display; ``keep`` lists their indices, the one to keep longest first (default: the
    order of display). ``cut`` says whether the first piece that does not fit whole may be cut: always, only if it is
    the only one, or never. Without a piece the section is empty, without head and foot. ``labels``, if any, has one for
    each piece, shown above it, once for consecutive pieces with the same label.
    """

    head: str = ""
    pieces: tuple[str, ...] = ()
    foot: str = ""
    joint: str = "\n"
    keep: tuple[int, ...] | None = None
    cut: Literal["always", "only", "never"] = "always"
    labels: tuple[str, ...] = ()

    def fit(self, tokens: Tokens, max_tokens: int, max_bytes: int) -> str:
        """Return the text of as many pieces as fit both limits; empty if none does."""
        if not self.pieces:
            return ""
        whole = self.whole
        if _fits(whole, tokens, max_tokens, max_bytes):
            return whole
        order = self.keep if self.keep is not None else tuple(range(len(self.pieces)))
        kept = self._greedily(order, tokens, max_tokens)
        while kept:
            if _fits(self._text({index: self.pieces[index] for index in kept}), tokens, max_tokens, max_bytes):
                break
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
        """The text of all pieces, uncut; empty if there are none."""
        if not self.pieces:
            return ""
        body = self.body if self.labels else self.joint.join(self.pieces)
        return "\n".join(filter(None, (self.head, body, self.foot)))

    @property
    def body(self) -> str:
        """The text of all pieces without head and foot."""
        return self.joint.join(self._labelled(dict(enumerate(self.pieces))))

    def _greedily(self, order: tuple[int, ...], tokens: Tokens, max_tokens: int) -> list[int]:
        """Return the first pieces of *order* whose own tokens sum up to the limit: a close first guess."""
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
            if _fits(text, tokens, max_tokens, max_bytes):
                return part
            over = utf8_length(text) - max_bytes
            # Tokens at the joints may merge or split. If there are too many bytes, reduce those: one token fewer may
            # change nothing, and each try counts the whole text.
            room_tokens, room_bytes = (room_tokens, room_bytes - over) if over > 0 else (room_tokens - 1, room_bytes)
        return ""

    def _text(self, kept: dict[int, str]) -> str:
        if not kept:
            return ""
        return "\n".join(filter(None, (self.head, self.joint.join(self._labelled(kept)), self.foot)))

    def _labelled(self, kept: dict[int, str]) -> Iterator[str]:
        shown = ""
        for index in sorted(kept):
            label = self.labels[index] if self.labels else ""
            yield f"{label}\n{kept[index]}" if label and label != shown else kept[index]
            shown = label


def _fits(text: str, tokens: Tokens, max_tokens: int, max_bytes: int) -> bool:
    size = utf8_length(text)
    return size <= max_bytes and (size <= max_tokens or tokens.fits(text, max_tokens))  # a token has a byte or more


def keep_newest(pieces: Sequence[str]) -> tuple[int, ...]:
    """Return the order of keeping in which the last pieces stay longest."""
    return tuple(range(len(pieces) - 1, -1, -1))
