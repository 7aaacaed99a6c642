"""Replies and signs as calls of the Bot API. Pure. (`connectors.telegram.updates` is the way in.)

`to_parts` renders a reply as HTML and cuts it. The other functions build the calls for a place, a part or a receipt.
They raise `ValueError` for an id that is none of Telegram's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from aiogram.methods import (
    AnswerCallbackQuery,
    DeleteMessage,
    EditMessageReplyMarkup,
    EditMessageText,
    SendChatAction,
    SendDocument,
    SendMessage,
    SetMessageReaction,
)
from aiogram.types import (
    BotCommand,
    BufferedInputFile,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    ReactionTypeEmoji,
    ReplyParameters,
)

from connectors.connector import CommandHint
from connectors.message import OutboundMessage, OutboundPart, Receipt
from connectors.text import TELEGRAM_HTML, cut_reply, outbound_parts, sources_form, utf16_units

CONNECTOR = "telegram"

MAX_TEXT_UNITS = 4096
"""Bot API, sendMessage: "1-4096 characters after entities parsing", counted in UTF-16 code units."""

GROUP_MESSAGES_A_MINUTE = 20
"""Bot FAQ, "My bot is hitting limits": "In a group, bots are not be able to send more than 20 messages per minute."
Edits count: "Limits for message editing and sending are shared" (the server's maintainer, tdlib/td issue 3034)."""

HTML = "html"
"""The payload of a part whose text is HTML. Any other part is plain text."""

MAX_COMMANDS = 100
"""Bot API, setMyCommands: "At most 100 commands can be specified"."""

MAX_COMMAND_DESCRIPTION = 256
"""Bot API, BotCommand: "1-256 characters"."""

MAX_BUTTONS = 8
"""Telegram's apps show this many in one row."""

_COMMAND_NAME = re.compile(r"[a-z0-9_]{1,32}")
_EMOJI_STYLE = "\ufe0f"
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)


# A reply as parts


def to_parts(message: OutboundMessage, max_parts: int) -> tuple[OutboundPart, ...]:
    """Render *message* as HTML parts within Telegram's limit; none if nothing in its text can be seen.

    More than *max_parts* parts become the first part and a file. The sources follow the last text, as an expandable
    quotation.
    """
    sources = TELEGRAM_HTML.render(sources_form(message))
    footer = f"\n\n<blockquote expandable>{sources}</blockquote>" if sources else ""
    limit_with_sources = MAX_TEXT_UNITS - TELEGRAM_HTML.size(footer)
    texts, sources_at = cut_reply(message.text, TELEGRAM_HTML, MAX_TEXT_UNITS, limit_with_sources, max_parts)
    if texts:
        texts[sources_at] += footer
    return outbound_parts(message, texts, HTML, max_parts)


def without_formatting(part: OutboundPart) -> OutboundPart:
    """Return *part* as plain text, with the URLs of its links if they fit."""
    if part.payload != HTML:
        return part
    text = TELEGRAM_HTML.visible_text_with_urls(part.text)
    if utf16_units(text) > MAX_TEXT_UNITS:
        text = TELEGRAM_HTML.visible_text(part.text)
    return replace(part, text=text, payload="plain")


# Places and receipts


def split_place(external_id: str) -> tuple[int, int | None]:
    """Return the chat of an external id, and its topic if it has one."""
    chat, slash, topic = external_id.partition("/")
    return int(chat), int(topic) if slash else None


def in_chat(message: OutboundMessage, chat: int) -> OutboundMessage:
    """Return *message* for *chat*, the supergroup that its group became, and the same topic."""
    _, slash, topic = message.key.external_id.partition("/")
    return replace(message, key=replace(message.key, external_id=f"{chat}{slash}{topic}"))


def in_receipt_chat(message: OutboundMessage, receipt: Receipt) -> tuple[OutboundMessage, Receipt]:
    """Return *message* in the chat that *receipt* names (``chat/message``), and the receipt as that chat knows it.

    A receipt names a chat if it is not that of *message*. A supergroup numbers its messages anew.
    """
    chat, slash, message_id = receipt.message_id.rpartition("/")
    return (in_chat(message, int(chat)), Receipt(message_id)) if slash else (message, receipt)


# Calls


def to_send(message: OutboundMessage, part: OutboundPart) -> SendMessage | SendDocument:
    """Return the call that sends *part*. The first part replies to the message that it answers."""
    chat, topic = split_place(message.key.external_id)
    reply = None
    if message.reply_to is not None and message.reply_to.isdecimal() and part.index == 0:
        reply = ReplyParameters(message_id=int(message.reply_to), allow_sending_without_reply=True)
    if part.file_name:
        return SendDocument(
            chat_id=chat,
            message_thread_id=topic,
            document=BufferedInputFile(part.text.encode("utf-8", "replace"), part.file_name),
            disable_content_type_detection=True,
            reply_parameters=reply,
        )
    return SendMessage(
        chat_id=chat,
        message_thread_id=topic,
        text=part.text,
        parse_mode=_parse_mode(part),
        link_preview_options=_NO_PREVIEW,
        reply_parameters=reply,
        reply_markup=_keyboard(message, part),
    )


def to_edit(message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> EditMessageText:
    """Return the call that replaces the message of *receipt* with *part*."""
    chat, _ = split_place(message.key.external_id)
    return EditMessageText(
        chat_id=chat,
        message_id=int(receipt.message_id),
        text=part.text,
        parse_mode=_parse_mode(part),
        link_preview_options=_NO_PREVIEW,
        reply_markup=_keyboard(message, part),
    )


def _parse_mode(part: OutboundPart) -> str | None:
    return "HTML" if part.payload == HTML else None


def _keyboard(message: OutboundMessage, part: OutboundPart) -> InlineKeyboardMarkup | None:
    if not message.buttons or part.index < part.total - 1:
        return None
    buttons = [
        InlineKeyboardButton(text=button.label, callback_data=button.command)
        for button in message.buttons[:MAX_BUTTONS]
    ]
    return InlineKeyboardMarkup(inline_keyboard=[buttons])


def to_delete(message: OutboundMessage, receipt: Receipt) -> DeleteMessage:
    """Return the call that deletes the message of *receipt*."""
    chat, _ = split_place(message.key.external_id)
    return DeleteMessage(chat_id=chat, message_id=int(receipt.message_id))


def to_button_answer(query_id: str, *, accepted: bool) -> AnswerCallbackQuery:
    """Return the call that ends the progress sign on a pressed button."""
    return AnswerCallbackQuery(callback_query_id=query_id, text=None if accepted else "I could not do that.")


def to_remove_buttons(chat: int, message_id: int) -> EditMessageReplyMarkup:
    """Return the call that removes the buttons below a message."""
    return EditMessageReplyMarkup(chat_id=chat, message_id=message_id)


def to_typing(external_id: str) -> SendChatAction:
    """Return the call that shows "typing…"."""
    chat, topic = split_place(external_id)
    return SendChatAction(chat_id=chat, message_thread_id=topic, action="typing")


def to_reaction(external_id: str, message_id: str, emoji: str) -> SetMessageReaction:
    """Return the call that puts *emoji* on a message. Telegram accepts some seventy emoji (ReactionTypeEmoji)."""
    chat, _ = split_place(external_id)
    reaction = ReactionTypeEmoji(emoji=emoji.replace(_EMOJI_STYLE, ""))  # Telegram's own have no variation selector
    return SetMessageReaction(chat_id=chat, message_id=int(message_id), reaction=[reaction])


def to_commands(hints: Sequence[CommandHint]) -> tuple[list[BotCommand], list[str]]:
    """Return *hints* as Telegram shows them, in their order, and the names of those that it cannot show."""
    commands: list[BotCommand] = []
    rejected: list[str] = []
    for hint in hints:
        if not _COMMAND_NAME.fullmatch(hint.name) or len(commands) == MAX_COMMANDS:
            rejected.append(hint.name)
            continue
        description = " – ".join(text for text in (hint.arguments, hint.summary) if text) or hint.name
        if len(description) > MAX_COMMAND_DESCRIPTION:
            description = description[: MAX_COMMAND_DESCRIPTION - 1].rstrip() + "…"
        commands.append(BotCommand(command=hint.name, description=description))
    return commands, rejected
