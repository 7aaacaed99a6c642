"""What Slack's events leave out and has to be asked for: names, files, which channels are public, and who takes part in
a thread. I/O.

A question that is not answered soon delays no message: the message goes on with less known about it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.slack import errors, mrkdwn
from connectors.slack.api import Api
from connectors.slack.convert import Identity
from connectors.slack.recent import Recent

log = structlog.get_logger()

NAME_LASTS_SECONDS = 3600.0
FAILURE_LASTS_SECONDS = 60.0
CHANNEL_LASTS_SECONDS = 60.0
ANSWER_WITHIN_SECONDS = 1.0
"""Slack waits 3 s for an acknowledgement, and the message has to be stored in that time, too."""

_REPLIES_READ = 200


class People:
    """Names by user id, remembered for `NAME_LASTS_SECONDS`."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._names: Recent[str, tuple[str, float]] = Recent()
        self._silent_until = 0.0

    async def names(self, user_ids: Iterable[str]) -> dict[str, str]:
        """The names that are known, or can be had within `ANSWER_WITHIN_SECONDS`."""
        found: dict[str, str] = {}
        unknown: list[str] = []
        for user_id in sorted(set(user_ids)):
            known = self._names.get(user_id)
            if known is None or known[1] < self._now():
                unknown.append(user_id)
            if known is not None and known[0]:
                found[user_id] = known[0]
        if unknown and self._silent_until <= self._now():
            try:
                async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                    for user_id in unknown:
                        found[user_id] = await self._ask(user_id) or found.get(user_id, "")
            except TimeoutError:
                log.debug("connector.lookup_failed", connector="slack", what="users.info", why="no answer in time")
                self._silent_until = self._now() + FAILURE_LASTS_SECONDS
        return {user_id: name for user_id, name in found.items() if name}

    async def _ask(self, user_id: str) -> str:
        if self._silent_until > self._now():
            return ""
        try:
            answer = await self._api.call(lambda client: client.users_info(user=user_id))
        except TimeoutError:
            raise
        except errors.SLACK_ERRORS as error:
            log.debug("connector.lookup_failed", connector="slack", what="users.info", why=self._api.describe(error))
            if errors.meaning(error).retryable:
                self._silent_until = self._now() + (errors.retry_after_seconds(error) or FAILURE_LASTS_SECONDS)
            else:  # this person cannot be known: somebody of another workspace, or a scope is missing
                self._names.put(user_id, ("", self._now() + FAILURE_LASTS_SECONDS))
            return ""
        name = _name(answer)
        self._names.put(user_id, (name, self._now() + NAME_LASTS_SECONDS))
        return name


def _name(answer: AsyncSlackResponse) -> str:
    """As Slack shows the person: the display name, which may be empty, else the real one."""
    user: dict[str, Any] = answer.get("user") or {}
    profile: dict[str, Any] = user.get("profile") or {}
    candidates = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
    return next((str(name) for name in candidates if name), "")


class Threads:
    """In which threads the bot takes part: where it was called or has spoken."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._known: Recent[tuple[str, str], bool] = Recent()
        self._silent_until = 0.0

    def joined(self, channel: str, thread: str) -> None:
        """The bot takes part from now on."""
        self._known.put((channel, thread), True)

    async def takes_part(self, channel: str, thread: str, me: Identity) -> bool:
        """Whether the bot takes part, as far as can be found out within `ANSWER_WITHIN_SECONDS`.

        Slack is asked once for a thread that this process does not know yet, for its first messages.
        """
        known = self._known.get((channel, thread))
        if known is not None or self._silent_until > self._now():
            return bool(known)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                answer = await self._api.call(
                    lambda client: client.conversations_replies(channel=channel, ts=thread, limit=_REPLIES_READ)
                )
        except errors.SLACK_ERRORS as error:
            why = self._api.describe(error)
            log.debug("connector.lookup_failed", connector="slack", what="conversations.replies", why=why)
            self._silent_until = self._now() + (errors.retry_after_seconds(error) or FAILURE_LASTS_SECONDS)
            return False
        said: list[dict[str, Any]] = answer.get("messages") or []
        found = any(_is_part(message, me) for message in said)
        self._known.put((channel, thread), found)
        return found

    async def holding(self, channel: str, ts: str) -> str | None:
        """The thread in which a message stands, empty where it is in none; None where Slack does not say within
        `ANSWER_WITHIN_SECONDS`."""
        if self._silent_until > self._now():
            return None
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                answer = await self._api.call(
                    lambda client: client.conversations_replies(channel=channel, ts=ts, limit=1)
                )
        except errors.SLACK_ERRORS as error:
            why = self._api.describe(error)
            log.debug("connector.lookup_failed", connector="slack", what="conversations.replies", why=why)
            if errors.meaning(error).retryable:
                self._silent_until = self._now() + (errors.retry_after_seconds(error) or FAILURE_LASTS_SECONDS)
            return None
        said: list[dict[str, Any]] = answer.get("messages") or []
        threads = [str(one.get("thread_ts") or "") for one in said if one.get("ts") == ts]
        return next(("" if thread == ts else thread for thread in threads), None)  # what begins one is in none


def _is_part(message: dict[str, Any], me: Identity) -> bool:
    return (
        message.get("user") == me.user_id
        or (bool(me.bot_id) and message.get("bot_id") == me.bot_id)
        or me.user_id in (message.get("reply_users") or ())
        or mrkdwn.names_person(message.get("text") or "", me.user_id)
    )


class Channels:
    """Which channels are public. What Slack does not say is private."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._known: Recent[str, tuple[bool, float]] = Recent()

    def says(self, channel: str, public: bool) -> None:
        """An event named the channel's type."""
        self._known.put(channel, (public, self._now() + CHANNEL_LASTS_SECONDS))

    async def is_public(self, channel: str) -> bool:
        """Whether everybody of the Slack workspace may read *channel*, as far as can be found out within
        `ANSWER_WITHIN_SECONDS`. A channel may become private: what is known lasts `CHANNEL_LASTS_SECONDS`."""
        if channel.startswith("D"):
            return False
        known = self._known.get(channel)
        if known is not None and known[1] > self._now():
            return known[0]
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                answer = await self._api.call(lambda client: client.conversations_info(channel=channel))
        except errors.SLACK_ERRORS as error:
            why = self._api.describe(error)
            log.debug("connector.lookup_failed", connector="slack", what="conversations.info", why=why)
            return False
        told: dict[str, Any] = answer.get("channel") or {}
        public = bool(told.get("is_channel")) and not any(told.get(f"is_{one}") for one in ("private", "mpim", "im"))
        self.says(channel, public)
        return public


class SharedFiles:
    """What Slack tells of files of other organisations only when it is asked (``check_file_info``)."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def told(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """*event* with its files as they are, as far as that can be had within `ANSWER_WITHIN_SECONDS`."""
        files = event.get("files")
        if not isinstance(files, list) or not any(_is_bare(file) for file in files):
            return event
        told = list(files)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                for at, file in enumerate(files):
                    if _is_bare(file):
                        told[at] = await self._ask(file)
        except TimeoutError:
            log.debug("connector.lookup_failed", connector="slack", what="files.info", why="no answer in time")
        return {**event, "files": told}

    async def _ask(self, file: Mapping[str, Any]) -> Mapping[str, Any]:
        file_id = str(file["id"])
        try:
            answer = await self._api.call(lambda client: client.files_info(file=file_id))
        except TimeoutError:
            raise
        except errors.SLACK_ERRORS as error:
            log.debug("connector.lookup_failed", connector="slack", what="files.info", why=self._api.describe(error))
            return file
        return answer.get("file") or file


def _is_bare(file: Any) -> bool:
    return isinstance(file, Mapping) and file.get("file_access") == "check_file_info" and "id" in file
