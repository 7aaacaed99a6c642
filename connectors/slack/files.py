"""Uploads, deletes and locates files on Slack. I/O."""

from __future__ import annotations

from urllib.parse import urlsplit

from connectors.connector import AttachmentUnavailable, Location, SendFailed
from connectors.message import Attachment, OutboundPart
from connectors.slack import errors, payloads
from connectors.slack.api import Api
from connectors.slack.events import FileAccess, Handle, handle_of

_HOSTS = ("files.slack.com", ".slack.com")
"""The hosts of Slack's files; the token goes only there."""

_READ_SCOPE = "files:read"


class Files:
    """Uploads, deletes and locates files with one bot token."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def upload(self, channel: str, thread: str | None, part: OutboundPart) -> str:
        """Share *part* as a file and return its id.

        Raises `connectors.connector.SendFailed`, ambiguous only in the last of the three steps: before that nobody
        sees anything.
        """
        content, name = part.text.encode("utf-8", "replace"), payloads.upload_name(part)
        try:
            target = await self._api.request(
                lambda client: client.files_getUploadURLExternal(filename=name, length=len(content))
            )
        except SendFailed as failed:
            raise _unambiguous(failed) from failed.__cause__
        file_id, url = str(target.get("file_id") or ""), str(target.get("upload_url") or "")
        if not file_id or not (self._is_slacks(url) or self._is_operators(url)):
            raise SendFailed("Slack gave no place to upload a file to.", retryable=False)
        await self._put(url, content)
        await self._api.request(
            lambda client: client.files_completeUploadExternal(
                files=[{"id": file_id, "title": part.file_name}], channel_id=channel, thread_ts=thread
            )
        )
        return file_id

    async def delete(self, file_id: str) -> None:
        """Delete a file. Raises `connectors.connector.SendFailed`."""
        await self._api.request(lambda client: client.files_delete(file=file_id))

    async def locate(self, attachment: Attachment) -> Location:
        """Return where *attachment* can be fetched. Raises `connectors.connector.AttachmentUnavailable`."""
        name = attachment.name
        try:
            handle = Handle.decode(attachment.handle)
        except ValueError as error:
            raise AttachmentUnavailable(f"I cannot find the file “{name}” on Slack.") from error
        if self._api.scopes is not None and _READ_SCOPE not in self._api.scopes:
            raise AttachmentUnavailable(_missing_scope(name))
        if handle.access == FileAccess.ASK:
            handle = await self._look_up(handle.file_id, name)
        if handle.access == FileAccess.HIDDEN:
            raise AttachmentUnavailable(f"Slack hides “{name}”, because the workspace is over its plan's limit.")
        if handle.access == FileAccess.EXTERNAL:
            raise AttachmentUnavailable(
                f"“{name}” is not on Slack but only linked from there, where I cannot read it. Please upload it."
            )
        if self._is_slacks(handle.url):
            return Location(handle.url, _HOSTS, self._api.authorization)
        if self._is_operators(handle.url):
            return Location(handle.url, (self._api.host,), self._api.authorization, trusts_private=True)
        raise AttachmentUnavailable(f"“{name}” is not stored on Slack, so I do not read it.")

    async def _look_up(self, file_id: str, name: str) -> Handle:
        try:
            answer = await self._api.call(lambda client: client.files_info(file=file_id))
        except errors.SLACK_ERRORS as error:
            word = errors.word(error)
            if word in {"file_not_found", "file_deleted"}:
                why = f"“{name}” is not on Slack any more."
            elif word == "missing_scope":
                why = _missing_scope(name)
            else:
                why = f"Slack does not say where “{name}” is ({self._api.describe(error)})."
            raise AttachmentUnavailable(why) from error
        handle = handle_of({"id": file_id, **(answer.get("file") or {}), "file_access": "visible"})
        if handle.access == FileAccess.ASK:
            raise AttachmentUnavailable(f"Slack does not say where “{name}” is.")
        return handle

    async def _put(self, url: str, content: bytes) -> None:
        try:
            status, _, _ = await self._api.post(url, data=content)
        except errors.SLACK_ERRORS as error:
            raise _unambiguous(errors.send_failed(error, self._api.describe(error))) from error
        if status != 200:
            raise SendFailed(f"Slack did not take the file: HTTP {status}", retryable=status == 429 or status >= 500)

    def _is_slacks(self, url: str) -> bool:
        return (urlsplit(url).hostname or "").endswith(".slack.com") and url.startswith("https://")

    def _is_operators(self, url: str) -> bool:
        """Return whether *url* is on the host of the API base that the operator set."""
        host = urlsplit(url).hostname
        return bool(host) and host == self._api.host


def is_file(message_id: str) -> bool:
    """Return whether *message_id* is the receipt of an upload."""
    return message_id.startswith("F")


def _missing_scope(name: str) -> str:
    return f"I may not read files on Slack, so I cannot see “{name}”: the app lacks the scope {_READ_SCOPE}."


def _unambiguous(failed: SendFailed) -> SendFailed:
    """Return *failed* for a step that shows nothing to anybody, so that it can be repeated without risk."""
    return SendFailed(str(failed), retryable=failed.retryable, retry_after_seconds=failed.retry_after_seconds)
