"""Slack."""

REPLY_HINT = "Open with a brief acknowledgement of what was asked, then answer in short paragraphs with plain headings."
"""What the model is told of how replies read on Slack."""
