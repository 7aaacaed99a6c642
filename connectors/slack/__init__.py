"""Slack, over Socket Mode or HTTP events. `connectors.slack.connector.SlackConnector` is the bot.

This face loads no SDK: `examine` asks Slack about the bot's tokens, `place_of` names the team of a workspace id.
"""

from connectors.slack.check import examine, place_of

REPLY_HINT = "Open with a brief acknowledgement of what was asked, then answer in short paragraphs with plain headings."
"""Tells the model how replies read on Slack."""

__all__ = ["REPLY_HINT", "examine", "place_of"]
