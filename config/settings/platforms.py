"""Settings of the platforms, the bot's behaviour on them, and files attached to messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, SecretStr

from config.settings.types import Positive, PositiveSeconds, Rate, WebUrl, prefixed_secret, url_validator


class PlatformSettings(BaseModel):
    """Settings of the platforms and the bot's behaviour on them."""

    # Platforms. A platform is on if its token is set.
    slack_bot_token: Annotated[SecretStr | None, prefixed_secret("xoxb-")] = None
    """The app's Bot User OAuth Token. Set: Slack is on; it needs one of the next two as well."""
    slack_app_token: Annotated[SecretStr | None, prefixed_secret("xapp-")] = None
    """An app-level token with connections:write. Set: events come by Socket Mode."""
    slack_signing_secret: SecretStr | None = None
    """Without SLACK_APP_TOKEN: events come over HTTP, at /slack/events, and are checked with this."""
    slack_api_base: WebUrl = "https://slack.com/api/"
    """Where the Web API is; it also says where Socket Mode connects to."""
    slack_timeout_seconds: PositiveSeconds = 20.0
    """Time limit of one call to Slack."""
    telegram_bot_token: SecretStr | None = None
    """From @BotFather. Set: Telegram is on."""
    telegram_api_base: WebUrl = "https://api.telegram.org"
    """Where the Bot API is."""
    telegram_timeout_seconds: PositiveSeconds = 20.0
    """Time limit of one call to Telegram."""
    telegram_sends_per_second: Rate = 30.0
    """Messages a second to all chats together, after a burst of four seconds' worth. Telegram allows 30, and more if
    you pay for broadcasts. 0: no limit of ours. Pauses that Telegram asks for are always kept."""
    telegram_poll_seconds: Positive = 30
    """How long one poll waits for updates."""
    telegram_webhook_secret: SecretStr | None = None
    """1 to 256 of A-Z, a-z, 0-9, _ and -. Set: updates are posted to /telegram/webhook, registered at HTTP_PUBLIC_URL.
    Unset: updates come by long polling."""
    discord_bot_token: SecretStr | None = None
    """From the Developer Portal, under Bot, where Message Content Intent has to be on. Set: Discord is on."""
    discord_api_base: WebUrl = "https://discord.com/api/v10"
    """Where the REST API is."""
    discord_gateway_url: Annotated[str, url_validator("ws", "wss")] = "wss://gateway.discord.gg/"
    """Where the gateway is; another than Discord's own is used for resuming, too."""
    discord_timeout_seconds: PositiveSeconds = 20.0
    """Time limit of one request to Discord; waiting for rate limits comes on top."""

    # How the bot behaves on platforms.
    stream_replies: bool = True
    """Show replies while they are written, on platforms that can."""
    acknowledgement_reaction: str = ""
    """An emoji that is put on a message while it is being answered, e.g. 👀. Unset: none."""
    answer_in_groups: Literal["addressed", "all", "never"] = "addressed"
    """Which messages in groups and channels are answered: addressed (mentions and replies), all, or never. /answer
    changes it in one place."""
    answer_bots: bool = False
    """Answer messages of other bots."""
    reply_max_parts: Positive = 5
    """A reply of more platform messages than this is sent as its beginning and a file."""

    # Files attached to messages.
    attachment_max_bytes: Positive = 10_000_000
    """Largest file that is read."""
    attachment_max_pages: Positive = 50
    """Pages, sheets or slides that are read of one file."""
    attachment_timeout_seconds: PositiveSeconds = 30.0
    """Time limit of fetching one file, and of reading it."""
