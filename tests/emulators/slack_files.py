"""Slack's files: what people post, the three steps of an upload, and the server that keeps the bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aiohttp import web

from tests.emulators.slack_nouns import Json, Refused

if TYPE_CHECKING:
    from tests.emulators.slack import SlackEmulator


class Files:
    """``files.*`` of one workspace, and where files are put and fetched."""

    def __init__(self, slack: SlackEmulator) -> None:
        self._slack = slack
        self._promised: dict[str, tuple[str, int]] = {}
        self._content: dict[str, bytes] = {}
        self.known: dict[str, Json] = {}
        self.fetched: list[str] = []
        """The files that were fetched with the bot's token."""
        self.put_status = 200

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/upload/{file}", self._put), web.get("/files/{file}/{name}", self._fetch)]

    def add(self, name: str, content: bytes, media_type: str) -> Json:
        """A file that somebody uploads, as it comes with their message."""
        file_id = f"F{self._slack.number():05d}"
        self._content[file_id] = content
        url = f"{self._slack.origin}/files/{file_id}/{name}"
        self.known[file_id] = {
            "id": file_id,
            "name": name,
            "title": name,
            "mimetype": media_type,
            "size": len(content),
            "mode": "hosted",
            "is_external": False,
            "file_access": "visible",
            "url_private": url,
            "url_private_download": url,
        }
        return self.known[file_id]

    def promise(self, asked: Json) -> Json:
        name, length = str(asked.get("filename") or ""), int(asked.get("length") or 0)
        if not name or length <= 0:
            raise Refused("invalid_arguments")
        file_id = f"F{self._slack.number():05d}"
        self._promised[file_id] = (name, length)
        return {"file_id": file_id, "upload_url": f"{self._slack.origin}/upload/{file_id}"}

    def complete(self, asked: Json) -> Json:
        files = json.loads(str(asked.get("files") or "[]"))
        channel = self._slack.channel(asked.get("channel_id"))
        thread = asked.get("thread_ts")
        if thread and not self._slack.has(channel, str(thread)):
            raise Refused("invalid_thread_ts")
        for one in files:
            if one["id"] not in self._promised or one["id"] not in self._content:
                raise Refused("file_not_found")
            name, _ = self._promised.pop(one["id"])
            text = self._content[one["id"]].decode()
            shown = self._slack.keep(channel, text, str(thread) if thread else None, file=name, file_id=one["id"])
            shown.file = str(one.get("title") or name)
        return {"files": [{"id": one["id"], "title": one.get("title", "")} for one in files]}

    def delete(self, asked: Json) -> Json:
        if self._content.pop(str(asked.get("file")), None) is None:
            raise Refused("file_not_found")
        self._slack.unshare(str(asked["file"]))
        return {}

    def info(self, asked: Json) -> Json:
        known = self.known.get(str(asked.get("file")))
        if known is None:
            raise Refused("file_not_found")
        return {"file": known}

    async def _put(self, request: web.Request) -> web.Response:
        file_id = request.match_info["file"]
        content = await request.read()
        if self.put_status != 200:
            return web.Response(status=self.put_status)
        if file_id not in self._promised or len(content) != self._promised[file_id][1]:
            return web.Response(status=400, text="ERROR")
        self._content[file_id] = content
        return web.Response(text=f"OK - {len(content)}")

    async def _fetch(self, request: web.Request) -> web.Response:
        """Who has no token is sent to the page where people log in, as at Slack."""
        if request.headers.get("Authorization") != f"Bearer {self._slack.token}":
            raise web.HTTPFound(f"{self._slack.origin}/login")
        file_id = request.match_info["file"]
        if file_id not in self._content:
            return web.Response(status=404)
        self.fetched.append(file_id)
        return web.Response(body=self._content[file_id], content_type="application/octet-stream")
