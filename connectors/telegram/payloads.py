"""Our parts and signs as Telegram's methods. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
from connectors.text import (
    can_be_seen,
    cut_for_sources,
    outbound_parts,
    parse,
    parts,
    render,
    sources_form,
    utf16_units,
)

CONNECTOR = "telegram"

MAX_TEXT_UNITS = 4096
"""Bot API, sendMessage: "1-4096 characters after entities parsing", counted in UTF-16 code units."""

GROUP_MESSAGES_A_MINUTE = 20
"""Bot FAQ, "My bot is hitting limits": "In a group, bots are not be able to send more than 20 messages per minute."
Edits count: "Limits for message editing and sending are shared" (the server's maintainer, tdlib/td issue 3034)."""

HTML = "html"
"""The payload of a part whose text is HTML; any other is plain."""

MAX_COMMANDS = 100
"""Bot API, setMyCommands: "At most 100 commands can be specified"."""

MAX_COMMAND_DESCRIPTION = 256
"""Bot API, BotCommand: "1-256 characters"."""

REACTIONS = frozenset(
    re.findall(
        r"\S+",
        "❤ 👍 👎 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u200d🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 "
        "🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨\u200d💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 "
        "🤷\u200d♂ 🤷 🤷\u200d♀ 😡",
    )
)
"""Bot API, ReactionTypeEmoji: the only emoji with which a bot may react; ✅ and ⏳ are not among them."""

MAX_BUTTONS = 8
"""In one row, as Telegram's apps show them."""

_COMMAND_NAME = re.compile(r"[a-z0-9_]{1,32}")
_EMOJI_STYLE = "\ufe0f"
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)


def to_parts(message: OutboundMessage, max_parts: int) -> tuple[OutboundPart, ...]:
    """*message* as HTML within Telegram's limit; none for a text in which nothing can be seen.

    More than *max_parts* become the first and a file. Parts without anything visible are left out: Telegram
    refuses them as empty. Surrogates without their other half, which no protocol can carry, are replaced by U+FFFD.
    The sources stand below the last text, as an expandable quotation.
    """
    form = parse(message.text)

    def cut(limit: int) -> list[str]:
        return [
            part for part in parts(form, limit, render.size, render.render) if can_be_seen(render.visible_text(part))
        ]

    sources = render.render(sources_form(message))
    below = f"\n\n<blockquote expandable>{sources}</blockquote>" if sources else ""
    texts, last = cut_for_sources(cut, MAX_TEXT_UNITS, MAX_TEXT_UNITS - render.size(below), render.size, max_parts)
    if texts:
        texts[last] += below
    return outbound_parts(message, texts, HTML, max_parts)


def without_formatting(part: OutboundPart) -> OutboundPart:
    """*part* as plain text, with the addresses of its links as far as they find room."""
    if part.payload != HTML:
        return part
    text = render.visible_text_with_urls(part.text)
    if utf16_units(text) > MAX_TEXT_UNITS:
        text = render.visible_text(part.text)
    return replace(part, text=text, payload="plain")


def to_place(external_id: str) -> tuple[int, int | None]:
    """Chat and topic of an external id. Raises `ValueError` when it is none of Telegram's."""
    chat, slash, topic = external_id.partition("/")
    return int(chat), int(topic) if slash else None


def moved(message: OutboundMessage, now: Callable[[int], int]) -> OutboundMessage:
    """*message* in the chat that its chat is by *now*; as it is where that is the same or no chat of Telegram's."""
    chat, slash, topic = message.key.external_id.partition("/")
    if not chat.lstrip("-").isdecimal() or now(int(chat)) == int(chat):
        return message
    return replace(message, key=replace(message.key, external_id=f"{now(int(chat))}{slash}{topic}"))


def receipt_of(message: OutboundMessage, now: OutboundMessage, message_id: int) -> Receipt:
    """The receipt of *message*, which was said as *now*: where that is another chat, the receipt names it, so that
    whichever process changes the message finds it. A supergroup counts its messages anew."""
    if now is message:
        return Receipt(str(message_id))
    return Receipt(f"{to_place(now.key.external_id)[0]}/{message_id}")


def where_it_stands(message: OutboundMessage, receipt: Receipt) -> tuple[OutboundMessage, Receipt]:
    """*message* in the chat in which that of *receipt* was said, and its receipt there: the former chat of a group
    knows only what was said before it moved, and of what was said since only the present one."""
    chat, named, message_id = receipt.message_id.rpartition("/")
    return (moved(message, lambda _: int(chat)), Receipt(message_id)) if named else (message, receipt)


def to_send(message: OutboundMessage, part: OutboundPart) -> SendMessage | SendDocument:
    """The call that says *part* in its place; the first part hangs at the message that it replies to."""
    chat, topic = to_place(message.key.external_id)
    reply = None
    if message.reply_to is not None and message.reply_to.isdecimal() and part.index == 0:
        reply = ReplyParameters(message_id=int(message.reply_to), allow_sending_without_reply=True)
    if part.file_name:
        return SendDocument(
            chat_id=chat,
            message_thread_id=topic,
            document=_file(part),
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
    """The call that replaces the message of *receipt* by *part*."""
    chat, _ = to_place(message.key.external_id)
    message_id = int(receipt.message_id)
    return EditMessageText(
        chat_id=chat,
        message_id=message_id,
        text=part.text,
        parse_mode=_parse_mode(part),
        link_preview_options=_NO_PREVIEW,
        reply_markup=_keyboard(message, part),
    )


def to_answer(query_id: str, *, taken: bool) -> AnswerCallbackQuery:
    """The call that ends the sign which Telegram shows on a button that was pressed."""
    return AnswerCallbackQuery(callback_query_id=query_id, text=None if taken else "I could not do that.")


def without_buttons(chat: int, message_id: int) -> EditMessageReplyMarkup:
    """The call that takes the buttons below a message away."""
    return EditMessageReplyMarkup(chat_id=chat, message_id=message_id)


def _keyboard(message: OutboundMessage, part: OutboundPart) -> InlineKeyboardMarkup | None:
    if not message.buttons or part.index < part.total - 1:
        return None
    row = [InlineKeyboardButton(text=one.label, callback_data=one.command) for one in message.buttons[:MAX_BUTTONS]]
    return InlineKeyboardMarkup(inline_keyboard=[row])


def to_delete(message: OutboundMessage, receipt: Receipt) -> DeleteMessage:
    """The call that takes the message of *receipt* away."""
    chat, _ = to_place(message.key.external_id)
    return DeleteMessage(chat_id=chat, message_id=int(receipt.message_id))


def to_typing(external_id: str) -> SendChatAction:
    """The call that shows "typing…" in a place."""
    chat, topic = to_place(external_id)
    return SendChatAction(chat_id=chat, message_thread_id=topic, action="typing")


def may_react(emoji: str) -> bool:
    """Whether Telegram lets bots react with *emoji*, or it is the empty one that takes the reaction away."""
    return not emoji or _reaction(emoji) in REACTIONS


def to_reaction(external_id: str, message_id: str, emoji: str) -> SetMessageReaction:
    """The call that puts *emoji* on a message (takes the bot's away when empty)."""
    chat, _ = to_place(external_id)
    return SetMessageReaction(
        chat_id=chat,
        message_id=int(message_id),
        reaction=[ReactionTypeEmoji(emoji=_reaction(emoji))] if emoji else [],
    )


def _reaction(emoji: str) -> str:
    return emoji.replace(_EMOJI_STYLE, "")  # Telegram's own are written without it


def to_commands(hints: Sequence[CommandHint]) -> tuple[list[BotCommand], list[str]]:
    """*hints* as Telegram shows them, in their order, and the names of those that it cannot show."""
    shown: list[BotCommand] = []
    unfit: list[str] = []
    for hint in hints:
        if not _COMMAND_NAME.fullmatch(hint.name) or len(shown) == MAX_COMMANDS:
            unfit.append(hint.name)
            continue
        said = " – ".join(text for text in (hint.arguments, hint.summary) if text) or hint.name
        if len(said) > MAX_COMMAND_DESCRIPTION:
            said = said[: MAX_COMMAND_DESCRIPTION - 1].rstrip() + "…"
        shown.append(BotCommand(command=hint.name, description=said))
    return shown, unfit


def _file(part: OutboundPart) -> BufferedInputFile:
    return BufferedInputFile(part.text.encode("utf-8", "replace"), part.file_name)


def _parse_mode(part: OutboundPart) -> str | None:
    return "HTML" if part.payload == HTML else None
