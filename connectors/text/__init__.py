"""Markdown, converted to what each platform shows, in parts that fit. Pure."""

from connectors.text.parse import parse, tokens
from connectors.text.parts import can_be_seen, outbound_parts, parts
from connectors.text.render import escape, mrkdwn_render
from connectors.text.sources import cut_for_sources, join_around, sources_form, sources_line, without_sources
from connectors.text.split import characters, cluster_edge, utf16_units
from connectors.text.tree import Node, tree, with_links, without_breaks

__all__ = [
    "Node",
    "can_be_seen",
    "characters",
    "cluster_edge",
    "cut_for_sources",
    "escape",
    "join_around",
    "mrkdwn_render",
    "outbound_parts",
    "parse",
    "parts",
    "sources_form",
    "sources_line",
    "tokens",
    "tree",
    "utf16_units",
    "with_links",
    "without_breaks",
    "without_sources",
]
