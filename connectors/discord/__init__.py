"""Discord, on discord.py. `connectors.discord.connector.DiscordConnector` is the bot.

This face loads no SDK: `examine` asks Discord about the bot, `place_of` names the place of a workspace id.
"""

from connectors.discord.check import examine, invitation, place_of

REPLY_HINT = "Write for a chat: short paragraphs and lists; small tables only."
"""Tells the model how replies should read on Discord."""

__all__ = ["REPLY_HINT", "examine", "invitation", "place_of"]
