"""The chat page over HTTP: who may use it, what comes and what goes, and that nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from connectors.message import ConversationKey
from connectors.web.backend import COOKIE
from connectors.web.channel import Channels
from connectors.web.connector import FILES, MAX_STREAMS
from grounding.transcript import EntryRole, TranscriptEntry
from runtime.turns.replies import STOPPED_TEXT
from tests.emulators.face import ADMIN, Face, sse
from tests.emulators.openai import FakeOpenAI, in_background
from tests.emulators.web_page import shown

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT = "2026-11-22T10:00:00.000Z"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)
HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1)) \"'`"


class Page:
    """What a page does, over the same calls."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.cursor = ""

    async def say(self, text: str, message_id: str, conversation: str = "main", **more: Any) -> httpx.Response:
        body = {"id": message_id, "conversation": conversation, "text": text, **more}
        return await self.client.post("/chat/messages", json=body)

    async def ask(self, text: str, message_id: str, conversation: str = "main", **more: Any) -> dict[str, Any]:
        """Say it while watching; the answer."""
        async with self.watching():
            assert (await self.say(text, message_id, conversation, **more)).status_code == 202
            return (await self.until(answered))[-1][1]

    async def attach(self, data: bytes, conversation: str = "main") -> httpx.Response:
        headers = {"Content-Type": "application/octet-stream"}
        return await self.client.post(
            "/chat/files", params={"conversation": conversation}, content=data, headers=headers
        )

    async def listed(self, words: str = "") -> list[str]:
        """The titles of the conversations."""
        found = (await self.client.get("/chat/conversations", params={"q": words})).json()
        return [one["title"] for one in found["conversations"]]

    async def person(self) -> str:
        return str((await self.client.get("/chat/session")).json()["person"])

    async def messages(self, conversation: str = "main") -> list[dict[str, Any]]:
        found = (await self.client.get("/chat/messages", params={"conversation": conversation})).json()
        self.cursor = found["cursor"]
        items: list[dict[str, Any]] = found["messages"]
        return items

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Events since `cursor` come in while inside."""
        opened = asyncio.Event()

        async def read() -> None:
            headers = {"Last-Event-ID": self.cursor} if self.cursor else {}
            async with self.client.stream("GET", "/chat/events", headers=headers) as answer:
                text = ""
                async for piece in answer.aiter_text():
                    opened.set()
                    *blocks, text = (text + piece).split("\n\n")
                    for block in blocks:
                        for line in block.splitlines():
                            if line.startswith("id: "):
                                self.cursor = line.removeprefix("id: ")
                        for event in sse(block):
                            self.events.put_nowait(event)

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            async with asyncio.timeout(60):
                await opened.wait()
            yield
            reading.cancel()

    async def until(self, wanted: Callable[[str, dict[str, Any]], bool]) -> list[tuple[str, dict[str, Any]]]:
        """The events up to the first that is *wanted*."""
        seen = []
        async with asyncio.timeout(60):
            while True:
                seen.append(await self.events.get())
                if wanted(*seen[-1]):
                    return seen


def answered(name: str, data: dict[str, Any]) -> bool:
    return name == "message" and data["by"] == "bot"


NUMBERS = itertools.count()


async def invite(face: Face, name: str, **more: Any) -> httpx.Response:
    return await face.client.post("/v1/access", json={"action": "invite", "workspace": "acme", "name": name, **more})


@asynccontextmanager
async def signed_in(face: Face, token: str = "", workspace: str = "acme") -> AsyncIterator[Page]:
    """The page of a new person, or of the holder of *token*."""
    await face.workspace(workspace)
    if not token:
        token = (await invite(face, f"Person {next(NUMBERS)}", workspace=workspace)).json()["token"]
    async with face.bare() as client:
        headers = {"Authorization": f"Bearer {token}"}
        answer = await client.post("/chat/session", json={"workspace": workspace}, headers=headers)
        assert answer.status_code == 200, answer.text
        yield Page(client)


async def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing_inline(face: Face) -> None:
    """Every script and style is a file of ours, the policy allows no other, and all files exist."""
    found: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    async with face.bare() as client:
        page = await client.get("/chat")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        Reader().feed(page.text)
        addresses = {str(fields.get("src") or fields.get("href")) for tag, fields in found if tag in {"script", "link"}}
        assert addresses >= {"chat/static/app.js", "chat/static/chat.css"}
        assert not [fields for _, fields in found if any(name.startswith("on") or name == "style" for name in fields)]
        for name in FILES:
            file = await client.get(f"/chat/static/{name}")
            assert file.status_code == 200
            assert "http://" not in file.text.replace("http://www.w3.org", "")
            again = await client.get(f"/chat/static/{name}", headers={"If-None-Match": file.headers["etag"]})
            assert again.status_code == 304


async def test_signing_in_takes_a_token_and_gives_a_cookie_that_no_script_reads(face: Face) -> None:
    """The cookie is random, HttpOnly, strict and for the page alone; the token is nowhere in it or in the store."""
    await face.workspace("acme")
    async with face.bare() as client:
        for headers in ({}, {"Authorization": "Bearer nobody"}):
            assert (await client.post("/chat/session", json={}, headers=headers)).status_code == 401
        token = await face.token("acme", "member")
        answer = await client.post(
            "/chat/session", json={"name": "admin"}, headers={"Authorization": f"Bearer {token}"}
        )
        assert {"workspace": "acme", "workspaces": ["acme"], "role": "member"}.items() <= answer.json().items()
        assert answer.json()["name"] != "admin"  # nobody gives themselves a name
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/chat"} <= set(cookie.split("; "))
        assert token not in cookie
        stored = face.runtime.store.client
        kept = [str(await stored.get(key)) async for key in stored.scan_iter("ar:web:*")]
        assert kept
        assert not [one for one in kept if token in one or client.cookies[COOKIE] in one]
        assert (await client.get("/chat/session")).json() == answer.json()
        assert (await client.get("/v1/workspaces")).status_code == 401


async def test_a_token_for_one_workspace_signs_in_nowhere_else(face: Face) -> None:
    """Another workspace is 403, one that does not exist 404."""
    await face.workspace("acme")
    headers = {"Authorization": f"Bearer {await face.token('acme', 'member')}"}
    async with face.bare() as client:
        assert (await client.post("/chat/session", json={"workspace": "rival"}, headers=headers)).status_code == 403
        unknown = await client.post("/chat/session", json={"workspace": "nowhere"}, headers=face.client.headers)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_workspace")


async def test_a_session_ends_by_signing_out_and_with_its_token(face: Face) -> None:
    """After either every call is 401; the cookie alone, kept by somebody, is worth nothing."""
    async with signed_in(face) as page:
        secret = page.client.cookies[COOKIE]
        assert (await page.client.delete("/chat/session")).status_code == 200
        async with face.bare(cookies={COOKIE: secret}) as thief:
            assert (await thief.get("/chat/session")).status_code == 401
    token = await face.token("acme", "member")
    async with signed_in(face, token) as page:
        made = (await face.client.get("/v1/access", params={"workspace": "acme"})).json()["tokens"]
        for one in made:
            await face.client.post("/v1/access", json={"action": "revoke", "token_id": one["id"]})
        assert (await page.client.get("/chat/messages", params={"conversation": "main"})).status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_other_pages_of_this_machine_cannot_use_the_cookie(face: Face, headers: dict[str, str]) -> None:
    """A browser sends the cookie for other ports of the machine, too: what they ask is 403."""
    async with signed_in(face) as page:
        page.client.headers.update(headers)
        assert (await page.client.get("/chat/messages", params={"conversation": "main"})).status_code == 403
        assert (await page.say("hello there", "forged-message-1")).status_code == 403
        assert (await page.client.delete("/chat/session")).status_code == 403


async def test_a_form_of_another_site_is_refused(face: Face) -> None:
    """Only a body that calls itself JSON is read, which no form can send."""
    async with signed_in(face) as page:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            sent = await page.client.post("/chat/messages", content=b'{"id": "x"}', headers={"Content-Type": kind})
            assert sent.status_code == 415


async def test_a_reply_grows_before_eyes_and_is_there_after_a_reload(face: Face, provider: FakeOpenAI) -> None:
    """Pieces of the reply come while it is written, then the whole, with its sources; a reload shows the same."""
    provider.will("The **harbour** plan.\n\n- one\n- two")
    provider.chunk_delay_seconds = 0.05
    async with signed_in(face) as page:
        assert await page.messages() == []
        async with page.watching():
            said = await page.say("What does the harbour plan cost?", "question-0001")
            assert (said.status_code, said.json()["outcome"]) == (202, "stored")
            seen = await page.until(answered)
        provider.chunk_delay_seconds = 0.0
        names = [name for name, _ in seen]
        assert "draft" in names
        item = seen[-1][1]
        assert shown(item["nodes"]) == "The harbour plan.\none\ntwo"
        assert item["answers"] == ["question-0001"]
        after = await page.messages()
        assert [(one["by"], one["text"]) for one in after] == [
            ("you", "What does the harbour plan cost?"),
            ("bot", "The **harbour** plan.\n\n- one\n- two"),
        ]
        assert after[1]["id"] == item["id"]


async def test_what_was_said_outlives_the_process(face: Face) -> None:
    """With nothing in memory a conversation is read from its transcript, each message once and under the same id."""
    async with signed_in(face) as page:
        await page.messages()
        async with page.watching():
            await page.say("Good morning to you", "question-0001")
            await page.until(answered)
        before = await page.messages()
        web = face.runtime.connectors["web"]
        async with asyncio.timeout(60):
            while len(await face.runtime.transcript.newest(key_of(await page.person()), 5)) < 2:
                await asyncio.sleep(0.01)
        kept, web._channels = web._channels, type(web._channels)()  # type: ignore[attr-defined]
        try:
            restored = await page.messages()
        finally:
            web._channels = kept  # type: ignore[attr-defined]
        assert [(one["id"], one["text"]) for one in restored] == [(one["id"], one["text"]) for one in before]
        assert restored[1]["nodes"] == before[1]["nodes"]


def key_of(person: str) -> ConversationKey:
    return ConversationKey("acme", "web", f"{person}/main")


async def test_a_message_sent_twice_is_answered_once(face: Face) -> None:
    """The same id again is a duplicate: one turn, one message in the conversation."""
    async with signed_in(face) as page:
        await page.messages()
        async with page.watching():
            first, second = await asyncio.gather(page.say("Hello you", "same-id-1"), page.say("Hello you", "same-id-1"))
            assert sorted([first.json()["outcome"], second.json()["outcome"]]) == ["duplicate", "stored"]
            await page.until(answered)
        assert (await page.say("Hello you", "same-id-1")).json()["outcome"] == "duplicate"
        assert [one["by"] for one in await page.messages()] == ["you", "bot"]


async def test_a_page_that_lost_its_connection_has_what_came_meanwhile(face: Face) -> None:
    """With the last event's id the stream goes on where it broke; nothing comes twice."""
    async with signed_in(face) as page:
        await page.messages()
        async with page.watching():
            await page.say("First of all", "question-0001")
            await page.until(answered)
        await page.say("And while away", "question-0002")
        async with asyncio.timeout(60):
            while len(await page_items(page)) < 4:
                await asyncio.sleep(0.01)
        async with page.watching():
            seen = await page.until(answered)
        assert next(data["id"] for name, data in seen if name == "message") == "question-0002"
        assert seen[-1][1]["answers"] == ["question-0002"]


async def page_items(page: Page) -> list[dict[str, Any]]:
    found = await page.client.get("/chat/messages", params={"conversation": "main"})
    items: list[dict[str, Any]] = found.json()["messages"]
    return items


async def test_people_and_conversations_do_not_see_each_other(face: Face) -> None:
    """What one person says in one conversation is in no other, and no other person's."""
    async with signed_in(face) as gus, signed_in(face) as hanna:
        await gus.messages()
        await hanna.messages()
        async with gus.watching(), hanna.watching():
            await gus.say("A secret of mine", "question-0001")
            await gus.until(answered)
            assert hanna.events.empty()
        assert await hanna.messages() == []
        assert await gus.messages("other") == []
        assert (await gus.client.get("/chat/messages", params={"conversation": "../x"})).status_code == 400


async def test_hostile_text_stays_text(face: Face, provider: FakeOpenAI) -> None:
    """Markup in a reply and in a message comes out as characters, and links that run something lead nowhere."""
    provider.will(HOSTILE)
    async with signed_in(face) as page:
        await page.messages()
        async with page.watching():
            await page.say(HOSTILE, "question-0001")
            item = (await page.until(answered))[-1][1]
        assert {node[0] for node in item["nodes"]} == {"p"}
        assert all(isinstance(child, str) for child in item["nodes"][0][2])
        assert shown(item["nodes"]).startswith("<script>alert(1)</script> <img src=x onerror=alert(1)>")
        assert (await page.messages())[0]["text"] == HOSTILE


async def test_limits_are_kept_and_told_in_words(face: Face) -> None:
    """A body that is too large, an empty message and too many open pages are refused, each with its reason."""
    async with signed_in(face) as page:
        assert (await page.say("x" * 40_000, "question-0001")).json()["error"]["code"] == "too_large"
        assert (await page.say("  ", "question-0001")).json()["error"]["code"] == "empty"
        pages = [Page(page.client) for _ in range(7)]
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(_first_status(one)) for one in pages]
            async with asyncio.timeout(60):
                while sum(stream.done() for stream in streams) < 1:
                    await asyncio.sleep(0.01)
            refused = [stream.result() for stream in streams if stream.done()]
            for one in streams:
                one.cancel()
        assert set(refused) == {429}


async def test_pages_that_open_at_the_same_moment_are_counted_too(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have their session looked up before the first is told anything; who closes makes room."""
    async with signed_in(face) as page:
        sessions = face.runtime.connectors["web"]._sessions  # type: ignore[attr-defined]
        find, asked, all_asked = sessions.find, 0, asyncio.Event()

        async def together(secret: str) -> Any:
            nonlocal asked
            asked += 1
            if asked == MAX_STREAMS + 2:
                all_asked.set()
            await all_asked.wait()
            return await find(secret)

        monkeypatch.setattr(sessions, "find", together)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(_first_status(Page(page.client))) for _ in range(MAX_STREAMS + 2)]
            while sum(stream.done() for stream in streams) < 2:
                await asyncio.sleep(0.01)
            for one in streams:
                one.cancel()
        assert [one.result() for one in streams if not one.cancelled()] == [429, 429]
        channel = face.runtime.connectors["web"]._channels.of("acme", await page.person())  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            while channel.pages:
                await asyncio.sleep(0.01)


async def _first_status(page: Page) -> int:
    """The status of a stream that is refused; one that is open stays so."""
    async with page.client.stream("GET", "/chat/events") as answer:
        if answer.status_code == 200:
            await asyncio.Event().wait()
        return answer.status_code


async def test_commands_are_listed_for_the_page(face: Face) -> None:
    """Whoever is signed in gets the commands of the runtime, and one that is given is answered as such."""
    async with signed_in(face) as page:
        async with asyncio.timeout(60):
            while not (listed := (await page.client.get("/chat/commands")).json()["commands"]):
                await asyncio.sleep(0.01)
        assert "help" in [command["name"] for command in listed]
        await page.messages()
        async with page.watching():
            await page.say("/help", "question-0001")
            item = (await page.until(answered))[-1][1]
        assert item["kind"] == "notice"
        assert "/help" in item["text"]
        assert (await page.messages())[0]["text"] == "/help"
    async with face.bare() as client:
        assert (await client.get("/chat/commands")).status_code == 401


async def test_the_front_door_leads_to_the_page(face: Face) -> None:
    async with face.bare(follow_redirects=True) as client:
        assert (await client.get("/")).url.path == "/chat"


async def test_conversations_are_the_same_on_every_device(face: Face) -> None:
    """Titled from the first message, the last used first, searched by title and text, and there after each sign-in."""
    token = await face.token("acme", "member")
    async with signed_in(face, token) as laptop, signed_in(face, token) as phone, signed_in(face) as stranger:
        await laptop.messages()
        await laptop.ask("What does a mooring cost?", "question-0001", "one")
        await laptop.ask("How deep is\nthe  basin? " + "x" * 80, "question-0002", "two")
        await laptop.ask("And the anchorage?", "question-0003", "one")
        async with asyncio.timeout(60):
            while await laptop.listed("anchorage") == []:
                await asyncio.sleep(0.01)
        for page in (laptop, phone):
            titles = await page.listed()
            assert titles[0] == "What does a mooring cost?"
            assert titles[1].startswith("How deep is the basin? xxx")
            assert len(titles[1]) == 60
            assert await page.listed("ANCHORAGE cost") == ["What does a mooring cost?"]
            assert await page.listed("zeppelin") == []
        assert await stranger.listed() == []
        renamed = await phone.client.patch("/chat/conversations", json={"conversation": "two", "title": " Depths "})
        assert renamed.json()["title"] == "Depths"
        assert await laptop.listed("depths") == ["Depths"]


async def test_a_new_title_is_told_to_open_pages(face: Face) -> None:
    async with signed_in(face) as page:
        await page.messages()
        async with page.watching():
            await page.say("Hello there", "question-0001", "fresh")
            _, data = (await page.until(lambda name, _: name == "conversation"))[-1]
        assert (data["conversation"], data["title"]) == ("fresh", "Hello there")


async def test_a_deleted_conversation_is_forgotten(face: Face) -> None:
    """It is gone from the list, the transcript, the disk and other pages; nobody deletes another's."""
    async with signed_in(face) as page, signed_in(face) as other:
        await page.messages()
        kept = (await page.attach(b"The berth is 42.")).json()
        files = [{"id": kept["id"], "name": "berth.txt", "media_type": "text/plain", "size": kept["size"]}]
        await page.ask("Remember the berth", "question-0001", files=files)
        assert (
            await other.client.request("DELETE", "/chat/conversations", json={"conversation": "main"})
        ).status_code == 200
        assert len(await page.messages()) == 2
        async with page.watching():
            gone = await page.client.request("DELETE", "/chat/conversations", json={"conversation": "main"})
            assert gone.status_code == 200
            await page.until(lambda name, data: name == "deleted" and data["conversation"] == "main")
        assert await page.messages() == []
        assert await page.listed() == []
        assert await face.runtime.transcript.newest(key_of(await page.person()), 5) == []
        found = await page.client.get("/chat/files", params={"conversation": "main", "file": kept["id"]})
        assert found.status_code == 404
        folder = face.runtime.settings.data_dir / "workspaces" / "acme" / "attachments"
        assert not [path for path in folder.rglob(kept["id"]) if path.is_file()]


async def test_what_was_said_under_a_name_that_people_gave_themselves_is_still_there(face: Face) -> None:
    """Before people were invited they named themselves; the holder of the same token has all of it in the list."""
    token = await face.token("acme", "member")
    async with signed_in(face, token) as page:
        old = ConversationKey("acme", "web", f"{await page.person()}.dora/main")
        for turn_id, text in (("t1", "What is a halyard?"), ("t2", STOPPED_TEXT)):
            said = [
                TranscriptEntry(EntryRole.INBOUND, text, turn_id, AT, "Dora", "web:dora", f"in-{turn_id}"),
                TranscriptEntry(
                    EntryRole.OUTBOUND, STOPPED_TEXT if turn_id == "t1" else "A line.", turn_id, AT, "agent-runtime"
                ),
            ]
            await face.runtime.transcript.append(old, turn_id, said)
        found = (await page.client.get("/chat/conversations")).json()["conversations"]
        assert [one["title"] for one in found] == ["What is a halyard?"]
        # An answer that was stopped before its first word was not shown then, and is not now.
        assert [one["text"] for one in await page.messages(found[0]["conversation"])] == [
            "What is a halyard?",
            STOPPED_TEXT,
            "A line.",
        ]
    async with signed_in(face) as other:
        assert await other.messages(found[0]["conversation"]) == []


async def test_files_come_with_a_message_and_stay_in_the_history(face: Face, provider: FakeOpenAI) -> None:
    """The model reads them, the page shows them again, and only the person who attached them can have them."""
    async with signed_in(face) as page, signed_in(face) as other:
        await page.messages()
        kept = (await page.attach(b"The secret berth is number 42.")).json()
        named = {"id": kept["id"], "name": "berth.txt", "media_type": "text/plain", "size": kept["size"]}
        await page.ask("Which berth?", "question-0001", files=[named])
        assert any("secret berth is number 42" in str(request["messages"]) for request in provider.requests)
        assert (await page.messages())[0]["files"] == [named]
        face.runtime.connectors["web"]._channels = Channels()  # type: ignore[attr-defined]
        question = (await page.messages())[0]
        assert (question["text"], question["files"]) == ("Which berth?", [named])
        asked = {"conversation": "main", "file": kept["id"], "name": "berth.txt", "type": "text/html"}
        got = await page.client.get("/chat/files", params=asked)
        assert got.content == b"The secret berth is number 42."
        assert (got.headers["content-type"], got.headers["x-content-type-options"]) == (
            "application/octet-stream",
            "nosniff",
        )
        assert got.headers["content-disposition"].startswith("attachment")
        assert (await other.client.get("/chat/files", params=asked)).status_code == 404
        assert (await other.say("Give it to me", "question-0002", files=[named])).status_code == 404


async def test_a_picture_is_shown_and_told_of(face: Face) -> None:
    """A message may be a picture alone; a model that sees none says so."""
    async with signed_in(face) as page:
        await page.messages()
        kept = (await page.attach(PNG)).json()
        item = await page.ask(
            "", "question-0001", files=[{"id": kept["id"], "name": "a.png", "media_type": "image/png"}]
        )
        assert {"block": "attachments", "why": "blind_model"} in item["degraded"]
        asked = {"conversation": "main", "file": kept["id"], "type": "image/png"}
        assert (await page.client.get("/chat/files", params=asked)).headers["content-type"] == "image/png"
        assert await page.listed() == ["a.png"]


async def test_files_that_are_refused_are_refused_in_words(face: Face) -> None:
    async with signed_in(face) as page:
        limit = face.runtime.settings.attachment_max_bytes
        large = await page.attach(b"x" * (limit + 1))
        assert (large.status_code, large.json()["error"]["message"]) == (
            413,
            f"The file is larger than {limit / 1e6:g} MB.",
        )
        assert (await page.attach(b"")).status_code == 400
        assert (await page.client.post("/chat/files", params={"conversation": "main"}, content=b"x")).status_code == 415
        for file_id in ("../../../admin-token", "/etc/passwd", "0" * 32):
            asked = {"conversation": "main", "file": file_id}
            assert (await page.client.get("/chat/files", params=asked)).status_code == 404


async def test_stop_is_no_message(face: Face, provider: FakeOpenAI) -> None:
    """The answer ends where it is; nothing is said, in the conversation or its transcript."""
    provider.will("A very long answer. " * 400)
    provider.chunk_delay_seconds = 0.02
    async with signed_in(face) as page:
        await page.messages()
        async with page.watching():
            await page.say("Tell me everything", "question-0001")
            await page.until(lambda name, _: name == "draft")
            stopped = await page.client.post("/chat/stop", json={"conversation": "main"})
            assert stopped.json() == {"stopped": True}
            item = (await page.until(answered))[-1][1]
        provider.chunk_delay_seconds = 0.0
        assert (item["text"].endswith(" …"), item["stopped"]) == (True, True)
        assert [(one["by"], one.get("stopped")) for one in await page.messages()] == [("you", None), ("bot", True)]
        again = await page.client.post("/chat/stop", json={"conversation": "main"})
        assert again.json() == {"stopped": False}
        said = await face.runtime.transcript.newest(key_of(await page.person()), 9)
        assert not [one for one in said if "stop" in one.text]


async def test_a_mark_is_no_message(face: Face) -> None:
    """It is kept, shown after a reload, told to other pages and taken back; nobody marks another's answer."""
    async with signed_in(face) as page, signed_in(face) as other:
        await page.messages()
        turn = (await page.ask("Hello you", "question-0001"))["turn"]
        mark = {"conversation": "main", "turn": turn, "mark": "good"}
        async with page.watching():
            assert (await page.client.post("/chat/marks", json=mark)).status_code == 200
            await page.until(lambda name, data: name == "marked" and data["mark"] == "good")
        assert [one.get("mark") for one in await page.messages()] == [None, "good"]
        face.runtime.connectors["web"]._channels = Channels()  # type: ignore[attr-defined]
        assert [one.get("mark") for one in await page.messages()] == [None, "good"]
        assert (await page.client.post("/chat/marks", json={**mark, "mark": None})).status_code == 200
        assert [one.get("mark") for one in await page.messages()] == [None, None]
        assert (await other.client.post("/chat/marks", json=mark)).status_code == 404
        assert (await page.client.post("/chat/marks", json={**mark, "mark": "so-so"})).status_code == 400


async def test_an_answer_names_its_sources_only_where_the_place_shows_them(face: Face, provider: FakeOpenAI) -> None:
    """As people settled with ``/sources``; a reload shows the same."""
    at = await face.workspace("acme")
    text = "# Berths\n\nA berth costs 12 euros."
    await face.client.put(f"{at}/documents/berths.md", content=text, params={"wait": "true"})
    async with signed_in(face, (await invite(face, "Ada", role="admin")).json()["token"]) as page:
        await page.messages()
        for number, (command, named) in enumerate([("/sources off", 0), ("/sources on", 1)]):
            await page.ask(command, f"command-000{number}")
            provider.will("12 euros [berths.md › Berths].")
            said = await page.ask("What do the docs say that a berth costs?", f"question-000{number}")
            assert len(said["sources"]) == named
            assert len((await page.messages())[-1]["sources"]) == named


async def test_a_source_opens_its_section(face: Face) -> None:
    """The text below the heading as it is now, as elements; only of the person's own workspace."""
    at = await face.workspace("acme")
    text = "# Fees\n\nFirst.\n\n## Berths\n\nA berth\nis **12 euros**.\n\n### Large\n\nMore.\n\n## Cranes\n\nNo."
    await face.client.put(f"{at}/documents/fees.md", content=text, params={"wait": "true"})
    await face.workspace("rival")
    async with signed_in(face) as page, signed_in(face, workspace="rival") as rival:
        asked = {"conversation": "main", "source": "fees.md", "heading": "Fees › Berths"}
        section = (await page.client.get("/chat/sections", params=asked)).json()
        assert shown(section["nodes"]) == "Berths\nA berth is 12 euros.\nLarge\nMore."
        by_its_end = (await page.client.get("/chat/sections", params={**asked, "heading": "Berths"})).json()
        assert by_its_end["nodes"] == section["nodes"]
        assert (await rival.client.get("/chat/sections", params=asked)).status_code == 404
        for wrong in ({"heading": "Fees › Boats"}, {"source": "../../admin-token"}, {"source": "none.md"}):
            assert (await page.client.get("/chat/sections", params={**asked, **wrong})).status_code == 404
    async with face.bare() as client:
        assert (await client.get("/chat/sections", params=asked)).status_code == 401


async def test_the_last_message_is_changed_or_answered_again(face: Face, provider: FakeOpenAI) -> None:
    """The former question and its answer are gone for people and for the model; files stay; an earlier one stays."""
    async with signed_in(face) as page:
        await page.messages()
        await page.ask("The first question", "question-0001")
        kept = (await page.attach(b"The berth is 42.")).json()
        files = [{"id": kept["id"], "name": "berth.txt", "media_type": "text/plain", "size": kept["size"]}]
        provider.will("A wrong answer about zeppelins")
        await page.ask("What of zepelins?", "question-0002", files=files)
        provider.will("Another answer")
        async with page.watching():
            await page.say("What of boats?", "question-0003", files=files, replaces=["question-0002"])
            seen = await page.until(answered)
        assert "question-0002" in [data["id"] for name, data in seen if name == "removed"]
        asked = [str(body["messages"]) for body in provider.requests if not in_background(body)]
        assert "zeppelin" not in asked[-1]
        assert "The berth is 42." in asked[-1]
        items = await page.messages()
        assert [one["text"] for one in items][2:] == ["What of boats?", "Another answer"]
        assert len(items) == 4
        earlier = await page.say("Once more", "question-0004", replaces=["question-0001"])
        assert (earlier.status_code, earlier.json()["error"]["code"]) == (409, "not_the_last")
        assert len(await page.messages()) == 4


async def test_what_is_forgotten_leaves_the_title_too(face: Face) -> None:
    """A title comes from the first message: it goes with it, and the next message gives another one."""
    async with signed_in(face) as page:
        await page.messages()
        await page.ask("My secret plan", "question-0001")
        await page.ask("/forget last", "question-0002")
        assert await page.listed() == ["Conversation"]
        await page.ask("Hello again", "question-0003")
        assert await page.listed() == ["Hello again"]
        await page.ask("What of zepelins?", "question-0004", "other")
        await page.ask("What of boats?", "question-0005", "other", replaces=["question-0004"])
        assert "What of boats?" in await page.listed()
        await page.ask("/forget all", "question-0006")
        assert await page.listed() == ["What of boats?"]


async def test_a_message_that_nobody_answered_can_be_changed(face: Face, provider: FakeOpenAI) -> None:
    """A turn that failed gives way as well, and the turn before it stays."""
    async with signed_in(face) as page:
        await page.messages()
        await page.ask("The first question", "question-0001")
        provider.will("unauthorized")
        assert (await page.ask("The second question", "question-0002"))["kind"] == "apology"
        await page.ask("The third question", "question-0003", replaces=["question-0002"])
        texts = [one["text"] for one in await page.messages() if one["by"] == "you"]
        assert texts == ["The first question", "The third question"]


async def test_a_link_signs_in_the_person_for_whom_it_was_made(face: Face) -> None:
    """By the same name and id on every device, also with a new link; a link that was replaced or revoked is over."""
    await face.workspace("acme")
    made = (await invite(face, " Mira ", role="admin")).json()
    assert made["link"].endswith(f"/chat#token={made['token']}")
    async with signed_in(face, made["token"]) as laptop, signed_in(face, made["token"]) as phone:
        known = (await laptop.client.get("/chat/session")).json()
        assert {"name": "Mira", "role": "admin", "workspaces": ["acme"]}.items() <= known.items()
        assert made["user"] == f"web:{known['person']}"
        await laptop.messages()
        await laptop.ask("Hello from Mira", "question-0001")
        assert await phone.listed() == ["Hello from Mira"]
        said = await face.runtime.transcript.newest(key_of(known["person"]), 2)
        assert (said[0].user, said[0].author) == (made["user"], "Mira")
        assert (await invite(face, "mira")).status_code == 409
        new = (await invite(face, "mira", renew=True)).json()
        assert (new["user"], new["role"]) == (made["user"], "admin")
        assert (await laptop.client.get("/chat/session")).status_code == 401
    async with signed_in(face, new["token"]) as again:
        assert await again.listed() == ["Hello from Mira"]
        found = (await face.client.get("/v1/access", params={"workspace": "acme"})).json()
        assert {"user": made["user"], "name": "mira", "role": "admin", "workspace": "acme"}.items() <= next(
            one for one in found["people"] if one["user"] == made["user"]
        ).items()
        token_id = next(one["id"] for one in found["tokens"] if one["name"] == "mira")
        await face.client.post("/v1/access", json={"action": "revoke", "token_id": token_id})
        assert (await again.client.get("/chat/session")).status_code == 401
    other = (await invite(face, "Mira")).json()
    assert other["user"] != made["user"]  # another person of that name sees nothing of the former one


async def test_a_link_opens_the_page_and_nothing_else(face: Face) -> None:
    """Over HTTP a program names the person who speaks: whoever was invited would read what others said to it."""
    here = await face.workspace("acme")
    said = {"text": "My salary is 4711 euros.", "context": "bob", "author": "bob", "direct": True}
    record = {"type": "fact", "text": "The salary of Bob is 4711 euros.", "user": "http:bob"}
    assert (await face.client.post(f"{here}/records", json=record)).status_code == 201
    async with face.as_token((await invite(face, "Eve")).json()["token"]) as eve:
        for path in ("/records?user=http:bob", "/turns", "/global-context?user=http:bob", "/search?q=salary"):
            answer = await eve.get(f"{here}{path}")
            assert (answer.status_code, "4711" in answer.text) == (403, False)
        for path in ("/messages", "/ground"):
            assert (await eve.post(f"{here}{path}", json=said)).status_code == 403
        assert (await eve.get("/v1/events?follow=false")).status_code == 403


async def test_people_need_a_name_and_their_link_says_their_role(face: Face) -> None:
    await face.workspace("acme")
    assert (await invite(face, " ")).status_code == 400
    user = (await invite(face, "Nora", role="viewer")).json()["user"]
    change = {"action": "role", "workspace": "acme", "user": user, "role": "admin"}
    refused = await face.client.post("/v1/access", json=change)
    assert (refused.status_code, "--renew" in refused.text) == (400, True)


async def test_only_the_admin_changes_the_workspace(face: Face) -> None:
    """The admin's sign-in is for all workspaces, anybody else's for one."""
    await face.workspace("rival")
    async with signed_in(face, ADMIN) as admin, signed_in(face) as member:
        moved = await admin.client.put("/chat/session", json={"workspace": "rival"})
        assert (moved.json()["workspace"], moved.json()["name"]) == ("rival", "Admin")
        assert {"acme", "rival"} <= set(moved.json()["workspaces"])
        assert (await admin.client.get("/chat/session")).json()["workspace"] == "rival"
        assert (await admin.client.put("/chat/session", json={"workspace": "nowhere"})).status_code == 404
        assert (await member.client.put("/chat/session", json={"workspace": "rival"})).status_code == 403
        assert (await member.client.get("/chat/session")).json()["workspace"] == "acme"


async def test_nothing_is_shown_of_a_workspace_that_was_deleted(face: Face) -> None:
    """What was said there is gone for pages that are still open, too, and so is the workspace."""
    await face.workspace("shortlived")
    async with signed_in(face, ADMIN, "shortlived") as page:
        await page.messages()
        async with page.watching():
            await page.say("Remember me", "question-0001")
            await page.until(answered)
        assert (await face.client.delete("/v1/workspaces/shortlived")).status_code < 300
        for answer in (
            await page.client.get("/chat/messages", params={"conversation": "main"}),
            await page.say("Anybody there", "question-0002"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_workspace")
