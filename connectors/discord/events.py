"""Which of our nouns an event of discord.py's becomes. Looks things up in the client's memory, no I/O."""

from __future__ import annotations

from typing import Any

import discord

from connectors.discord import convert
from connectors.message import InboundKind, InboundMessage


def heard(client: discord.Client, me: int, event: str, args: tuple[Any, ...]) -> tuple[InboundMessage, ...]:
    """What *event* (discord.py's name of it) with *args* says to the bot whose user id is *me*."""
    match event:
        case "message":
            return _one(convert.from_message(args[0], me))
        case "raw_message_edit":
            return _one(convert.from_edit(args[0], me))
        case "raw_message_delete":
            return _deleted(client, me, args[0])
        case "raw_bulk_message_delete":
            return _all_deleted(client, me, args[0])
        case "raw_reaction_add" | "raw_reaction_remove":
            event_of: discord.RawReactionActionEvent = args[0]
            place = _place(client, event_of.channel_id, event_of.guild_id)
            return _one(convert.from_reaction(event_of, place, me))
        case "guild_join":
            return (convert.from_membership(args[0], me, InboundKind.JOINED),)
        case "guild_remove":
            return (convert.from_membership(args[0], me, InboundKind.LEFT),)
        case _:
            return ()


def place_of(interaction: discord.Interaction[Any]) -> convert.Place:
    """Where somebody gave a command. Raises `TypeError` where nothing can be said."""
    if not isinstance(interaction.channel, convert.Place):
        raise TypeError("an interaction in a place without messages")
    return interaction.channel


def _one(message: InboundMessage | None) -> tuple[InboundMessage, ...]:
    return () if message is None else (message,)


def _deleted(client: discord.Client, me: int, event: discord.RawMessageDeleteEvent) -> tuple[InboundMessage, ...]:
    place = _place(client, event.channel_id, event.guild_id)
    return _one(convert.from_delete(event.message_id, event.cached_message, place, me))


def _all_deleted(
    client: discord.Client, me: int, event: discord.RawBulkMessageDeleteEvent
) -> tuple[InboundMessage, ...]:
    place = _place(client, event.channel_id, event.guild_id)
    remembered = {message.id: message for message in event.cached_messages}
    found = (convert.from_delete(one, remembered.get(one), place, me) for one in sorted(event.message_ids))
    return tuple(message for message in found if message is not None)


def _place(client: discord.Client, channel_id: int, guild_id: int | None) -> convert.Place:
    known = client.get_channel(channel_id)
    if isinstance(known, discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread):
        return known
    return client.get_partial_messageable(channel_id, guild_id=guild_id)
