"""Clean up a text from which mentions were removed. Pure."""

from __future__ import annotations

import re

_PUNCTUATION_AFTER_NAME = re.compile(r"^[\s,:;–—-]+")


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
