"""Finds the location of a message's file, with the help of the process that runs its connector."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from connectors.connector import AttachmentUnavailable, Connector, LocatesAttachments, Location
from connectors.message import Attachment
from runtime.coordination import Hub, News

ASK = "locate.ask"
ANSWER = "locate.told"
"""Topics of the hub."""
_ATTACHMENT = TypeAdapter(Attachment)
_LOCATION = TypeAdapter(Location)
NOT_FROM_HERE = "files cannot be fetched from here"


class Locator:
    """Asks the *connectors* of this process, or the other processes if this one does not run the connector."""

    def __init__(self, connectors: Mapping[str, Connector], hub: Hub) -> None:
        self._connectors = connectors
        self._hub = hub
        self._pending: dict[str, asyncio.Future[News]] = {}
        self._questions: asyncio.Queue[News] = asyncio.Queue(1000)
        hub.hear(ASK, self._hear_question)
        hub.hear(ANSWER, self._hear_answer)

    async def locate(self, connector: str, attachment: Attachment) -> Location:
        """Return where *attachment* lies. Raises `AttachmentUnavailable`. Without a time limit: the caller sets one."""
        own = self._connectors.get(connector)
        if own is not None:
            if not isinstance(own, LocatesAttachments):
                raise AttachmentUnavailable(NOT_FROM_HERE)
            return await own.locate(attachment)
        question = uuid.uuid4().hex
        answer = self._pending[question] = asyncio.get_running_loop().create_future()
        try:
            news = {
                "id": question,
                "by": self._hub.name,
                "connector": connector,
                "attachment": _ATTACHMENT.dump_python(attachment, mode="json"),
            }
            await self._hub.tell(ASK, news)
            reply = await answer
        finally:
            del self._pending[question]
        if reply["refused"]:
            raise AttachmentUnavailable(reply["refused"])
        return _LOCATION.validate_python(reply["location"])

    async def run(self) -> None:
        """Answer the questions of other processes, until cancelled."""
        async with asyncio.TaskGroup() as answers:
            while True:
                answers.create_task(self._answer(await self._questions.get()))

    async def _answer(self, question: News) -> None:
        reply: dict[str, Any] = {"id": question["id"], "refused": "", "location": None}
        try:
            location = await self.locate(question["connector"], _ATTACHMENT.validate_python(question["attachment"]))
            reply["location"] = _LOCATION.dump_python(location, mode="json")
        except AttachmentUnavailable as error:
            reply["refused"] = error.user_text
        await self._hub.tell(ANSWER, reply, question["by"])

    def _hear_question(self, question: News) -> None:
        if question["connector"] in self._connectors and not self._questions.full():
            self._questions.put_nowait(question)

    def _hear_answer(self, reply: News) -> None:
        answer = self._pending.get(reply["id"])
        if answer is not None and not answer.done():
            answer.set_result(reply)
