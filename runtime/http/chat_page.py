"""Serves the chat page: a person's conversations, their messages, actions on answers, and who is signed in.

Keys (owner ``web``): ``session`` under ``{web}``, one per sign-in, named by a hash of the cookie's secret. Neither the
secret nor the API token is stored; a session ends with its token.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.message import ConversationKey, OutboundMessage, Scope, encode_id, redis_key
from connectors.web import (
    NAME,
    SESSION_SECONDS,
    ChatPerson,
    File,
    ListedConversation,
    Mark,
    PastMessage,
    RequestError,
    Session,
    conversation_in,
    item_id,
    place,
)
from grounding.codex import HERE
from grounding.documents import DocumentMissing, DocumentRefused
from grounding.retrieval import section_text
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.access import ApiTokens, Unauthenticated, fingerprint
from runtime.attachments import UploadedFiles
from runtime.background import Forgetting, Marker, Marking
from runtime.delivery import Outbox
from runtime.search import Knowledge
from runtime.stores import pack, unpack
from runtime.turns import STOPPED_TEXT, Cancellations, Manifests, UnknownTurn
from runtime.workspaces import ConversationList, Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis


SEARCHED_CONVERSATIONS = 200
SEARCHED_MESSAGES = 200
"""The newest conversations that are searched for words, and the newest messages of each."""
SECTION_CHARACTERS = 20_000
_FORMAT = 1
_SECRET_BYTES = 32
_NAMES_OF_FILES = re.compile(r"(^|\n)\[attachments\] [^\n]*\Z")


class ChatPage:
    """Implements `connectors.web.backend.Backend`."""

    def __init__(
        self,
        redis: Redis,
        *,
        workspaces: Workspaces,
        conversation_list: ConversationList,
        transcript: Transcript,
        outbox: Outbox,
        files: UploadedFiles,
        marking: Marking,
        manifests: Manifests,
        forgetting: Forgetting,
        stops: Cancellations,
        knowledge: Knowledge,
    ) -> None:
        self._redis = redis
        self._workspaces = workspaces
        self._list = conversation_list
        self._transcript = transcript
        self._outbox = outbox
        self._files = files
        self._marking = marking
        self._manifests = manifests
        self._forgetting = forgetting
        self._stops = stops
        self._knowledge = knowledge

    async def has_workspace(self, workspace_id: str) -> bool:
        return await self._workspaces.exists(workspace_id)

    async def workspaces(self) -> list[str]:
        return [workspace.id for workspace in await self._workspaces.all()]

    async def conversations(self, workspace_id: str, person: str, words: str = "") -> list[ListedConversation]:
        found, adopted = await self._list.all(workspace_id, person)
        if not adopted:
            await self._adopt(workspace_id, person)
            found, _ = await self._list.all(workspace_id, person)
        needed = words.casefold().split()
        if not needed:
            return found
        found = found[:SEARCHED_CONVERSATIONS]
        texts = await asyncio.gather(
            *(self._text(conversation_in(workspace_id, person, conversation.id)) for conversation in found)
        )
        return [
            conversation
            for conversation, text in zip(found, texts, strict=True)
            if all(word in f"{conversation.title}\n{text}".casefold() for word in needed)
        ]

    async def recent(self, key: ConversationKey, person: ChatPerson, limit: int) -> list[PastMessage]:
        # An answer that was stopped before its first word was not shown then, and is not now.
        tail = [entry for entry in await self._transcript.tail(key, limit) if not _is_silent(entry)]
        files = await self._files.by_message(key)
        return list(
            await asyncio.gather(
                *(self._past_message(key, person, entry, files.get(entry.message_id, ())) for entry in tail)
            )
        )

    async def _past_message(
        self, key: ConversationKey, person: ChatPerson, entry: TranscriptEntry, files: tuple[File, ...]
    ) -> PastMessage:
        if entry.role is EntryRole.INBOUND:
            text = _NAMES_OF_FILES.sub("", entry.text) if files else entry.text
            return PastMessage(entry.message_id, text, entry.at, files=files)
        reply, marked = await asyncio.gather(
            self._outbox.load(key, entry.turn_id), self._marking.of_turn(key.scope, entry.turn_id)
        )
        if reply is None or reply.text != entry.text:  # the stored reply is another one
            reply = OutboundMessage(key, entry.turn_id, entry.text)
        mark = marked.opinion_of(person.user).mark if marked else None
        return PastMessage("", entry.text, entry.at, reply, mark=mark)

    async def add_message(
        self, key: ConversationKey, message_id: str, text: str, files: Sequence[File]
    ) -> ListedConversation:
        await self._files.attach(key, message_id, files)
        return await self._list.say(key, message_id, _title(text, files), time.time())

    async def rename(self, key: ConversationKey, title: str) -> ListedConversation:
        known = await self._list.get(key)
        if known is None:
            raise RequestError(404, "unknown_conversation", "There is no such conversation any more.")
        return await self._list.keep(key, title, datetime.fromisoformat(known.at).timestamp())

    async def delete(self, key: ConversationKey, person: ChatPerson) -> None:
        await self._stops.end_turn(key, all_else=True)
        await self._forgetting.everything(key, f"deleted-{time.time_ns()}", person.user)

    async def replace(
        self, key: ConversationKey, person: ChatPerson, replaced: Sequence[str], message_id: str, files: Sequence[File]
    ) -> list[str]:
        await self._stops.end_turn(key)
        turn_id = await self._transcript.last_turn(key)
        entries = await self._transcript.of_turn(key, turn_id) if turn_id else []
        answered = [entry.message_id for entry in entries if entry.message_id]
        if not set(replaced) & set(answered):
            earlier = await self._transcript.tail(key, SEARCHED_MESSAGES)
            if {entry.message_id for entry in earlier} & set(replaced):
                raise RequestError(409, "not_the_last", "Only the last message of a conversation can be changed.")
            return []
        await self._files.attach(key, message_id, files)  # first: else files that it keeps go with the old message
        await self._forgetting.last(key, message_id, person.user)
        return [*answered, *(item_id(OutboundMessage(key, turn_id, "", kind)) for kind in ("reply", "apology"))]

    async def stop(self, key: ConversationKey) -> bool:
        return await self._stops.stop(key)

    async def mark(self, key: ConversationKey, person: ChatPerson, turn_id: str, mark: Mark | None) -> None:
        by = Marker(person.user, person.role, "page")
        if not self._marking.may(by, key):
            raise RequestError(403, "forbidden", "You may not mark answers here.")
        unknown = RequestError(404, "unknown_turn", "This answer is not known any more.")
        try:
            manifest = await self._manifests.get(key.scope, turn_id)
            if manifest.context.context_id != key.context_id:
                raise unknown
            await self._marking.put(Scope(key.workspace_id), turn_id, by, mark)
        except UnknownTurn:
            raise unknown from None

    async def section(self, key: ConversationKey, source: str, heading: str) -> str:
        try:
            text = await self._document(key, source)
        except (DocumentMissing, DocumentRefused):
            raise RequestError(404, "unknown_document", f"{source} is not among the documents any more.") from None
        found = await asyncio.to_thread(section_text, source, text, heading)
        if found is None:
            raise RequestError(404, "unknown_section", f"{source} has no section of this heading any more.")
        return found if len(found) <= SECTION_CHARACTERS else f"{found[:SECTION_CHARACTERS]} …"

    async def _document(self, key: ConversationKey, source: str) -> str:
        """Return the text of a document, or else of material of that name in this conversation."""
        if source.startswith(HERE):
            return await self._knowledge.material.get(key.scope, source.removeprefix(HERE))
        try:
            return (await self._knowledge.shelf.get(Scope(key.workspace_id), source)).text
        except DocumentMissing:
            return await self._knowledge.material.get(Scope(key.workspace_id), source)

    async def keep_file(self, key: ConversationKey, data: bytes) -> str:
        return await self._files.keep(key, data)

    async def find_file(self, key: ConversationKey, file_id: str) -> Path | None:
        return await self._files.find(key, file_id)

    async def _text(self, key: ConversationKey) -> str:
        return "\n".join(entry.text for entry in await self._transcript.tail(key, SEARCHED_MESSAGES))

    async def _adopt(self, workspace_id: str, person: str) -> None:
        """List the conversations from before this list existed: scan all transcripts once for those of *person*."""
        pattern = f"ar:transcript:*:log:{workspace_id}/{NAME}/{encode_id(person)}*"
        async for name in self._redis.scan_iter(match=pattern, count=1000):
            key = ConversationKey.decode(str(name).rpartition(":")[2])
            if place(key)[0] != person or await self._list.get(key) is not None:
                continue
            entries = await self._transcript.tail(key, SEARCHED_MESSAGES)
            if entries:
                at = datetime.fromisoformat(entries[-1].at).timestamp()
                await self._list.keep(key, entries[0].text, at, entries[0].message_id)
        await self._list.adopted(workspace_id, person)


def _is_silent(entry: TranscriptEntry) -> bool:
    return entry.role is EntryRole.OUTBOUND and entry.text == STOPPED_TEXT


def _title(text: str, files: Sequence[File]) -> str:
    return text if text.strip() else ", ".join(file.name for file in files)


class WebSessions:
    """The sign-ins to the chat page, in Redis. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis, tokens: ApiTokens) -> None:
        self._redis = redis
        self._tokens = tokens

    async def begin(self, token: str, session: Session) -> str:
        """Store *session*, begun with *token*, and return the secret that finds it."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        stored = pack(_FORMAT, token=fingerprint(token), workspace_id=session.workspace_id)
        await self._redis.set(_key(secret), stored, ex=SESSION_SECONDS)
        return secret

    async def find(self, secret: str) -> Session | None:
        """Return the session of *secret* with what its token allows now; None if the session or the token is gone."""
        return await self._session(secret)

    async def move(self, secret: str, workspace_id: str) -> Session | None:
        """Move the session to another workspace; None if its token is not for that one."""
        session = await self._session(secret, workspace_id)
        stored = await self._redis.get(_key(secret))
        if session is not None and stored is not None:
            moved = {**unpack(stored, _FORMAT, "a sign-in"), "workspace_id": workspace_id}
            await self._redis.set(_key(secret), pack(_FORMAT, **moved), xx=True, keepttl=True)
        return session

    async def _session(self, secret: str, workspace_id: str = "") -> Session | None:
        stored = await self._redis.get(_key(secret))
        if stored is None:
            return None
        values = unpack(stored, _FORMAT, "a sign-in")
        try:
            caller = await self._tokens.holder(values["token"])
        except Unauthenticated:
            await self.end(secret)
            return None
        here = workspace_id or values["workspace_id"]
        return Session(caller.id, caller.role, here, caller.name, caller.person) if caller.may_enter(here) else None

    async def end(self, secret: str) -> None:
        """Delete the session."""
        await self._redis.delete(_key(secret))


def _key(secret: str) -> str:
    return redis_key("web", "{web}", "session", sha256(secret.encode("utf-8", "surrogatepass")).hexdigest())
