"""Telegram."""

REPLY_HINT = "Open with a brief acknowledgement of what was asked, then answer in short paragraphs made for a phone."
"""What the model is told of how replies read on Telegram."""
