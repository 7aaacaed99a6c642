"""The one door for everything that people say: authorise, deduplicate, store, and only then acknowledge.

A connector calls `Gateway.accept` with each message. A message that is meant for the bot, from a person who may talk to
it and within the rate limit, is stored in the mailbox of its conversation, and the hub tells a worker. When `accept`
returns, the connector acknowledges the message to the platform; if it raises, nothing was stored and the platform
delivers again. Edits, deletions, reactions, joining and leaving also come in here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import structlog

from config.settings import Settings
from connectors.connector import Connector
from connectors.message import (
    INTERNAL_ERROR,
    Accepted,
    Button,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    Role,
    StoreUnavailable,
)
from connectors.text import cluster_edge
from grounding.transcript import Transcript
from runtime.access import Access, Admission, Decision, PairingRequest, RateLimit, wait_in_words
from runtime.background import Marking
from runtime.commands import Commands, ParsedCommand, code, escape_markdown, parse_command
from runtime.coordination import Hub
from runtime.delivery import Outbox, PreviewMode, Previews, address_of
from runtime.observability import event_context
from runtime.stores import NewerFormat
from runtime.turns import (
    AmendResult,
    DeadLetters,
    Envelope,
    Lane,
    Mailbox,
    MailboxFull,
    UnknownLetter,
    notify_deleted,
    notify_interrupted,
    notify_worker,
)
from runtime.workspaces import Places, PlaceSettings, Workspaces

MAX_ID_CHARACTERS = 512
MAX_NAME_CHARACTERS = 200
TOO_MANY = "You are writing faster than I can answer."
REFUSED = "I could not accept this message."
BEGINNING_CHARACTERS = 80
"""How much of a message a notice quotes."""
FULL_SECONDS = 30
"""The ``Retry-After`` if a mailbox is full."""
HELLO = "Hello! Mention me when you want to ask something; `/help` says what else I can do."
LET_IN = "Welcome! An admin has let you in. `/help` says what I can do."
TURNED_AWAY = "An admin has decided not to let you in. I cannot answer you, sorry."
SETTLE_SECONDS = 5.0
"""How often the gateway looks for pairing requests that another process has decided."""
_log = structlog.get_logger()
_UNFIT = re.compile(r"[\x00\ud800-\udfff]")
"""Characters that no store takes. In ids they are replaced, not dropped: the rest could be another person's id."""


class Gateway:
    """Accepts inbound messages for the *connectors* of this process."""

    def __init__(
        self,
        settings: Settings,
        *,
        workspaces: Workspaces,
        access: Access,
        limit: RateLimit,
        mailboxes: Mapping[Lane, Mailbox],
        outbox: Outbox,
        transcript: Transcript,
        commands: Commands,
        places: Places,
        connectors: Mapping[str, Connector],
        shows: Previews,
        hub: Hub,
        marking: Marking,
        dead_letters: DeadLetters,
    ) -> None:
        self._settings = settings
        self._workspaces = workspaces
        self._access = access
        self._limit = limit
        self._mailboxes = mailboxes
        self._outbox = outbox
        self._transcript = transcript
        self._commands = commands
        self._places = places
        self._connectors = connectors
        self._shows = shows
        self._hub = hub
        self._marking = marking
        self._dead_letters = dead_letters

    async def accept(self, message: InboundMessage) -> Accepted:
        """Store *message* if it is to be answered. When this returns, the platform may be told.

        Raises `connectors.message.StoreUnavailable` (nothing was stored: do not acknowledge) and
        `runtime.workspaces.UnknownWorkspace`.
        """
        message = _clean(message)
        if message.author.is_bot and not self._settings.answer_bots:
            return _ignored(message, "bot")
        if _is_empty(message):
            return _ignored(message, "empty")
        workspace_id = await self._workspaces.resolve(message)
        key = ConversationKey(workspace_id, message.connector, message.external_id)
        with event_context(workspace_id=workspace_id, context_id=key.context_id, connector=message.connector):
            match message.kind:
                case InboundKind.DELETE:
                    return await self._delete(message, key)
                case InboundKind.JOINED:
                    return await self._greet(message, key)
                case InboundKind.REACTION:
                    why = await self._marking.mark_by_reaction(message, key)
                    fields = {name: value for name, value in (("emoji", message.reaction), ("why", why)) if value}
                    _log.info("place.reaction", **fields)
                    return Accepted("ignored", message.kind.value, key=key)
                case InboundKind.LEFT:
                    _log.info("place.left")
                    return Accepted("ignored", message.kind.value, key=key)
                case _:
                    return await self._accept_text(message, key)

    # A message, a command or an edit

    async def _accept_text(self, message: InboundMessage, key: ConversationKey) -> Accepted:
        command, is_edit = parse_command(message), message.kind is InboundKind.EDIT
        if is_edit:  # a karma example may be older than anything the mailbox knows
            await self._marking.forget_message(key, message.message_id)
        settings = await self._places.settings_for(key, message)
        if not self._is_meant_for_us(message, command, settings) and not await self._was_meant_for_us(message, key):
            return _ignored(message, "not_addressed")
        decision = await self._access.authorise(message, key.workspace_id)  # may give a stranger a notice
        if not decision.allowed:
            return await self._turn_away(message, key, decision)
        is_admin = decision.role is Role.ADMIN and message.direct and message.caller_role is None
        if is_admin and await self._access.note_direct(message, key):
            for request in await self._access.pending():
                await self._ask_admins(request)
        if is_edit:
            amended = await self._amend(message, key, decision, settings)
            if amended is not None:
                return amended
            message = replace(message, kind=InboundKind.MESSAGE)  # the edit is the first version that is said to us
            command = parse_command(message)
        is_command = command is not None and self._commands.claims(command, decision.role)
        lane = Lane.COMMANDS if is_command else Lane.TURNS
        return await self._store(self._envelope(message, key, decision, settings), key, decision, lane)

    def _is_meant_for_us(self, message: InboundMessage, command: ParsedCommand | None, settings: PlaceSettings) -> bool:
        """Return whether *message* is said to the bot, by itself and by the settings of its place."""
        if message.direct or (message.caller_role is not None and message.addressed):
            return True
        if command is not None and self._commands.knows(command.word) and (message.addressed or command.sure):
            return True
        if command is not None and command.sure and not message.addressed:
            return False  # an unknown "/word" in a group is another bot's
        answering = settings.answering or self._settings.answer_in_groups
        return answering == "all" or (answering == "addressed" and message.addressed)

    async def _was_meant_for_us(self, message: InboundMessage, key: ConversationKey) -> bool:
        """Return whether *message* edits one that was said to the bot, even if the edit drops the mention."""
        if message.kind is not InboundKind.EDIT:
            return False
        return await self._mailboxes[Lane.TURNS].known(key, message.message_id) is not None

    async def _turn_away(self, message: InboundMessage, key: ConversationKey, decision: Decision) -> Accepted:
        request = decision.request
        if decision.notice and message.kind is not InboundKind.EDIT:
            text, notice_id = decision.notice, ""
            if not message.direct:  # others read along: say who is meant, and say it once
                name = f", {escape_markdown(message.author.name)}" if message.author.name else ""
                text = f"I do not know you yet{name}. {text}"
                notice_id = f"asked-{request.id}" if request is not None else ""
            await self._notify_author(key, text, message, notice_id)
        if request is not None:
            await self._ask_admins(request)
        return Accepted("refused", decision.why, key=key)

    def _envelope(
        self, message: InboundMessage, key: ConversationKey, decision: Decision, settings: PlaceSettings
    ) -> Envelope:
        connector = self._connectors.get(key.connector)
        draft = OutboundMessage(key, "", "", answers=(message.message_id,))
        return Envelope(
            message,
            decision.role,
            time.time(),
            origin=self._hub.name,
            address=self._address(key),
            watched=self._shows.watched(connector, draft) if connector else PreviewMode.NOT,
            queue=settings.queue or self._settings.queue_mode,
            shows_sources=self._settings.show_sources if settings.sources is None else settings.sources,
        )

    async def _store(self, envelope: Envelope, key: ConversationKey, decision: Decision, lane: Lane) -> Accepted:
        mailbox, message = self._mailboxes[lane], envelope.message
        if message.workspace_id is None:  # routing creates what it names, once somebody may talk there
            await self._workspaces.create(key.workspace_id)
        # Each lane has its own limit: a person over the limit can still say "stop".
        admission = await self._limit.admit(key, message, decision.role, bucket=lane.value)
        if not admission.allowed:
            if await mailbox.known(key, message.message_id) is not None:
                return await self._accept_duplicate(key, envelope, lane, admission)
            seconds = admission.retry_after_seconds
            _log.info("message.ignored", why="rate_limit")
            again = f"Please send it, and whatever you write before then, again {wait_in_words(seconds)}"
            await self._refuse(key, message, lane, f"{TOO_MANY} {REFUSED} {again}" if admission.first_refusal else "")
            return Accepted("refused", "rate_limit", retry_after_seconds=seconds, key=key)
        try:
            stored = await mailbox.store(key, envelope)
        except MailboxFull as error:
            _log.warning("message.ignored", why="mailbox_full")
            notice = f"{error.user_text} {REFUSED} Please send it again" if error.first else ""
            await self._refuse(key, message, lane, notice)
            return Accepted("refused", "mailbox_full", retry_after_seconds=FULL_SECONDS, key=key)
        if not stored.new:
            return await self._accept_duplicate(key, envelope, lane, admission)
        if not stored.held:
            await notify_worker(self._hub, lane, key)
        if stored.current_turn and envelope.queue == "interrupt" and lane is Lane.TURNS:
            await notify_interrupted(self._hub, stored.current_turn)
        _log.info("message.accepted", role=decision.role.value, direct=message.direct)
        return Accepted("stored", key=key)

    async def _refuse(self, key: ConversationKey, message: InboundMessage, lane: Lane, notice: str) -> None:
        """Tell the author with *notice*, if not empty, and keep *message* refused if the platform delivers it again.

        A caller over HTTP has the refusal in the response, and may repeat the request.
        """
        if message.caller_role is not None:
            return
        if notice:
            await self._notify_author(key, f"{notice}:\n\n> {code(beginning(message))}", message)
        await self._mailboxes[lane].refuse(key, message.message_id)

    async def _accept_duplicate(
        self, key: ConversationKey, envelope: Envelope, lane: Lane, admission: Admission
    ) -> Accepted:
        """Answer a message that was stored before, with its reply if there is one.

        If its turn was given up and a program repeats it, it is tried again.
        """
        _log.info("message.duplicate")
        message, mailbox = envelope.message, self._mailboxes[lane]
        message_id, address = message.message_id, self._address(key)
        if "@" in address:  # the caller waits here, and may have asked at another process before
            await self._outbox.expect(key, message_id, address)
        turn_id = await mailbox.turn_of(key, message_id)
        reply = await self._outbox.load(key, turn_id) if turn_id else None
        if reply is not None and message_id not in reply.answers:
            reply = None
        is_given_up = reply is not None and reply.error_code == INTERNAL_ERROR and message.caller_role is not None
        if not is_given_up:
            return Accepted("duplicate", reply=reply, key=key)
        if not admission.allowed:
            return Accepted("refused", "rate_limit", retry_after_seconds=admission.retry_after_seconds, key=key)
        try:
            await self._try_again(key, envelope, lane, turn_id)
        except MailboxFull:
            return Accepted("refused", "mailbox_full", retry_after_seconds=FULL_SECONDS, key=key)
        return Accepted("duplicate", key=key)

    async def _try_again(self, key: ConversationKey, envelope: Envelope, lane: Lane, turn_id: str) -> None:
        """Have the messages of the given-up turn *turn_id* answered by a new turn, once. Raises `MailboxFull`."""
        try:
            await self._dead_letters.retry(key.scope, turn_id)
        except UnknownLetter:  # it is being tried again already; or it was dropped, and only this message is left
            if await self._mailboxes[lane].put_back(key, turn_id, [envelope]):
                await notify_worker(self._hub, lane, key)

    # Edits and deletions

    async def _amend(
        self, message: InboundMessage, key: ConversationKey, decision: Decision, settings: PlaceSettings
    ) -> Accepted | None:
        """Apply an edit to the waiting message or to the transcript; None if the message was never said to the bot."""
        envelope = self._envelope(replace(message, kind=InboundKind.MESSAGE), key, decision, settings)
        result = await self._mailboxes[Lane.TURNS].amend(key, message.message_id, envelope)
        if result is AmendResult.UNKNOWN:
            return None
        if result is not AmendResult.AMENDED:
            await self._transcript.amend(key, message.message_id, message.text)
            await self._marking.forget_message(key, message.message_id)
        _log.info("message.edited", state=result.value)
        return Accepted("ignored", InboundKind.EDIT.value, key=key)

    async def _delete(self, message: InboundMessage, key: ConversationKey) -> Accepted:
        """Forget a deleted message, and do not answer it unless people see its answer already.

        The author need not be known: the platform decides who may delete.
        """
        mailbox = self._mailboxes[Lane.TURNS]
        result = await mailbox.amend(key, message.message_id, None)
        if result in (AmendResult.ANSWERING, AmendResult.ANSWERED):
            await self._transcript.amend(key, message.message_id, "")
        if result is AmendResult.ANSWERING and (turn_id := await mailbox.drop(key, message.message_id)):
            await notify_deleted(self._hub, turn_id)
        await self._access.withdraw(message, key.workspace_id)
        await self._marking.forget_message(key, message.message_id)  # last: it may be marked until its words are gone
        if result is not AmendResult.UNKNOWN:
            _log.info("message.deleted", state=result.value)
        return Accepted("ignored", InboundKind.DELETE.value, key=key)

    async def _greet(self, message: InboundMessage, key: ConversationKey) -> Accepted:
        """Say hello in a group to which a person who may talk has brought the bot."""
        _log.info("place.joined")
        user = message.author.user(key.connector)
        if message.author.id and not message.direct and await self._access.may_talk(user, key.workspace_id):
            hello = self._commands.as_written(HELLO, message.command_mark)
            await self._outbox.notice(key, self._address(key), hello, turn_id=f"joined-{message.message_id}")
        return Accepted("ignored", message.kind.value, key=key)

    # Strangers who ask to be let in

    async def run(self) -> NoReturn:
        """Tell people what was decided of their pairing requests, and answer their messages, until cancelled."""
        while True:
            self._access.decided.clear()
            try:
                for request in await self._access.unsettled():
                    await self._settle(request)
            except (StoreUnavailable, NewerFormat) as error:
                _log.warning("store.degraded", store="redis", why=str(error))
            except Exception:  # noqa: BLE001 - one request must not end the process; it is tried again
                _log.exception("access.unsettled")
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._access.decided.wait()

    async def _settle(self, request: PairingRequest) -> None:
        """Tell one person, and answer their messages. Each step may be repeated: notices have ids, messages too."""
        is_in = request.state == "approved"
        # Others should not read that somebody was turned away.
        first = next((one for one in request.messages if one.direct or is_in), None)
        if first is not None:
            key = ConversationKey(request.workspace_id, first.connector, first.external_id)
            text = self._commands.as_written(LET_IN if is_in else TURNED_AWAY, first.command_mark)
            reply_to = None if first.direct else first.message_id
            await self._outbox.notice(key, self._address(key), text, turn_id=f"pairing-{request.id}", reply_to=reply_to)
        if is_in:
            for message in request.messages:
                await self.accept(message)
        await self._access.settled(request)

    async def _ask_admins(self, request: PairingRequest) -> None:
        """Tell the admins of the workspace, once, that a stranger asks to be let in."""
        if request.state != "waiting" or not request.messages:
            return
        approve, deny = f"pair approve {request.code}", f"pair deny {request.code}"
        places = " and ".join(code(place) if place else "a direct message" for place in request.asked_in)
        text = (
            f"{escape_markdown(request.name) or 'Somebody'} ({code(request.user)}) asks to talk to me in the workspace "
            f"{code(request.workspace_id)}, and wrote in {places}:\n\n> {code(beginning(request.messages[0]))}\n\n"
            f"{code('/' + approve)} lets them in, {code('/' + deny)} rejects the request."
        )
        buttons = (Button("Approve", approve), Button("Deny", deny))
        for key in await self._access.admins_to_tell(request.workspace_id):
            connector = self._connectors.get(key.connector)  # the admin's, which may be another platform
            written = self._commands.as_written(text, connector.capabilities.command_mark if connector else "/")
            await self._outbox.notice(
                key, self._address(key), written, turn_id=f"pairing-{request.id}", buttons=buttons
            )

    # Notices

    def _address(self, key: ConversationKey) -> str:
        connector = self._connectors.get(key.connector)
        return address_of(connector, self._hub.name) if connector else key.connector

    async def _notify_author(self, key: ConversationKey, text: str, message: InboundMessage, turn_id: str = "") -> None:
        """Send a notice to the author of *message*, in a group as a reply to it; once for one *turn_id*, if given."""
        text = self._commands.as_written(text, message.command_mark)
        reply_to = None if message.direct else message.message_id
        await self._outbox.notice(key, self._address(key), text, (message.message_id,), turn_id, reply_to)


def beginning(message: InboundMessage) -> str:
    """Return how *message* begins, in one line without the marks of Markdown that end a quotation. Pure."""
    words = " ".join(message.text.replace("`", "'").split())
    words = words or ", ".join(one.name.replace("`", "'") for one in message.attachments) or "…"
    if len(words) <= BEGINNING_CHARACTERS:
        return words
    return words[: cluster_edge(words, BEGINNING_CHARACTERS)].rstrip() + " …"


def _is_empty(message: InboundMessage) -> bool:
    if message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND, InboundKind.EDIT):
        return False
    return not message.text.strip() and not message.attachments and message.quote is None


def _ignored(message: InboundMessage, why: str) -> Accepted:
    _log.info("message.ignored", why=why, connector=message.connector)
    return Accepted("ignored", why)


def _clean(message: InboundMessage) -> InboundMessage:
    """Return *message* with text that every store and model takes: no lone surrogates, no NUL, no endless ids."""
    author = message.author
    author = replace(author, id=_UNFIT.sub("\ufffd", author.id)[:MAX_ID_CHARACTERS], name=_clean_name(author.name))
    quote = message.quote and replace(
        message.quote, author=_clean_name(message.quote.author), text=_clean_text(message.quote.text)
    )
    attachments = tuple(replace(one, name=_clean_name(one.name)) for one in message.attachments)
    return replace(message, text=_clean_text(message.text), author=author, quote=quote, attachments=attachments)


def _clean_text(text: str, limit: int | None = None) -> str:
    return text.encode("utf-8", "replace").decode()[:limit].replace("\x00", "")


def _clean_name(name: str) -> str:
    return " ".join(_clean_text(name, MAX_NAME_CHARACTERS).split())
