"""Markdown, converted to what each platform shows, in parts that fit. Pure.

`cut_reply` renders a reply in a platform's `Dialect` and cuts it; `outbound_parts` turns the texts into numbered parts;
`to_page_tree` is the form for the chat page.
"""

from connectors.text.edges import cluster_edge, join_around, utf16_units, without_lone_surrogates
from connectors.text.markdown import markdown_tokens, parse_markdown
from connectors.text.page_tree import Node, link_addresses, remove_breaks, to_page_tree
from connectors.text.render import DISCORD_MARKDOWN, SLACK_MRKDWN, TELEGRAM_HTML, Dialect, escape_mrkdwn, wrap_text
from connectors.text.sources import sources_form, sources_line, without_sources
from connectors.text.split import cut_reply, outbound_parts

__all__ = [
    "DISCORD_MARKDOWN",
    "SLACK_MRKDWN",
    "TELEGRAM_HTML",
    "Dialect",
    "Node",
    "cluster_edge",
    "cut_reply",
    "escape_mrkdwn",
    "join_around",
    "link_addresses",
    "markdown_tokens",
    "outbound_parts",
    "parse_markdown",
    "remove_breaks",
    "sources_form",
    "sources_line",
    "to_page_tree",
    "utf16_units",
    "without_lone_surrogates",
    "without_sources",
    "wrap_text",
]
