"""Finds where files of messages lie, by the process that runs the connector they came through."""

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
TOLD = "locate.told"
"""The hub's topics."""
_ATTACHMENT = TypeAdapter(Attachment)
_LOCATION = TypeAdapter(Location)
NOT_FROM_HERE = "files cannot be fetched from here"


class Locator:
    """Asks the *connectors* of this process, and where it does not run the one in question, the other processes."""

    def __init__(self, connectors: Mapping[str, Connector], hub: Hub) -> None:
        self._connectors = connectors
        self._hub = hub
        self._asked: dict[str, asyncio.Future[News]] = {}
        self._questions: asyncio.Queue[News] = asyncio.Queue(1000)
        hub.hear(ASK, self._hear_question)
        hub.hear(TOLD, self._hear_answer)

    async def locate(self, connector: str, attachment: Attachment) -> Location:
        """Where *attachment* lies now. Raises `AttachmentUnavailable`; the caller bounds it in time."""
        found = self._connectors.get(connector)
        if found is not None:
            if not isinstance(found, LocatesAttachments):
                raise AttachmentUnavailable(NOT_FROM_HERE)
            return await found.locate(attachment)
        question = uuid.uuid4().hex
        answer = self._asked[question] = asyncio.get_running_loop().create_future()
        try:
            news = {
                "id": question,
                "by": self._hub.name,
                "connector": connector,
                "attachment": _ATTACHMENT.dump_python(attachment, mode="json"),
            }
            await self._hub.tell(ASK, news)
            told = await answer
        finally:
            del self._asked[question]
        if told["refused"]:
            raise AttachmentUnavailable(told["refused"])
        return _LOCATION.validate_python(told["location"])

    async def run(self) -> None:
        """Answer what other processes ask, until cancelled."""
        async with asyncio.TaskGroup() as answers:
            while True:
                answers.create_task(self._answer(await self._questions.get()))

    async def _answer(self, question: News) -> None:
        told: dict[str, Any] = {"id": question["id"], "refused": "", "location": None}
        try:
            location = await self.locate(question["connector"], _ATTACHMENT.validate_python(question["attachment"]))
            told["location"] = _LOCATION.dump_python(location, mode="json")
        except AttachmentUnavailable as error:
            told["refused"] = error.user_text
        await self._hub.tell(TOLD, told, question["by"])

    def _hear_question(self, question: News) -> None:
        if question["connector"] in self._connectors and not self._questions.full():
            self._questions.put_nowait(question)

    def _hear_answer(self, told: News) -> None:
        answer = self._asked.get(told["id"])
        if answer is not None and not answer.done():
            answer.set_result(told)
