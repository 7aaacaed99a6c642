"""What blocks say, as mrkdwn: for messages whose text Slack leaves empty. Pure.

Apps may post blocks without a text; people's own messages always have both (docs.slack.dev, "Rich text block").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connectors.text.mrkdwn import escaped

_STAND_INS = frozenset({"This content can't be displayed.", "[no preview available]"})
_STYLES = (("bold", "*"), ("italic", "_"), ("strike", "~"))
_DEEPEST = 20

Node = Mapping[str, Any]


def text_of(said: Node) -> str:
    """The text of a message, mrkdwn: its own, else what its blocks say, else that of its attachments."""
    text = str(said.get("text") or "")
    if text.strip() and text not in _STAND_INS:
        return text
    found = to_mrkdwn(said.get("blocks") or ())
    if not found:
        found = "\n".join(filter(None, map(_attached, said.get("attachments") or ())))
    return found or ("" if text in _STAND_INS else text)


def to_mrkdwn(blocks: Sequence[Any]) -> str:
    """*blocks* one below the other; those without text are left out."""
    return "\n".join(filter(None, (_block(block) for block in blocks if isinstance(block, Mapping))))


def _attached(attachment: Node) -> str:
    """Secondary content that an app posted; what was shared is quoted elsewhere, and previews are nobody's words."""
    if any(attachment.get(name) for name in ("is_share", "is_msg_unfurl", "from_url", "is_app_unfurl")):
        return ""
    own = "\n".join(str(attachment[name]) for name in ("pretext", "title", "text") if attachment.get(name))
    return own or to_mrkdwn(attachment.get("blocks") or ()) or str(attachment.get("fallback") or "")


def _block(block: Node) -> str:
    match block.get("type"):
        case "rich_text":
            return "\n".join(filter(None, (_rich(part) for part in _nodes(block, "elements"))))
        case "section":
            fields = [_object(field) for field in _nodes(block, "fields")]
            return "\n".join(filter(None, [_object(block.get("text")), *fields]))
        case "header":
            title = _object(block.get("text"))
            return f"*{title}*" if title else ""
        case "context":
            return " ".join(filter(None, (_object(element) for element in _nodes(block, "elements"))))
        case "markdown":
            return escaped(str(block.get("text") or ""))
        case "image" | "video":
            return escaped(str(block.get("alt_text") or ""))
    return ""


def _object(text: Any) -> str:
    """A text object: mrkdwn as it is, plain text escaped."""
    if not isinstance(text, Mapping) or not isinstance(text.get("text"), str):
        return ""
    said: str = text["text"]
    return said if text.get("type") == "mrkdwn" else escaped(said)


def _rich(part: Node) -> str:
    match part.get("type"):
        case "rich_text_list":
            return "\n".join(_items(part))
        case "rich_text_quote":
            return "\n".join(f"&gt; {line}" for line in _run(part).split("\n"))
        case "rich_text_preformatted":
            return f"```\n{_run(part)}\n```"
    return _run(part)


def _items(part: Node) -> Iterator[str]:
    indent = min(int(part.get("indent") or 0), _DEEPEST) * 4 * " "
    first = int(part.get("offset") or 0) + 1
    for number, item in enumerate(_nodes(part, "elements"), first):
        mark = f"{number}." if part.get("style") == "ordered" else "•"
        yield f"{indent}{mark} {_run(item)}"


def _run(part: Node) -> str:
    return "".join(_inline(element) for element in _nodes(part, "elements"))


def _inline(element: Node) -> str:
    shown = _plain(element)
    style = element.get("style")
    if not isinstance(style, Mapping) or not shown.strip():
        return shown
    if style.get("code"):
        return f"`{shown}`"
    core = shown.strip()
    before, after = shown[: shown.index(core)], shown[shown.index(core) + len(core) :]
    for name, mark in _STYLES:
        core = f"{mark}{core}{mark}" if style.get(name) else core
    return before + core + after


def _plain(element: Node) -> str:
    match element.get("type"):
        case "text":
            return escaped(str(element.get("text") or ""))
        case "link":
            label = element.get("text")
            url = escaped(str(element.get("url") or ""))
            return f"<{url}|{escaped(str(label))}>" if label else f"<{url}>"
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
            return escaped(str(element.get("fallback") or ""))
    return ""


def _nodes(parent: Node, name: str) -> list[Node]:
    found = parent.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
