"""The one door for everything that people say: authorise, deduplicate, store; only then acknowledge."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from connectors.message import Accepted, ConversationKey, InboundKind, InboundMessage
from runtime.access import Access
from runtime.limits import RateLimit
from runtime.mailbox import Envelope, Mailbox
from runtime.outbox import Outbox
from runtime.workspaces import Workspaces

MAX_ID_CHARACTERS = 512
MAX_NAME_CHARACTERS = 200
TOO_MANY = "You are writing faster than I can answer. Please wait {seconds} s and try again."
_log = structlog.get_logger()
# Marked and not taken out: what is left would be somebody else's id, or begin as no person's may.
_UNFIT = re.compile(r"[\x00\ud800-\udfff]")


class Gateway:
    """Accepts inbound messages. *wake* tells the worker that a conversation has something waiting."""

    def __init__(
        self,
        workspaces: Workspaces,
        access: Access,
        limit: RateLimit,
        mailbox: Mailbox,
        outbox: Outbox,
        wake: Callable[[ConversationKey], None],
    ) -> None:
        self._workspaces = workspaces
        self._access = access
        self._limit = limit
        self._mailbox = mailbox
        self._outbox = outbox
        self._wake = wake

    async def accept(self, message: InboundMessage) -> Accepted:
        """Store *message* if it is to be answered. When this returns, the platform may be told.

        Raises `connectors.message.StoreUnavailable` (nothing was stored: do not acknowledge) and
        `runtime.workspaces.UnknownWorkspace`.
        """
        message = _clean(message)
        why = _not_for_us(message)
        if why:
            _log.info("message.ignored", why=why, connector=message.connector)
            return Accepted("ignored", why)
        workspace_id = await self._workspaces.resolve(message)
        key = ConversationKey(workspace_id, message.connector, message.external_id)
        with structlog.contextvars.bound_contextvars(
            workspace_id=workspace_id, context_id=key.context_id, connector=message.connector
        ):
            return await self._accept(message, key)

    async def _accept(self, message: InboundMessage, key: ConversationKey) -> Accepted:
        decision = await self._access.authorise(message, key.workspace_id)
        if not decision.allowed:
            if decision.notice:
                await self._outbox.notice(key, decision.notice, (message.message_id,))
            return Accepted("refused", decision.why, key=key)
        known = await self._mailbox.known(key, message.message_id)
        if known is not None:
            return await self._duplicate(key, message.message_id)
        admission = await self._limit.admit(key, message, decision.role)
        if not admission.allowed:
            seconds = admission.retry_after_seconds
            _log.info("message.ignored", why="rate_limit")
            if admission.first_refusal and message.caller_role is None:
                await self._outbox.notice(key, TOO_MANY.format(seconds=seconds), (message.message_id,))
            return Accepted("refused", "rate_limit", retry_after_seconds=seconds, key=key)
        if message.workspace_id is None:
            await self._workspaces.create(
                key.workspace_id
            )  # routing creates what it names, once somebody may talk there
        stored = await self._mailbox.store(key, Envelope(message, decision.role, time.time()))
        if not stored.new:
            return await self._duplicate(key, message.message_id)
        self._wake(key)
        _log.info("message.accepted", role=decision.role.value, direct=message.direct)
        return Accepted("stored", key=key)

    async def _duplicate(self, key: ConversationKey, message_id: str) -> Accepted:
        """A reply is stored before its turn is over, so that the turn at hand may have the answer already."""
        _log.info("message.duplicate")
        turn_id = await self._mailbox.turn_of(key, message_id)
        reply = await self._outbox.load(key, turn_id) if turn_id else None
        if reply is not None and message_id not in reply.answers:
            reply = None
        return Accepted("duplicate", reply=reply, key=key)


def _not_for_us(message: InboundMessage) -> str:
    """Why *message* is not to be answered by anybody, in one word; empty where it may be."""
    if message.kind is not InboundKind.MESSAGE:
        return message.kind.value
    if message.author.is_bot:
        return "bot"
    if not message.addressed:
        return "not_addressed"
    if not message.text.strip() and not message.attachments and message.quote is None:
        return "empty"
    return ""


def _clean(message: InboundMessage) -> InboundMessage:
    """*message* with text that every store and model takes: no lone surrogates, no NUL, no endless ids."""
    author = replace(
        message.author, id=_UNFIT.sub("\ufffd", message.author.id)[:MAX_ID_CHARACTERS], name=_name(message.author.name)
    )
    quote = message.quote and replace(message.quote, author=_name(message.quote.author), text=_text(message.quote.text))
    attachments = tuple(replace(one, name=_name(one.name)) for one in message.attachments)
    return replace(message, text=_text(message.text), author=author, quote=quote, attachments=attachments)


def _text(text: str, limit: int | None = None) -> str:
    return text.encode("utf-8", "replace").decode()[:limit].replace("\x00", "")


def _name(name: str) -> str:
    return " ".join(_text(name, MAX_NAME_CHARACTERS).split())
