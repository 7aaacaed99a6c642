"""Slack's events as our nouns. Pure. (The other way is `connectors.slack.payloads`.)

A conversation is a direct message's channel, or a thread: a message that calls the bot in a channel
begins one, which the answer and what follows belong to. So ``external_id`` is ``D123``, ``C123/1712.0001``
(the timestamp of the thread's first message) or, for what is said to nobody in a channel, ``C123``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from connectors.message import Attachment, Author, InboundKind, InboundMessage, Quote
from connectors.slack import REPLY_HINT
from connectors.text import escape

# ---- blocks ----
#
# What blocks say, as mrkdwn: for messages whose text Slack leaves empty. Pure.
#
# Apps may post blocks without a text; people's own messages always have both (docs.slack.dev, "Rich text block").


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
            return escape(str(block.get("text") or ""))
        case "image" | "video":
            return escape(str(block.get("alt_text") or ""))
    return ""


def _object(text: Any) -> str:
    """A text object: mrkdwn as it is, plain text escaped."""
    if not isinstance(text, Mapping) or not isinstance(text.get("text"), str):
        return ""
    said: str = text["text"]
    return said if text.get("type") == "mrkdwn" else escape(said)


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
            return escape(str(element.get("text") or ""))
        case "link":
            label = element.get("text")
            url = escape(str(element.get("url") or ""))
            return f"<{url}|{escape(str(label))}>" if label else f"<{url}>"
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
            return escape(str(element.get("fallback") or ""))
    return ""


def _nodes(parent: Node, name: str) -> list[Node]:
    found = parent.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


# ---- mrkdwn ----
#
# Slack's mrkdwn, as people write it, as Markdown. Pure. (The other way is `connectors.text.render`.)
#
# mrkdwn writes links, mentions and dates as ``<…>`` and escapes ``&``, ``<`` and ``>`` everywhere else
# (docs.slack.dev, "Formatting message text").


_CODE = re.compile(r"(```[\s\S]*?```|`[^`\n]+`)")
_TOKEN = re.compile(r"<([^<>\n]+)>")
_PERSON = re.compile(r"<@([A-Z0-9]+)(?:\|[^<>\n]*)?>")
_BOLD = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]*?[^\s*])\*(?![\w*])")
_STRUCK = re.compile(r"(?<![\w~])~(?=[^\s~])([^~\n]*?[^\s~])~(?![\w~])")
_ENTITY = re.compile(r"&(lt|gt|amp);")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&"}

# Stand-ins while a text is converted; neither Slack nor a reader knows these characters.
_ME, _KEPT = "\x00", "\x01"
_MRKDWN_STAND_INS = re.compile(f"[{_ME}{_KEPT}]")
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
    pieces = _CODE.split(_MRKDWN_STAND_INS.sub("", text))
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


# ---- attachments ----
#
# Files that come with a message: as our nouns, with a handle by which they are found again. Pure.


File = Mapping[str, Any]

HIDDEN = "hidden_by_limit"
EXTERNAL = "external"
ASK = "ask"
HOSTED = "hosted"


@dataclass(frozen=True, slots=True)
class Handle:
    """``access``: `HOSTED` (``url`` has it), `ASK` (Slack says more when asked), `HIDDEN` or `EXTERNAL`."""

    file_id: str
    access: str
    url: str = ""

    def encode(self) -> str:
        """One line; URLs have no spaces."""
        return " ".join(filter(None, (self.file_id, self.access, self.url)))

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The inverse of `encode`. Raises `ValueError`."""
        file_id, _, rest = text.partition(" ")
        access, _, url = rest.partition(" ")
        if not file_id:
            raise ValueError("a file without an id")
        return cls(file_id, access or ASK, url)


def attachments_of(said: Mapping[str, Any]) -> tuple[Attachment, ...]:
    """The files of a message and of those that it forwards; deleted ones are left out."""
    return tuple(attachment_of(file) for file in _files(said) if file.get("mode") != "tombstone")


def attachment_of(file: File) -> Attachment:
    """Raises `KeyError` for a file without an id."""
    media_type = str(file.get("mimetype") or "")
    return Attachment(
        kind=_kind(media_type, file),
        name=str(file.get("name") or file.get("title") or file["id"]),
        media_type=media_type,
        size_bytes=int(file.get("size") or 0),
        handle=handle_of(file).encode(),
    )


def handle_of(file: File) -> Handle:
    """Where *file* is, as far as Slack says."""
    file_id = str(file["id"])
    if file.get("mode") == HIDDEN:
        return Handle(file_id, HIDDEN)
    if file.get("mode") == EXTERNAL or file.get("is_external"):
        return Handle(file_id, EXTERNAL)
    url = str(file.get("url_private_download") or file.get("url_private") or "")
    if file.get("file_access") == "check_file_info" or not url or any(c.isspace() for c in url):
        return Handle(file_id, ASK)
    return Handle(file_id, HOSTED, url)


def _files(said: Mapping[str, Any]) -> Iterator[File]:
    yield from said.get("files") or ()
    for shared in said.get("attachments") or ():
        if shared.get("is_share") or shared.get("is_msg_unfurl"):
            yield from shared.get("files") or ()


def _kind(media_type: str, file: File) -> Literal["document", "image", "voice", "other"]:
    if file.get("mode") == EXTERNAL or file.get("is_external"):
        return "other"
    if media_type.startswith("image/"):
        return "image"
    if media_type.startswith("audio/") or file.get("subtype") == "slack_audio":
        return "voice"
    return "other" if media_type.startswith("video/") else "document"


# ---- emoji ----
#
# Emoji as characters and by Slack's names. Pure.


_NAMES = {
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
_EMOJI = {name: emoji for emoji, name in reversed(_NAMES.items())} | {
    "thumbsup": "👍",
    "thumbsup_all": "👍",
    "thumbsdown": "👎",
}


def emoji_name(emoji: str) -> str | None:
    """Slack's name of *emoji*, which may be that name already; None for one that it has no name for."""
    known = _NAMES.get(emoji)
    bare = emoji.strip(":")
    return known or (bare if re.fullmatch(r"[a-z0-9_+'-]+", bare) else None)


def emoji_of(name: str) -> str:
    """The emoji that Slack calls *name* (a skin tone is left out), else ``:name:``."""
    bare = name.split("::")[0]
    return _EMOJI.get(bare, f":{bare}:")


# ---- convert ----


CONNECTOR = "slack"

COMMAND_MARK: Final = "!"
"""Slack takes every message that begins with ``/`` for a command of its own or of an app's manifest."""

Event = Mapping[str, Any]

_SPOKEN = frozenset({None, "file_share", "thread_broadcast", "me_message", "bot_message"})
_JOINED = frozenset({"member_joined_channel"})
_LEFT = frozenset({"member_left_channel", "channel_left", "group_left"})
_LIMITS = (4_000, 12_000, 40_000)
_NEAR_LIMIT = 100
_PLAIN_TEAM = re.compile(r"[A-Z0-9]{1,58}")


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's own account, as ``auth.test`` tells it."""

    user_id: str
    bot_id: str
    team_id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What an event does not say itself. ``place`` is the conversation of the message that a reaction is on."""

    names: Mapping[str, str] = field(default_factory=dict)
    takes_part: bool = False
    """Whether the bot takes part in the event's thread."""
    place: str | None = None
    public: bool = False
    """Whether its channel is public, where the event does not name its type."""


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A message event without its envelope: ``said`` is the message itself, wherever the event has it."""

    kind: InboundKind
    said: Event
    channel: str
    ts: str
    direct: bool
    public: bool | None
    """None where the event does not say."""
    called: bool
    """By an ``app_mention``, which needs no look at the text."""

    @property
    def thread(self) -> str | None:
        """The thread that the message replies in; the first message of a thread is no reply."""
        thread = self.said.get("thread_ts")
        return str(thread) if thread and thread != self.ts else None

    @property
    def text(self) -> str:
        return text_of(self.said)


def to_inbound(event: Event, me: Identity, known: Known | None = None) -> InboundMessage | None:
    """What *event* says, or None for what is no concern of the runtime (own messages, service notes).

    Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for an event that is none of Slack's.
    """
    known = known or Known()
    kind = event["type"]
    if kind in {"message", "app_mention"}:
        spoken = _spoken(event)
        return None if spoken is None else _from_spoken(spoken, me, known)
    if kind in {"reaction_added", "reaction_removed"}:
        return _from_reaction(event, me, known)
    if kind in _JOINED | _LEFT:
        return _from_membership(event, me, known)
    return None


def identity_of(payload: Event) -> str:
    """By which an event is recognised when it comes again.

    What is said in a channel to the bot comes as two events with an ``event_id`` of their own each, ``message``
    and ``app_mention``; the message's channel and timestamp are the same. Raises as `to_inbound`.
    """
    event = payload["event"]
    if event["type"] in {"message", "app_mention"} and event.get("subtype") in _SPOKEN:
        return f"{event['channel']}/{event['ts']}"
    return str(payload["event_id"])


def is_public(event: Event) -> bool | None:
    """Whether *event* says that its channel is public; None where it does not name the channel's type."""
    kind = event.get("channel_type")
    return None if kind is None else kind == "channel"


def people_of(event: Event) -> frozenset[str]:
    """The ids of the people whose names `to_inbound` wants to know."""
    if event["type"] not in {"message", "app_mention"}:
        return frozenset(filter(None, [_user(event)]))
    spoken = _spoken(event)
    if spoken is None:
        return frozenset()
    shared = (str(one.get("author_id") or "") for one in spoken.said.get("attachments") or () if one.get("is_share"))
    return people_in(spoken.text) | frozenset(filter(None, [_user(spoken.said), *shared]))


def asker_of(event: Event, me: Identity) -> tuple[str, str]:
    """The person who said a message, and their team, which in a shared channel may be another organisation's."""
    return _user(event), str(event.get("user_team") or event.get("source_team") or event.get("team") or me.team_id)


def thread_in_question(event: Event, me: Identity) -> tuple[str, str] | None:
    """Channel and thread of an event whose meaning depends on whether the bot takes part in the thread."""
    if event["type"] != "message":
        return None
    spoken = _spoken(event)
    if spoken is None or spoken.thread is None or spoken.direct or spoken.kind is InboundKind.DELETE:
        return None
    if is_own(spoken.said, me) or _is_bot(spoken.said) or _calls(spoken, me):
        return None
    return spoken.channel, spoken.thread


def _spoken(event: Event) -> _Spoken | None:
    subtype = event.get("subtype")
    kind, said = InboundKind.MESSAGE, event
    if subtype == "message_changed":
        said, before = event["message"], event.get("previous_message") or {}
        if said.get("subtype") == "tombstone":  # a deleted message that has replies
            kind, said = InboundKind.DELETE, {**before, "ts": said["ts"]}
        elif _content(said) == _content(before):
            return None  # a link preview came, a thread grew, or a file's thumbnails are ready
        else:
            kind = InboundKind.EDIT
    elif subtype == "message_deleted":
        kind, said = InboundKind.DELETE, {**(event.get("previous_message") or {}), "ts": event["deleted_ts"]}
    elif subtype not in _SPOKEN:
        return None
    channel = str(event["channel"])
    return _Spoken(
        kind=kind,
        said=said,
        channel=channel,
        ts=str(said["ts"]),
        direct=event.get("channel_type") == "im" or channel.startswith("D"),
        public=is_public(event),
        called=event["type"] == "app_mention",
    )


def _from_spoken(spoken: _Spoken, me: Identity, known: Known) -> InboundMessage | None:
    said = spoken.said
    if is_own(said, me):
        return None
    attachments, quote = attachments_of(said), _quote(said, known)
    if not spoken.text and not attachments and quote is None and spoken.kind is not InboundKind.DELETE:
        return None
    called, in_our_thread = _calls(spoken, me), spoken.thread is not None and known.takes_part
    return InboundMessage(
        connector=CONNECTOR,
        external_id=_external_id(spoken, called),
        message_id=spoken.ts,
        author=_author(said, known),
        text=to_markdown(spoken.text, {me.user_id: me.name, **known.names}, me.user_id),
        kind=spoken.kind,
        sent_at=_time(spoken.ts),
        direct=spoken.direct,
        public=known.public if spoken.public is None else spoken.public,
        place=spoken.channel,
        addressed=spoken.direct or called or in_our_thread,
        by_thread_only=in_our_thread and not (spoken.direct or called),
        quote=quote,
        attachments=attachments,
        looks_unfinished=spoken.kind is InboundKind.MESSAGE and _is_cut(spoken.text),
        routes=routes_of(spoken.channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
    )


def _calls(spoken: _Spoken, me: Identity) -> bool:
    """Whether the message itself says that it is for the bot: by its name, or as a reply to the bot's message."""
    replied_to = spoken.said.get("parent_user_id") if spoken.thread is not None else None
    return spoken.called or replied_to == me.user_id or names_person(spoken.text, me.user_id)


def _external_id(spoken: _Spoken, called: bool) -> str:
    if spoken.thread is not None:
        return f"{spoken.channel}/{spoken.thread}"
    begins_thread = not spoken.direct and (called or spoken.said.get("thread_ts") == spoken.ts)
    return f"{spoken.channel}/{spoken.ts}" if begins_thread else spoken.channel


def _from_reaction(event: Event, me: Identity, known: Known) -> InboundMessage | None:
    item = event["item"]
    user = _user(event)
    if item.get("type") != "message" or user == me.user_id:
        return None
    channel, emoji, is_new = str(item["channel"]), emoji_of(str(event["reaction"])), event["type"] == "reaction_added"
    return InboundMessage(
        connector=CONNECTOR,
        external_id=known.place or channel,
        message_id=str(item["ts"]),
        author=_author(event, known),
        text="",
        kind=InboundKind.REACTION,
        sent_at=_time(event.get("event_ts")),
        direct=channel.startswith("D"),
        public=known.public,
        place=channel,
        addressed=False,
        reaction=emoji if is_new else "",
        unreacted=() if is_new else (emoji,),
        routes=routes_of(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
    )


def _from_membership(event: Event, me: Identity, known: Known) -> InboundMessage | None:
    """The bot came into a channel or left it."""
    if event.get("user", me.user_id) != me.user_id and event["type"] not in {"channel_left", "group_left"}:
        return None
    channel, at = str(event["channel"]), str(event.get("event_ts") or "")
    by = str(event.get("inviter") or event.get("actor_id") or me.user_id)
    return InboundMessage(
        connector=CONNECTOR,
        external_id=channel,
        message_id=f"membership-{at}",
        author=Author(id=by, name=known.names.get(by, "")),
        text="",
        kind=InboundKind.JOINED if event["type"] in _JOINED else InboundKind.LEFT,
        sent_at=_time(at),
        addressed=False,
        routes=routes_of(channel, me),
        default_workspace=default_workspace(me.team_id),
        reply_hint=REPLY_HINT,
        command_mark=COMMAND_MARK,
    )


def _user(event: Event) -> str:
    found = event.get("user") or ""
    return str(found.get("id", "") if isinstance(found, Mapping) else found)


def is_own(said: Event, me: Identity) -> bool:
    """Whether the bot said it itself."""
    return _user(said) == me.user_id or (bool(me.bot_id) and said.get("bot_id") == me.bot_id)


def _is_bot(said: Event) -> bool:
    return bool(said.get("bot_id")) or said.get("subtype") == "bot_message" or _user(said) == "USLACKBOT"


def _author(said: Event, known: Known) -> Author:
    user = _user(said)
    author_id = user or str(said.get("bot_id") or "unknown")
    profile = said.get("user_profile") or {}  # of people of another organisation
    given = profile.get("display_name") or profile.get("real_name") or profile.get("name")
    name = known.names.get(user) or str(said.get("username") or given or "")
    return Author(id=author_id, name=name, is_bot=_is_bot(said))


def _quote(said: Event, known: Known) -> Quote | None:
    """What was shared or forwarded with the message; Slack has no other way to quote. Several become one."""
    quotes = [quote for shared in said.get("attachments") or () if (quote := _shared(shared, known))]
    if len(quotes) < 2:
        return quotes[0] if quotes else None
    text = "\n\n".join(f"**{quote.author}:** {quote.text}" if quote.author else quote.text for quote in quotes)
    return Quote(author="", text=text)


def _shared(shared: Event, known: Known) -> Quote | None:
    if not (shared.get("is_share") or shared.get("is_msg_unfurl")):
        return None
    inner = (one.get("message") or {} for one in shared.get("message_blocks") or ())
    found = shared.get("text") or "\n".join(to_mrkdwn(one.get("blocks") or ()) for one in inner)
    text = to_markdown(found or shared.get("fallback") or "", known.names)
    author = known.names.get(str(shared.get("author_id"))) or str(shared.get("author_name") or "")
    return Quote(author=author, text=text) if text.strip() else None


def _content(said: Event) -> tuple[str, tuple[str, ...]]:
    """What makes an edit one: the words and the files."""
    text = said.get("text") or to_mrkdwn(said.get("blocks") or ())
    return str(text), tuple(str(file.get("id")) for file in said.get("files") or ())


def _is_cut(text: str) -> bool:
    """Whether Slack may have cut *text*: its clients split what is longer, at the nearest space, its API cuts it."""
    length = len(unescape(text))
    return any(limit - _NEAR_LIMIT <= length <= limit for limit in _LIMITS)


def _time(ts: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(str(ts)), UTC) if ts else None
    except (OverflowError, OSError) as error:
        raise ValueError(f"{ts!r} is no time") from error


def routes_of(channel: str, me: Identity) -> tuple[str, ...]:
    """The keys under which an operator may route a channel, most specific first."""
    return (f"{CONNECTOR}:{me.team_id}/{channel}", f"{CONNECTOR}:{me.team_id}")


def default_workspace(team_id: str) -> str:
    """The workspace of a team alone; another team's is never the same.

    Slack's ids are upper-case letters and digits. What is not is written as ``_<hexadecimal>.``, and what is
    then too long for a workspace id as its SHA-256, which no id in lower case can be confused with.
    """
    if _PLAIN_TEAM.fullmatch(team_id):
        return f"{CONNECTOR}-{team_id.lower()}"
    escaped = "".join(c.lower() if _PLAIN_TEAM.fullmatch(c) else f"_{ord(c):x}." for c in team_id)
    if 0 < len(escaped) <= 58:
        return f"{CONNECTOR}-{escaped}"
    return f"{CONNECTOR}--{hashlib.sha256(team_id.encode('utf-8', 'surrogatepass')).hexdigest()[:57]}"
