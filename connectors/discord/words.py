"""The words of a message, with short ones in brackets for what is shown without words. Pure."""

from __future__ import annotations

import discord

_LONGEST = 500
"""Characters of one embed or poll."""


def words_of(message: discord.Message | discord.MessageSnapshot) -> str:
    """What *message* says, references to people and channels still as Discord writes them."""
    return "\n".join([*([message.content] if message.content else []), *shown_in(message)])


def shown_in(message: discord.Message | discord.MessageSnapshot) -> list[str]:
    """What *message* shows besides its text, each in brackets."""
    shown = [
        *(f"sticker: {sticker.name}" for sticker in message.stickers),
        *(_embed(embed) for embed in message.embeds),
        *(_poll(poll) for poll in _polls(message)),
    ]
    return [f"[{one}]" for one in shown if one]


def title_of_post(message: discord.Message) -> list[str]:
    """The title of the forum post that *message* begins, in brackets; nothing for other messages."""
    thread = message.channel
    if not isinstance(thread, discord.Thread) or thread.id != message.id:
        return []
    return [f"[post: {thread.name}]"] if isinstance(thread.parent, discord.ForumChannel) else []


def _embed(embed: discord.Embed) -> str:
    """Only what an app wrote: other embeds are Discord's previews of links, which their author did not write."""
    if embed.type != "rich":
        return ""
    fields = [f"{field.name}: {field.value}" for field in embed.fields]
    said = " – ".join(" ".join(part.split()) for part in (embed.title, embed.description, *fields) if part)
    return f"embed: {_short(said)}" if said else ""


def _polls(message: discord.Message | discord.MessageSnapshot) -> list[discord.Poll]:
    return [message.poll] if isinstance(message, discord.Message) and message.poll is not None else []


def _poll(poll: discord.Poll) -> str:
    answers = " / ".join(answer.text for answer in poll.answers if answer.text)
    return f"poll: {_short(f'{poll.question} – {answers}')}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
