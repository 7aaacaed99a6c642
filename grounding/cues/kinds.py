"""The words and phrases by which a message shows what it needs, by kind. Data, matched as whole words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

_COMMON_DOMAINS = (
    "com org net edu gov io dev ai app co uk de fr es it nl eu ch at be pl se no dk fi jp cn in au ca br us me "
    "info biz cloud tech tv gg ly sh so to xyz"
)
_FILE_ENDINGS = (
    "md markdown txt rst pdf doc docx odt xls xlsx ppt pptx csv tsv json yaml yml toml ini cfg conf env log "
    "html css js ts py go rs java rb php sh sql xml ipynb"
)


@dataclass(frozen=True, slots=True)
class Cues:
    """Phrases per need. Each is one or more words in lower case."""

    small_talk: tuple[str, ...]
    """What is said to be polite. A message of nothing else needs no memory."""
    filler: tuple[str, ...]
    """Words that may stand beside small talk without making it a request."""
    asks_history: tuple[str, ...]
    """The message asks about this conversation."""
    refers_to_history: tuple[str, ...]
    """The message leans on this conversation, whatever it asks for."""
    weakly_asks_history: tuple[str, ...]
    """Asks about this conversation in a short message, or with "since", unless documents are named."""
    continues: tuple[str, ...]
    """Asks to go on, if nothing else but politeness is said."""
    follow_ups: tuple[str, ...]
    """A short message that begins with one asks on: what was said before names what it is about."""
    documents: tuple[str, ...]
    """Each is enough to want documents."""
    search: tuple[str, ...]
    """Wants documents together with an anchor."""
    anchors: tuple[str, ...]
    """Things that live in a workspace."""
    parts: tuple[str, ...]
    """Parts of documents: anchors beside a search, but not beside any question."""
    containers: tuple[str, ...]
    """Words for where an answer stands and how it is asked for, which say nothing of what it is about."""
    question_words: tuple[str, ...]
    """A message that begins with one is a question."""
    idioms: tuple[str, ...] = ()
    """In these the words mean something else ("earlier than", "file system"): no other cue is seen in them, but for
    a longer one."""
    assistant: tuple[str, ...] = ()
    """Words for the assistant itself. No document tells what it likes to eat."""
    polite_requests: tuple[str, ...] = ()
    """Phrases that name the assistant only to ask politely."""
    domains: tuple[str, ...] = tuple(_COMMON_DOMAINS.split())
    file_endings: tuple[str, ...] = tuple(_FILE_ENDINGS.split())

    def extended(self, **more: tuple[str, ...]) -> Cues:
        """These cues with *more* of some kinds. Raises TypeError for a kind that there is not."""
        _check_kinds(more)
        return replace(self, **{kind: getattr(self, kind) + phrases for kind, phrases in more.items()})

    def without(self, **fewer: tuple[str, ...]) -> Cues:
        """These cues but for *fewer* of some kinds; what is none of them changes nothing. Raises TypeError for a kind
        that there is not."""
        _check_kinds(fewer)
        kept = {
            kind: tuple(phrase for phrase in getattr(self, kind) if phrase not in phrases)
            for kind, phrases in fewer.items()
        }
        return replace(self, **kept)

    def joined(self, other: Cues) -> Cues:
        """The cues of both."""
        more = {kind: tuple(one for one in getattr(other, kind) if one not in getattr(self, kind)) for kind in KINDS}
        return self.extended(**more)


KINDS = tuple(field.name for field in fields(Cues))
"""The names of all kinds."""


def _check_kinds(given: Mapping[str, object]) -> None:
    if unknown := set(given) - set(KINDS):
        raise TypeError(f"no such kind of cue: {', '.join(sorted(unknown))}")


def phrases(text: str) -> tuple[str, ...]:
    """The phrases of *text*, which commas and line ends part."""
    return tuple(phrase.strip() for phrase in text.replace("\n", ",").split(",") if phrase.strip())
