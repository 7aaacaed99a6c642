"""Slack's mrkdwn as Markdown, and Markdown as mrkdwn. Pure.

mrkdwn writes links, mentions and dates as ``<…>`` and escapes ``&``, ``<`` and ``>`` everywhere else
(docs.slack.dev, "Formatting message text").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_CODE = re.compile(r"(```[\s\S]*?```|`[^`\n]+`)")
_TOKEN = re.compile(r"<([^<>\n]+)>")
_PERSON = re.compile(r"<@([A-Z0-9]+)(?:\|[^<>\n]*)?>")
_BOLD = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])")
_STRUCK = re.compile(r"(?<![\w~])~(?=[^\s~])([^~\n]*?[^\s~])~(?![\w~])")
_ENTITY = re.compile(r"&(lt|gt|amp);")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&"}

# Stand-ins while a text is converted; neither Slack nor a reader knows these characters.
_ME, _KEPT, _STAR = "\x00", "\x01", "\x02"
_STAND_INS = re.compile(f"[{_ME}{_KEPT}{_STAR}]")
_AFTER_NAME = " \t\n,:;–—-"
_HELD = re.compile(f"{_KEPT}(\\d+){_KEPT}")

_MD_FENCE = re.compile(
    r"^ {0,3}(?P<mark>`{3,}|~{3,})[^\n]*\n(?P<body>[\s\S]*?)(?P<end>^ {0,3}(?P=mark)[`~]*[ \t]*$|\Z)", re.MULTILINE
)
_MD_CODE = re.compile(r"(?<!`)(`+)(?!`)[^\n]+?(?<!`)\1(?!`)")
_MD_LINK = re.compile(r"!?\[([^\[\]\n]+)\]\(<?(https?://[^\s()<>|]+(?:\([^\s()<>|]*\)[^\s()<>|]*)*)>?\)")
_MD_BARE = re.compile(r"<(https?://[^\s<>|]+)>|https?://[^\s<>|]*[^\s<>|*_~.,:;!?)]")
_MD_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(\S[^\n]*)$", re.MULTILINE)
_MD_BOTH = re.compile(r"\*\*\*(?=[^\s*])([^*\n]*?[^\s*])\*\*\*")
_MD_BOLD = re.compile(r"\*\*(?=[^\s*])([^\n]*?[^\s*])\*\*|(?<!\w)__(?=[^\s_])([^\n]*?[^\s_])__(?!\w)")
_MD_ITALIC = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])")
_MD_STRUCK = re.compile(r"~~(?=[^\s~])([^~\n]*?[^\s~])~~")
_MD_BULLET = re.compile(r"^([ \t]*)[-*+]([ \t]+)(?=\S)", re.MULTILINE)
_MD_QUOTE = re.compile(r"^( {0,3})&gt;", re.MULTILINE)


def people_in(text: str) -> frozenset[str]:
    """The ids of the people whom *text*, mrkdwn, names."""
    return frozenset(_PERSON.findall(text))


def names_person(text: str, user_id: str) -> bool:
    """Whether *text*, mrkdwn, calls that person; what stands in code calls nobody."""
    return any(user_id in _PERSON.findall(piece) for piece in _CODE.split(text)[::2])


def to_markdown(text: str, names: Mapping[str, str], me: str = "") -> str:
    """*text*, mrkdwn, as Markdown with people's *names* (by id), and without the mentions of *me*."""
    pieces = _CODE.split(_STAND_INS.sub("", text))
    converted = [
        _prose_to_markdown(piece, names, me) if number % 2 == 0 else _code_to_markdown(piece, names)
        for number, piece in enumerate(pieces)
    ]
    return _without_me("".join(converted))


def _prose_to_markdown(text: str, names: Mapping[str, str], me: str) -> str:
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        shown = _token(match[1], names, lambda url, label: f"[{label}]({url})")
        if me and match[1].split("|")[0] == f"@{me}":
            return _ME
        held.append(shown)
        return f"{_KEPT}{len(held) - 1}{_KEPT}"

    text = _TOKEN.sub(hold, text)
    text = _STRUCK.sub(r"~~\1~~", _BOLD.sub(r"**\1**", text))
    return _HELD.sub(lambda match: held[int(match[1])], unescape(text))


def _code_to_markdown(text: str, names: Mapping[str, str]) -> str:
    return unescape(_TOKEN.sub(lambda match: escape(_token(match[1], names, lambda url, _label: url)), text))


def _token(inside: str, names: Mapping[str, str], link: Callable[[str, str], str]) -> str:
    """What a reader sees of ``<inside>``."""
    target, bar, label = inside.partition("|")
    label = unescape(label)
    if target.startswith("@"):
        return f"@{names.get(target[1:]) or label or target[1:]}"
    if target.startswith("#"):
        return f"#{label or target[1:]}"
    if target.startswith("!"):
        word = target[1:].split("^")[0]
        if word in {"here", "channel", "everyone"}:
            return f"@{word}"
        return label or f"@{word}"
    url = unescape(target)
    # Slack makes links of bare addresses; those read best as they were typed.
    if not bar or label in {url, url.split(":", 1)[-1].removeprefix("//")}:
        return label or url
    return link(url, label)


def _without_me(text: str) -> str:
    """*text* without the stand-ins for the bot's own mention and the gaps that those would leave."""
    if _ME not in text:
        return text
    # By fragments: patterns for the gaps would take quadratic time on long runs of white space.
    joined, *fragments = text.split(_ME)
    for fragment in fragments:
        if not joined or joined.isspace():
            joined = fragment.lstrip(_AFTER_NAME)
        elif not fragment or fragment.isspace() or fragment.startswith((".", "!", "?")):
            joined = joined.rstrip(" ,") + fragment  # "thanks, @bot!"
        elif joined[-1].isspace() and (fragment[0].isspace() or fragment[0] in ",;:"):
            joined = joined.rstrip(" ") + fragment
        else:
            joined += fragment
    return joined.strip()


def unescape(text: str) -> str:
    """``&lt;``, ``&gt;`` and ``&amp;`` as the characters that they stand for; no other entity exists in mrkdwn."""
    return _ENTITY.sub(lambda match: _ENTITIES[match[1]], text)


def escape(text: str) -> str:
    """*text* with the three characters escaped that mrkdwn gives a meaning: nothing in it links or mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escaped_size(text: str) -> int:
    """The characters of ``escape(text)``; `from_markdown` never makes more of it."""
    return len(text) + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))


def from_markdown(text: str) -> str:
    """*text*, Markdown, as mrkdwn: emphasis, headings, links, lists, quotes and code; the rest as escaped text.

    No longer than ``escaped_size(text)``. Mentions in *text* mention nobody.
    """
    text = _STAND_INS.sub("", text)
    held: list[str] = []

    def hold(shown: str) -> str:
        held.append(shown)
        return f"{_KEPT}{len(held) - 1}{_KEPT}"

    # Slack shows the language of a code block as its first line, so that it is left out.
    text = _MD_FENCE.sub(lambda m: hold("```\n" + escape(m["body"]) + ("```" if m["end"] else "")), text)
    text = _MD_CODE.sub(lambda m: hold(escape(m[0])), text)
    text = _MD_LINK.sub(lambda m: hold(f"<{escape(m[2])}|{escape(m[1])}>"), text)
    text = _MD_BARE.sub(lambda m: hold(escape(m[1] or m[0])), text)
    text = _styled(escape(text))
    while _HELD.search(text):  # a link's words may themselves be code
        text = _HELD.sub(lambda match: held[int(match[1])], text)
    return text


def _styled(text: str) -> str:
    text = _MD_QUOTE.sub(r"\1>", text)
    text = _MD_BULLET.sub(r"\1•\2", text)
    text = _MD_HEADING.sub(lambda m: _STAR + _heading(m[1]) + _STAR, text)
    text = _MD_BOTH.sub(rf"{_STAR}_\1_{_STAR}", text)
    text = _MD_BOLD.sub(lambda m: _STAR + (m[1] or m[2]) + _STAR, text)
    text = _MD_ITALIC.sub(r"_\1_", text)
    return _MD_STRUCK.sub(r"~\1~", text).replace(_STAR, "*")


def _heading(words: str) -> str:
    """The words of a heading line without its closing ``#`` and emphasis of its own."""
    words = words.rstrip(" \t")
    unclosed = words.rstrip("#")
    if unclosed.endswith((" ", "\t")):
        words = unclosed.rstrip(" \t")
    return words.replace("**", "")
