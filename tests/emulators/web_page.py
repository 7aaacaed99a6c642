"""What a reader sees on the chat page of the elements that it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from connectors.text import Node

_BLOCKS = frozenset({"p", "h3", "h4", "h5", "h6", "li", "pre", "tr", "hr"})


def shown(nodes: Sequence[Node]) -> str:
    """The text that a reader sees of *nodes*, each block on lines of its own."""
    text = ""
    for piece in _shown(nodes):
        if piece is not None:
            text += piece
        elif not text.endswith("\n"):
            text += "\n"
    return text.strip("\n")


def _shown(nodes: Sequence[Node]) -> Iterator[str | None]:
    """Pieces of text; None where a block ends."""
    for node in nodes:
        if isinstance(node, str):
            yield node
            continue
        tag, attributes, children = node
        if tag == "br":
            yield "\n"
        if "value" in attributes:
            yield f"{attributes['value']}. "
        yield from _shown(children)
        if tag in _BLOCKS:
            yield None
