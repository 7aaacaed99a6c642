"""Emoji as characters and by Slack's names. Pure."""

from __future__ import annotations

import re

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
