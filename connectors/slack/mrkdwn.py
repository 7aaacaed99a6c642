"""Converts the texts of people and apps on Slack to Markdown. Pure. (`connectors.text` renders the other way.)

`message_text` finds the mrkdwn of a message, in its text or its blocks; `to_markdown` converts it. mrkdwn writes links,
mentions and dates as ``<…>`` and escapes ``&``, ``<`` and ``>`` everywhere else (docs.slack.dev, "Formatting message
text").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from connectors.text import escape_mrkdwn, join_around

Node = Mapping[str, Any]

_NO_PREVIEW = frozenset({"This content can't be displayed.", "[no preview available]"})
"""Texts that Slack shows for blocks that it cannot show as text."""

_STYLES = (("bold", "*"), ("italic", "_"), ("strike", "~"))
_MAX_INDENT = 20

_CODE = re.compile(r"(```[\s\S]*?```|`[^`\n]+`)")
_TOKEN = re.compile(r"<([^<>\n]+)>")
_PERSON = re.compile(r"<@([A-Z0-9]+)(?:\|[^<>\n]*)?>")
_BOLD = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])")
_STRUCK = re.compile(r"(?<![\w~])~(?=[^\s~])([^~\n]*?[^\s~])~(?![\w~])")
_ENTITY = re.compile(r"&(lt|gt|amp);")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&"}

# Placeholders in a text while it is converted; neither Slack nor a reader knows these characters.
_BOT, _CONVERTED = "\x00", "\x01"
_PLACEHOLDER_CHARACTERS = re.compile(f"[{_BOT}{_CONVERTED}]")
_PLACEHOLDER = re.compile(f"{_CONVERTED}(\\d+){_CONVERTED}")


def message_text(message: Node) -> str:
    """Return the mrkdwn of *message*: its text, else that of its blocks, else that of its attachments.

    People's messages always have a text; apps may post blocks without one (docs.slack.dev, "Rich text block").
    """
    text = str(message.get("text") or "")
    if text.strip() and text not in _NO_PREVIEW:
        return text
    other = blocks_text(message.get("blocks") or ())
    if not other:
        other = "\n".join(filter(None, map(_attachment_text, message.get("attachments") or ())))
    return other or ("" if text in _NO_PREVIEW else text)


def blocks_text(blocks: Sequence[Any]) -> str:
    """Return the mrkdwn of *blocks*, one below the other, without those that have no text."""
    return "\n".join(filter(None, (_block(block) for block in blocks if isinstance(block, Mapping))))


def to_markdown(text: str, names: Mapping[str, str], me: str = "") -> str:
    """Convert *text*, mrkdwn, to Markdown, with people's *names* by their id and without mentions of the user *me*."""
    pieces = _CODE.split(_PLACEHOLDER_CHARACTERS.sub("", text))
    converted = [
        _prose_to_markdown(piece, names, me) if number % 2 == 0 else _code_to_markdown(piece, names)
        for number, piece in enumerate(pieces)
    ]
    fragments = "".join(converted).split(_BOT)
    return join_around(fragments) if len(fragments) > 1 else fragments[0]


def people_in(text: str) -> frozenset[str]:
    """Return the ids of the people whom *text*, mrkdwn, mentions."""
    return frozenset(_PERSON.findall(text))


def mentions(text: str, user_id: str) -> bool:
    """Return whether *text*, mrkdwn, mentions that person outside of code."""
    return any(user_id in _PERSON.findall(piece) for piece in _CODE.split(text)[::2])


def unescape(text: str) -> str:
    """Replace ``&lt;``, ``&gt;`` and ``&amp;``, the only entities of mrkdwn, by their characters."""
    return _ENTITY.sub(lambda match: _ENTITIES[match[1]], text)


# Blocks to mrkdwn


def _attachment_text(attachment: Node) -> str:
    """Return the text of what an app attached. Quotes (`connectors.slack.events`) and link previews have none."""
    if any(attachment.get(name) for name in ("is_share", "is_msg_unfurl", "from_url", "is_app_unfurl")):
        return ""
    own = "\n".join(str(attachment[name]) for name in ("pretext", "title", "text") if attachment.get(name))
    return own or blocks_text(attachment.get("blocks") or ()) or str(attachment.get("fallback") or "")


def _block(block: Node) -> str:
    match block.get("type"):
        case "rich_text":
            return "\n".join(filter(None, (_rich_text(part) for part in _nodes(block, "elements"))))
        case "section":
            fields = [_text_object(field) for field in _nodes(block, "fields")]
            return "\n".join(filter(None, [_text_object(block.get("text")), *fields]))
        case "header":
            title = _text_object(block.get("text"))
            return f"*{title}*" if title else ""
        case "context":
            return " ".join(filter(None, (_text_object(element) for element in _nodes(block, "elements"))))
        case "markdown":
            return escape_mrkdwn(str(block.get("text") or ""))
        case "image" | "video":
            return escape_mrkdwn(str(block.get("alt_text") or ""))
    return ""


def _text_object(node: Any) -> str:
    """Return mrkdwn as it is, and plain text escaped."""
    if not isinstance(node, Mapping) or not isinstance(node.get("text"), str):
        return ""
    text: str = node["text"]
    return text if node.get("type") == "mrkdwn" else escape_mrkdwn(text)


def _rich_text(part: Node) -> str:
    match part.get("type"):
        case "rich_text_list":
            return "\n".join(_list_lines(part))
        case "rich_text_quote":
            return "\n".join(f"&gt; {line}" for line in _inline_text(part).split("\n"))
        case "rich_text_preformatted":
            return f"```\n{_inline_text(part)}\n```"
    return _inline_text(part)


def _list_lines(part: Node) -> Iterator[str]:
    indent = min(int(part.get("indent") or 0), _MAX_INDENT) * 4 * " "
    first = int(part.get("offset") or 0) + 1
    for number, item in enumerate(_nodes(part, "elements"), first):
        mark = f"{number}." if part.get("style") == "ordered" else "•"
        yield f"{indent}{mark} {_inline_text(item)}"


def _inline_text(part: Node) -> str:
    return "".join(map(_styled, _nodes(part, "elements")))


def _styled(element: Node) -> str:
    text = _unstyled(element)
    style = element.get("style")
    if not isinstance(style, Mapping) or not text.strip():
        return text
    if style.get("code"):
        return f"`{text}`"
    core = text.strip()
    before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
    for name, mark in _STYLES:
        core = f"{mark}{core}{mark}" if style.get(name) else core
    return before + core + after


def _unstyled(element: Node) -> str:
    match element.get("type"):
        case "text":
            return escape_mrkdwn(str(element.get("text") or ""))
        case "link":
            label = element.get("text")
            url = escape_mrkdwn(str(element.get("url") or ""))
            return f"<{url}|{escape_mrkdwn(str(label))}>" if label else f"<{url}>"
        case "user":
            return f"<@{element.get('user_id')}>"
        case "usergroup":
            return f"<!subteam^{element.get('usergroup_id')}>"
        case "channel":
            return f"<#{element.get('channel_id')}>"
        case "broadcast":
            return f"<!{element.get('range')}>"
        case "emoji":
            return f":{element.get('name')}:"
        case "date":
            return escape_mrkdwn(str(element.get("fallback") or ""))
    return ""


def _nodes(parent: Node, name: str) -> list[Node]:
    children = parent.get(name)
    return [child for child in children if isinstance(child, Mapping)] if isinstance(children, list) else []


# mrkdwn to Markdown


def _prose_to_markdown(text: str, names: Mapping[str, str], me: str) -> str:
    converted: list[str] = []

    def replace_token(match: re.Match[str]) -> str:
        if me and match[1].split("|")[0] == f"@{me}":
            return _BOT
        converted.append(_token(match[1], names, lambda url, label: f"[{label}]({url})"))
        return f"{_CONVERTED}{len(converted) - 1}{_CONVERTED}"

    text = _TOKEN.sub(replace_token, text)
    text = _STRUCK.sub(r"~~\1~~", _BOLD.sub(r"**\1**", text))
    return _PLACEHOLDER.sub(lambda match: converted[int(match[1])], unescape(text))


def _code_to_markdown(text: str, names: Mapping[str, str]) -> str:
    return unescape(_TOKEN.sub(lambda match: escape_mrkdwn(_token(match[1], names, lambda url, _label: url)), text))


def _token(inside: str, names: Mapping[str, str], link: Callable[[str, str], str]) -> str:
    """Return what a reader sees of ``<inside>``."""
    target, bar, label = inside.partition("|")
    label = unescape(label)
    if target.startswith("@"):
        return f"@{names.get(target[1:]) or label or target[1:]}"
    if target.startswith("#"):
        return f"#{label or target[1:]}"
    if target.startswith("!"):
        word = target[1:].split("^")[0]
        return f"@{word}" if word in {"here", "channel", "everyone"} else label or f"@{word}"
    url = unescape(target)
    # Slack makes links of bare addresses; those read best as they were typed.
    if not bar or label in {url, url.split(":", 1)[-1].removeprefix("//")}:
        return label or url
    return link(url, label)


# Emoji

_EMOJI_NAMES = {
    "👀": "eyes",
    "✅": "white_check_mark",
    "⏳": "hourglass_flowing_sand",
    "❌": "x",
    "👍": "+1",
    "👎": "-1",
    "👌": "ok_hand",
    "🎉": "tada",
    "❤️": "heart",
    "❤": "heart",
    "🙏": "pray",
    "🔥": "fire",
    "🤔": "thinking_face",
    "😀": "grinning",
    "😄": "smile",
    "👋": "wave",
    "🚀": "rocket",
    "💯": "100",
    "⚠️": "warning",
}
_EMOJI = {name: emoji for emoji, name in reversed(_EMOJI_NAMES.items())} | {
    "thumbsup": "👍",
    "thumbsup_all": "👍",
    "thumbsdown": "👎",
}


def emoji_name(emoji: str) -> str | None:
    """Return Slack's name of *emoji*, which may be that name already; None if it has none."""
    name = emoji.strip(":")
    return _EMOJI_NAMES.get(emoji) or (name if re.fullmatch(r"[a-z0-9_+'-]+", name) else None)


def emoji_of(name: str) -> str:
    """Return the emoji that Slack calls *name*, without its skin tone, else ``:name:``."""
    name = name.split("::")[0]
    return _EMOJI.get(name, f":{name}:")
