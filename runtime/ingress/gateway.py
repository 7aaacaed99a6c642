"""The one door for everything that people say: authorise, deduplicate, store; only then acknowledge."""

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
    GIVEN_UP,
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
from runtime.access import Access, Admission, Decision, RateLimit, Request, in_words
from runtime.background import Marking
from runtime.commands import Commands, Spoken, code, plain, spoken
from runtime.coordination import Hub
from runtime.delivery import Outbox, Shows, Watched, address_of
from runtime.observability import about
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
from runtime.workspaces import Places, Settled, Workspaces

MAX_ID_CHARACTERS = 512
MAX_NAME_CHARACTERS = 200
TOO_MANY = "You are writing faster than I can answer."
BEGINNING_CHARACTERS = 80
"""How much of a message is quoted where people are told of it."""
FULL_SECONDS = 30
"""When to try again what a full mailbox did not take."""
HELLO = "Hello! Mention me when you want to ask something; `/help` says what else I can do."
LET_IN = "Welcome! An admin has let you in. `/help` says what I can do."
TURNED_AWAY = "An admin has decided not to let you in. I cannot answer you, sorry."
SETTLE_SECONDS = 5.0
"""How soon people hear of what was decided by another process."""
_log = structlog.get_logger()
# Marked and not taken out: what is left would be somebody else's id, or begin as no person's may.
_UNFIT = re.compile(r"[\x00\ud800-\udfff]")


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
        shows: Shows,
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

    async def run(self) -> NoReturn:
        """Tell people what was decided of their requests to be let in, and answer what they asked, until cancelled."""
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

    async def accept(self, message: InboundMessage) -> Accepted:
        """Store *message* if it is to be answered. When this returns, the platform may be told.

        Raises `connectors.message.StoreUnavailable` (nothing was stored: do not acknowledge) and
        `runtime.workspaces.workspaces.UnknownWorkspace`.
        """
        message = _clean(message)
        why = self._not_for_us(message)
        if why:
            return _ignored(message, why)
        workspace_id = await self._workspaces.resolve(message)
        key = ConversationKey(workspace_id, message.connector, message.external_id)
        with about(workspace_id=workspace_id, context_id=key.context_id, connector=message.connector):
            match message.kind:
                case InboundKind.DELETE:
                    return await self._withdraw(message, key)
                case InboundKind.JOINED:
                    return await self._greet(message, key)
                case InboundKind.REACTION:
                    why = await self._marking.reacted(message, key)
                    told = {name: said for name, said in (("emoji", message.reaction), ("why", why)) if said}
                    _log.info("place.reaction", **told)
                    return Accepted("ignored", message.kind.value, key=key)
                case InboundKind.LEFT:
                    _log.info("place.left")
                    return Accepted("ignored", message.kind.value, key=key)
                case _:
                    return await self._accept(message, key)

    def _not_for_us(self, message: InboundMessage) -> str:
        """Why *message* is not to be answered by anybody, in one word; empty where it may be."""
        if message.author.is_bot and not self._settings.answer_bots:
            return "bot"
        if message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND, InboundKind.EDIT):
            return ""
        if not message.text.strip() and not message.attachments and message.quote is None:
            return "empty"
        return ""

    async def _accept(self, message: InboundMessage, key: ConversationKey) -> Accepted:
        said, is_edit = spoken(message), message.kind is InboundKind.EDIT
        if is_edit:  # an example may be older than anything the mailbox knows
            await self._marking.amended(key, message.message_id)
        settled = await self._places.of_message(key, message)
        if not self._is_meant_for_us(message, said, settled) and not await self._was_meant_for_us(message, key):
            return _ignored(message, "not_addressed")
        decision = await self._access.authorise(message, key.workspace_id)  # strangers are told, so only now
        if not decision.allowed:
            if decision.notice and not is_edit:
                await self._notice(key, _to_whom(message, decision), message, _notice_id(message, decision))
            if decision.request is not None:
                await self._ask_admins(decision.request)
            return Accepted("refused", decision.why, key=key)
        by_admin = decision.role is Role.ADMIN and message.direct and message.caller_role is None
        if by_admin and await self._access.note_direct(message, key):
            for request in await self._access.pending():
                await self._ask_admins(request)
        if is_edit:
            amended = await self._amend(message, key, decision, settled)
            if amended is not None:
                return amended
            message = replace(message, kind=InboundKind.MESSAGE)  # only now is it said to the bot
            said = spoken(message)
        command = said is not None and self._commands.claims(said, decision.role)
        lane = Lane.COMMANDS if command else Lane.TURNS
        return await self._keep(self._envelope(message, key, decision, settled), key, decision, lane)

    def _is_meant_for_us(self, message: InboundMessage, said: Spoken | None, settled: Settled) -> bool:
        """In groups: by what the message says itself, and by what was settled for the place."""
        if message.direct or (message.caller_role is not None and message.addressed):
            return True
        if said is not None and self._commands.knows(said.word) and (message.addressed or said.sure):
            return True
        if said is not None and said.sure and not message.addressed:
            return False  # "/help" in a group may be another bot's, unless it is a word that is known here
        answering = settled.answering or self._settings.answer_in_groups
        return answering == "all" or (answering == "addressed" and message.addressed)

    async def _was_meant_for_us(self, message: InboundMessage, key: ConversationKey) -> bool:
        """Whether *message* changes one that was said to the bot: it holds though the mention is gone from it, too."""
        if message.kind is not InboundKind.EDIT:
            return False
        return await self._mailboxes[Lane.TURNS].known(key, message.message_id) is not None

    async def _keep(self, envelope: Envelope, key: ConversationKey, decision: Decision, lane: Lane) -> Accepted:
        mailbox, message = self._mailboxes[lane], envelope.message
        admission = await self._admitted(message, key, decision, lane)
        if not admission.allowed:
            if await mailbox.known(key, message.message_id) is not None:
                return await self._duplicate(key, envelope, lane, admission)
            seconds = admission.retry_after_seconds
            _log.info("message.ignored", why="rate_limit")
            await self._refuse(key, message, lane, _too_many(message, seconds) if admission.first_refusal else "")
            return Accepted("refused", "rate_limit", retry_after_seconds=seconds, key=key)
        try:
            stored = await mailbox.store(key, envelope)
        except MailboxFull as error:
            _log.warning("message.ignored", why="mailbox_full")
            await self._refuse(key, message, lane, _full(message, error) if error.first else "")
            return Accepted("refused", "mailbox_full", retry_after_seconds=FULL_SECONDS, key=key)
        if not stored.new:
            return await self._duplicate(key, envelope, lane, admission)
        if not stored.held:
            await notify_worker(self._hub, lane, key)
        if stored.current_turn and envelope.queue == "interrupt" and lane is Lane.TURNS:
            await notify_interrupted(self._hub, stored.current_turn)
        _log.info("message.accepted", role=decision.role.value, direct=message.direct)
        return Accepted("stored", key=key)

    async def _admitted(
        self, message: InboundMessage, key: ConversationKey, decision: Decision, lane: Lane
    ) -> Admission:
        """Routing creates what it names, once somebody may talk there. Who has said too much can still say "stop"."""
        if message.workspace_id is None:
            await self._workspaces.create(key.workspace_id)
        return await self._limit.admit(key, message, decision.role, apart=lane.value)

    def _envelope(
        self, message: InboundMessage, key: ConversationKey, decision: Decision, settled: Settled
    ) -> Envelope:
        connector = self._connectors.get(key.connector)
        draft = OutboundMessage(key, "", "", answers=(message.message_id,))
        return Envelope(
            message,
            decision.role,
            time.time(),
            origin=self._hub.name,
            address=self._address(key),
            watched=self._shows.watched(connector, draft) if connector else Watched.NOT,
            queue=settled.queue or self._settings.queue_mode,
            model=settled.model or "",
            shows_sources=self._settings.show_sources if settled.sources is None else settled.sources,
        )

    def _address(self, key: ConversationKey) -> str:
        connector = self._connectors.get(key.connector)
        return address_of(connector, self._hub.name) if connector else key.connector

    async def _notice(self, key: ConversationKey, text: str, message: InboundMessage, turn_id: str = "") -> None:
        """Tell whoever wrote *message*; in a group it hangs there. Once for one *turn_id*, if given."""
        text = self._commands.as_written(text, message.command_mark)
        hangs_at = None if message.direct else message.message_id
        await self._outbox.notice(key, self._address(key), text, (message.message_id,), turn_id, hangs_at)

    async def _refuse(self, key: ConversationKey, message: InboundMessage, lane: Lane, notice: str) -> None:
        """Tell whoever wrote *message* that it is refused, unless *notice* is empty, and have it stay refused if the
        platform delivers it again. A caller over HTTP has the refusal in the answer, and may repeat the request."""
        if message.caller_role is not None:
            return
        if notice:
            await self._notice(key, notice, message)
        await self._mailboxes[lane].refuse(key, message.message_id)

    async def _duplicate(self, key: ConversationKey, envelope: Envelope, lane: Lane, admission: Admission) -> Accepted:
        """A reply is stored before its turn is over, so that the turn at hand may have the answer already. A program
        that repeats a message whose turn was given up has it tried again."""
        _log.info("message.duplicate")
        message, mailbox = envelope.message, self._mailboxes[lane]
        message_id, address = message.message_id, self._address(key)
        if "@" in address:  # who asks again waits here, and may have asked at another process before
            await self._outbox.expect(key, message_id, address)
        turn_id = await mailbox.turn_of(key, message_id)
        reply = await self._outbox.load(key, turn_id) if turn_id else None
        if reply is not None and message_id not in reply.answers:
            reply = None
        given_up = reply is not None and reply.error_code == GIVEN_UP and message.caller_role is not None
        if not given_up:
            await self._limit.take_back(admission, key, message, apart=lane.value)
            return Accepted("duplicate", reply=reply, key=key)
        if not admission.allowed:
            return Accepted("refused", "rate_limit", retry_after_seconds=admission.retry_after_seconds, key=key)
        try:
            await self._try_again(key, envelope, lane, turn_id)
        except MailboxFull:
            return Accepted("refused", "mailbox_full", retry_after_seconds=FULL_SECONDS, key=key)
        return Accepted("duplicate", key=key)

    async def _try_again(self, key: ConversationKey, envelope: Envelope, lane: Lane, turn_id: str) -> None:
        """Have what the given-up turn *turn_id* was to answer answered by a new turn, once. Raises `MailboxFull`."""
        try:
            await self._dead_letters.retry(key.scope, turn_id)
        except UnknownLetter:  # it is being tried again already; or it was dropped, and this message is what is left
            if await self._mailboxes[lane].put_back(key, turn_id, [envelope]):
                await notify_worker(self._hub, lane, key)

    async def _amend(
        self, message: InboundMessage, key: ConversationKey, decision: Decision, settled: Settled
    ) -> Accepted | None:
        """Let an edit hold: for what waits still, and for what is remembered. None where the message that it
        changes was never said to the bot."""
        said = replace(message, kind=InboundKind.MESSAGE)
        envelope = self._envelope(said, key, decision, settled)
        where = await self._mailboxes[Lane.TURNS].amend(key, message.message_id, envelope)
        if where is AmendResult.UNKNOWN:
            return None
        if where is not AmendResult.AMENDED:
            await self._transcript.amend(key, message.message_id, message.text)
            await self._marking.amended(key, message.message_id)
        _log.info("message.edited", state=where.value)
        return Accepted("ignored", InboundKind.EDIT.value, key=key)

    async def _withdraw(self, message: InboundMessage, key: ConversationKey) -> Accepted:
        """A message that was deleted is not answered any more, unless people see its answer already, and not
        remembered. Whose it was need not be known: who may delete it is the platform's to say."""
        where = await self._mailboxes[Lane.TURNS].amend(key, message.message_id, None)
        if where in (AmendResult.ANSWERING, AmendResult.ANSWERED):
            await self._transcript.amend(key, message.message_id, "")
        if where is AmendResult.ANSWERING and (
            turn_id := await self._mailboxes[Lane.TURNS].drop(key, message.message_id)
        ):
            await notify_deleted(self._hub, turn_id)
        await self._access.withdraw(message, key.workspace_id)
        await self._marking.amended(key, message.message_id)  # after the words are gone: it may be marked meanwhile
        if where is not AmendResult.UNKNOWN:
            _log.info("message.deleted", state=where.value)
        return Accepted("ignored", InboundKind.DELETE.value, key=key)

    async def _ask_admins(self, request: Request) -> None:
        """Tell the admins of the workspace that a stranger asks to be let in: once, however often they write."""
        if request.state != "waiting" or not request.messages:
            return
        approve, deny = f"pair approve {request.code}", f"pair deny {request.code}"
        places = " and ".join(code(place) if place else "a direct message" for place in request.asked_in)
        text = (
            f"{plain(request.name) or 'Somebody'} ({code(request.user)}) asks to talk to me in the workspace "
            f"{code(request.workspace_id)}, and wrote in {places}:\n\n> {code(beginning(request.messages[0]))}\n\n"
            f"{code('/' + approve)} lets them in, {code('/' + deny)} rejects the request."
        )
        buttons = (Button("Approve", approve), Button("Deny", deny))
        for key in await self._access.admins_to_tell(request.workspace_id):
            turn_id = f"pairing-{request.id}"
            connector = self._connectors.get(key.connector)  # where the admin reads it, which may be another platform
            said = self._commands.as_written(text, connector.capabilities.command_mark if connector else "/")
            await self._outbox.notice(key, self._address(key), said, turn_id=turn_id, buttons=buttons)

    async def _settle(self, request: Request) -> None:
        """Each step may be done again: a notice is said once for its id, and a message that is known is a duplicate."""
        is_in = request.state == "approved"
        # Nobody else is to read that somebody was turned away.
        first = next((one for one in request.messages if one.direct or is_in), None)
        if first is not None:
            key = ConversationKey(request.workspace_id, first.connector, first.external_id)
            text = self._commands.as_written(LET_IN if is_in else TURNED_AWAY, first.command_mark)
            hangs_at = None if first.direct else first.message_id
            await self._outbox.notice(key, self._address(key), text, turn_id=f"pairing-{request.id}", reply_to=hangs_at)
        if is_in:
            for message in request.messages:
                await self.accept(message)
        await self._access.settled(request)

    async def _greet(self, message: InboundMessage, key: ConversationKey) -> Accepted:
        """Say hello in a group to which somebody who may talk has brought the bot."""
        _log.info("place.joined")
        user = message.author.user(key.connector)
        if message.author.id and not message.direct and await self._access.may_talk(user, key.workspace_id):
            hello = self._commands.as_written(HELLO, message.command_mark)
            await self._outbox.notice(key, self._address(key), hello, turn_id=f"joined-{message.message_id}")
        return Accepted("ignored", message.kind.value, key=key)


def _to_whom(message: InboundMessage, decision: Decision) -> str:
    """What whoever may not talk is told; where others read along it begins with who is meant."""
    if message.direct:
        return decision.notice
    name = f", {plain(message.author.name)}" if message.author.name else ""
    return f"I do not know you yet{name}. {decision.notice}"


def _notice_id(message: InboundMessage, decision: Decision) -> str:
    """In a group they are told once, however often the message is delivered."""
    return "" if message.direct or decision.request is None else f"asked-{decision.request.id}"


def _too_many(message: InboundMessage, seconds: int) -> str:
    """The notice that *message* is over the rate limit, which takes one again in *seconds*."""
    again = f"Please send it, and whatever you write before then, again {in_words(seconds)}"
    return f"{TOO_MANY} I could not accept this message. {again}:\n\n> {code(beginning(message))}"


def _full(message: InboundMessage, error: MailboxFull) -> str:
    """The notice that *message* found the mailbox full."""
    return f"{error.user_text} I could not accept this message. Please send it again:\n\n> {code(beginning(message))}"


def beginning(message: InboundMessage) -> str:
    """Return how *message* begins, in one line without the marks of Markdown that end a quotation. Pure."""
    words = " ".join(message.text.replace("`", "'").split())
    words = words or ", ".join(one.name.replace("`", "'") for one in message.attachments) or "…"
    if len(words) <= BEGINNING_CHARACTERS:
        return words
    return words[: cluster_edge(words, BEGINNING_CHARACTERS)].rstrip() + " …"


def _ignored(message: InboundMessage, why: str) -> Accepted:
    _log.info("message.ignored", why=why, connector=message.connector)
    return Accepted("ignored", why)


def _clean(message: InboundMessage) -> InboundMessage:
    """*message* with text that every store and model takes: no lone surrogates, no NUL, no endless ids."""
    text, author = _text(message.text), message.author
    author_id, name = _UNFIT.sub("\ufffd", author.id)[:MAX_ID_CHARACTERS], _name(author.name)
    if (author_id, name) != (author.id, author.name):
        author = replace(author, id=author_id, name=name)
    quote = message.quote and replace(message.quote, author=_name(message.quote.author), text=_text(message.quote.text))
    attachments = tuple(replace(one, name=_name(one.name)) for one in message.attachments)
    if text == message.text and author is message.author and not quote and not attachments:  # as most are
        return message
    return replace(message, text=text, author=author, quote=quote, attachments=attachments)


def _text(text: str, limit: int | None = None) -> str:
    return text.encode("utf-8", "replace").decode()[:limit].replace("\x00", "")


def _name(name: str) -> str:
    return " ".join(_text(name, MAX_NAME_CHARACTERS).split())
