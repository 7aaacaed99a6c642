"""Measure plain text, and cut or join it at natural edges. Pure."""

from __future__ import annotations

import re
import unicodedata

_PARAGRAPH = re.compile(r"\n[ \t]*\n+")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？]")
_WORD = re.compile(r"\s+")

_PUNCTUATION_AFTER_NAME = re.compile(r"^[\s,:;–—-]+")

# Edges from best to worst, each with the share of the room (`furthest`) that a cut must exceed.
_EDGES = ((_PARAGRAPH, 0.5), (_LINE, 0.5), (_SENTENCE, 0.5), (_WORD, 0.25))


def utf16_units(text: str) -> int:
    """Count UTF-16 code units, Telegram's unit: 2 for a character beyond U+FFFF, else 1."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def without_lone_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which no protocol can carry, with U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def natural_edge(text: str, furthest: int) -> int | None:
    """Return the best cut in ``text[:furthest]`` after a paragraph, a line, a sentence or a word, or None."""
    for edge, least_full in _EDGES:
        ends = [m.end() for m in edge.finditer(text, 0, furthest)]
        for cut in reversed(ends):
            if cut > furthest * least_full and not _is_inside_cluster(text, cut):
                return cut
    return None


def cluster_edge(text: str, furthest: int) -> int:
    """Return the last cut up to *furthest* (at least 1) between grapheme clusters, or *furthest* if there is none."""
    cut = furthest
    while cut > 0 and _is_inside_cluster(text, cut):
        cut -= 1
    return cut or furthest


def _is_inside_cluster(text: str, cut: int) -> bool:
    """Return whether *cut* is inside a grapheme cluster of *text*.

    Applies a subset of the rules GB3 to GB13 of Unicode Standard Annex #29, with the properties that the standard
    library knows: combining marks, emoji sequences, flags, Hangul jamo and line ends.
    """
    if cut >= len(text):
        return False
    before, after = text[cut - 1], text[cut]
    if before == "\r" and after == "\n":
        return True
    if after == "\u200d" or "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True
    if unicodedata.category(after) in {"Mn", "Me", "Mc"}:
        return True
    if before == "\u200d" and unicodedata.category(after) in {"So", "Sm"}:
        return True
    if "\u1160" <= after <= "\u11ff" and ("\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"):
        return True
    if _is_flag_letter(before) and _is_flag_letter(after):
        return _flag_letters_before(text, cut) % 2 == 1
    return _splits_surrogate_pair(text, cut)


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flag_letters_before(text: str, cut: int) -> int:
    first = cut
    while first > 0 and _is_flag_letter(text[first - 1]):
        first -= 1
    return cut - first


def _splits_surrogate_pair(text: str, cut: int) -> bool:
    """Return whether *cut* is between two surrogates that a faulty decoder left as separate characters."""
    return 0 < cut < len(text) and "\ud800" <= text[cut - 1] <= "\udbff" and "\udc00" <= text[cut] <= "\udfff"


def join_around(fragments: list[str]) -> str:
    """Join the fragments of a text around removed mentions, without the gaps that the mentions would leave."""
    text = fragments[0]
    for fragment in fragments[1:]:
        if not text.strip():
            text = _PUNCTUATION_AFTER_NAME.sub("", fragment)
        elif not fragment.strip() or fragment.startswith((".", "!", "?")):
            text = text.rstrip(" ,") + fragment  # "thanks, @bot!"
        elif text[-1].isspace() and (fragment[0].isspace() or fragment[0] in ",;:"):
            text = text.rstrip(" ") + fragment
        else:
            text += fragment
    return text.strip()
