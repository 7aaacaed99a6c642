"""Files to Slack and from Slack. I/O."""

from __future__ import annotations

from urllib.parse import urlsplit

from connectors.connector import AttachmentUnavailable, Location, SendFailed
from connectors.message import Attachment, OutboundPart
from connectors.slack import errors, outgoing
from connectors.slack.api import Api
from connectors.slack.attachments import ASK, EXTERNAL, HIDDEN, Handle, handle_of

HOSTS = ("files.slack.com", ".slack.com")
"""Where Slack keeps files; only there the token goes."""

_READ, _WRITE = "files:read", "files:write"


class Files:
    """Upload, deletion, and where a file is."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def upload(self, channel: str, thread: str | None, part: OutboundPart) -> str:
        """Share *part* as a file; its id. Nothing is seen before the last of the three steps.

        Raises `connectors.connector.SendFailed`, ambiguous only in that step.
        """
        content, name = part.text.encode("utf-8", "replace"), outgoing.upload_name(part)
        try:
            place = await self._api.ask(
                lambda client: client.files_getUploadURLExternal(filename=name, length=len(content))
            )
        except SendFailed as failed:
            raise _unseen(failed) from failed.__cause__
        file_id, url = str(place.get("file_id") or ""), str(place.get("upload_url") or "")
        if not file_id or not self._is_slacks(url):
            raise SendFailed("Slack gave no place to upload a file to.", retryable=False)
        await self._put(url, content)
        await self._api.ask(
            lambda client: client.files_completeUploadExternal(
                files=[{"id": file_id, "title": part.file_name}], channel_id=channel, thread_ts=thread
            )
        )
        return file_id

    async def delete(self, file_id: str) -> None:
        """Raises `connectors.connector.SendFailed`."""
        await self._api.ask(lambda client: client.files_delete(file=file_id))

    async def locate(self, attachment: Attachment) -> Location:
        """Where *attachment* lies. Raises `connectors.connector.AttachmentUnavailable`."""
        name = attachment.name
        try:
            handle = Handle.decode(attachment.handle)
        except ValueError as error:
            raise AttachmentUnavailable(f"I cannot find the file “{name}” on Slack.") from error
        if self._api.scopes is not None and _READ not in self._api.scopes:
            raise AttachmentUnavailable(
                f"I may not read files on Slack, so I cannot see “{name}”: the app lacks the scope {_READ}."
            )
        if handle.access == ASK:
            handle = await self._asked(handle.file_id, name)
        if handle.access == HIDDEN:
            raise AttachmentUnavailable(f"Slack hides “{name}”, because the workspace is over its plan's limit.")
        if handle.access == EXTERNAL:
            raise AttachmentUnavailable(
                f"“{name}” is not on Slack but only linked from there, where I cannot read it. Please upload it."
            )
        return self._location(handle, name)

    async def _asked(self, file_id: str, name: str) -> Handle:
        """What Slack says of a file when asked: files of other organisations come with nothing but their id."""
        try:
            answer = await self._api.call(lambda client: client.files_info(file=file_id))
        except errors.SLACK_ERRORS as error:
            word = errors.word(error)
            if word in {"file_not_found", "file_deleted"}:
                why = f"“{name}” is not on Slack any more."
            elif word == "missing_scope":
                why = f"I may not read files on Slack, so I cannot see “{name}”: the app lacks the scope {_READ}."
            else:
                why = f"Slack does not say where “{name}” is ({self._api.describe(error)})."
            raise AttachmentUnavailable(why) from error
        handle = handle_of({"id": file_id, **(answer.get("file") or {}), "file_access": "visible"})
        if handle.access == ASK:
            raise AttachmentUnavailable(f"Slack does not say where “{name}” is.")
        return handle

    def _location(self, handle: Handle, name: str) -> Location:
        host = urlsplit(handle.url).hostname or ""
        if host.endswith(".slack.com") and handle.url.startswith("https://"):
            return Location(handle.url, HOSTS, self._api.authorization)
        if host and host == self._api.host:
            return Location(handle.url, (host,), self._api.authorization, trusts_private=True)
        raise AttachmentUnavailable(f"“{name}” is not stored on Slack, so I do not read it.")

    async def _put(self, url: str, content: bytes) -> None:
        try:
            status, _, _ = await self._api.post(url, data=content)
        except errors.SLACK_ERRORS as error:
            raise _unseen(errors.send_failed(error, self._api.describe(error))) from error
        if status != 200:
            raise SendFailed(f"Slack did not take the file: HTTP {status}", retryable=status == 429 or status >= 500)

    def _is_slacks(self, url: str) -> bool:
        host = urlsplit(url).hostname or ""
        return (host.endswith(".slack.com") and url.startswith("https://")) or (bool(host) and host == self._api.host)


def is_file(message_id: str) -> bool:
    """Whether *message_id* is the receipt of an upload."""
    return message_id.startswith("F")


def _unseen(failed: SendFailed) -> SendFailed:
    """*failed*, before anything could be seen: then trying again is no risk."""
    return SendFailed(
        str(failed), retryable=failed.retryable, ambiguous=False, retry_after_seconds=failed.retry_after_seconds
    )
