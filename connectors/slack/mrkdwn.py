"""Slack's mrkdwn, as people write it, as Markdown. Pure. (The other way is `connectors.text.mrkdwn`.)

mrkdwn writes links, mentions and dates as ``<…>`` and escapes ``&``, ``<`` and ``>`` everywhere else
(docs.slack.dev, "Formatting message text").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from connectors.text.mrkdwn import escaped

_CODE = re.compile(r"(```[\s\S]*?```|`[^`\n]+`)")
_TOKEN = re.compile(r"<([^<>\n]+)>")
_PERSON = re.compile(r"<@([A-Z0-9]+)(?:\|[^<>\n]*)?>")
_BOLD = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])")
_STRUCK = re.compile(r"(?<![\w~])~(?=[^\s~])([^~\n]*?[^\s~])~(?![\w~])")
_ENTITY = re.compile(r"&(lt|gt|amp);")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&"}

# Stand-ins while a text is converted; neither Slack nor a reader knows these characters.
_ME, _KEPT = "\x00", "\x01"
_STAND_INS = re.compile(f"[{_ME}{_KEPT}]")
_AFTER_NAME = " \t\n,:;–—-"
_HELD = re.compile(f"{_KEPT}(\\d+){_KEPT}")


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
    return unescape(_TOKEN.sub(lambda match: escaped(_token(match[1], names, lambda url, _label: url)), text))


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
