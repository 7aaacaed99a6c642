"""Telegram, on aiogram. `connectors.telegram.connector.TelegramConnector` is the bot.

This face loads no SDK: `examine` asks Telegram about the bot, `place_of` names the chat of a workspace id.
"""

from connectors.telegram.check import examine, place_of

REPLY_HINT = "Open with a brief acknowledgement of what was asked, then answer in short paragraphs made for a phone."
"""Tells the model how replies should read on Telegram."""

__all__ = ["REPLY_HINT", "examine", "place_of"]
