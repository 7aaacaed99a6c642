"""Discord."""

REPLY_HINT = "Write for a chat: short paragraphs and lists; small tables only."
"""What the model is told of how replies read on Discord."""
