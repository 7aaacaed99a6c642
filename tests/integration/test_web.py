"""The chat page over HTTP: who may use it, what comes and what goes, and that nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from connectors.message import ConversationKey
from connectors.web.connector import MAX_STREAMS
from connectors.web.page import FILES
from connectors.web.sessions import COOKIE
from tests.emulators.face import ADMIN, Face, sse
from tests.emulators.openai import FakeOpenAI
from tests.emulators.web_page import shown

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1)) \"'`"


class Page:
    """What a page does, over the same calls."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.cursor = ""

    async def say(self, text: str, message_id: str, conversation: str = "main") -> httpx.Response:
        body = {"id": message_id, "conversation": conversation, "text": text}
        return await self.client.post("/chat/messages", json=body)

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


@asynccontextmanager
async def signed_in(face: Face, name: str, token: str = ADMIN, workspace: str = "acme") -> AsyncIterator[Page]:
    await face.workspace("acme")
    async with face.bare() as client:
        headers = {"Authorization": f"Bearer {token}"}
        answer = await client.post("/chat/session", json={"name": name, "workspace": workspace}, headers=headers)
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
        answer = await client.post("/chat/session", json={"name": "Lena"}, headers={"Authorization": f"Bearer {token}"})
        assert answer.json() | {"person": ""} == {"name": "Lena", "workspace": "acme", "role": "member", "person": ""}
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/chat"} <= set(cookie.split("; "))
        assert token not in cookie
        stored = face.runtime.store.client
        kept = [str(await stored.get(key)) async for key in stored.scan_iter("ar:web:*")]
        assert kept
        assert not [one for one in kept if token in one or client.cookies[COOKIE] in one]
        assert (await client.get("/chat/session")).json()["name"] == "Lena"
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
    async with signed_in(face, "Ben") as page:
        secret = page.client.cookies[COOKIE]
        assert (await page.client.delete("/chat/session")).status_code == 200
        async with face.bare(cookies={COOKIE: secret}) as thief:
            assert (await thief.get("/chat/session")).status_code == 401
    token = await face.token("acme", "member")
    async with signed_in(face, "Ben", token) as page:
        made = (await face.client.get("/v1/access", params={"workspace": "acme"})).json()["tokens"]
        for one in made:
            await face.client.post("/v1/access", json={"action": "revoke", "token_id": one["id"]})
        assert (await page.client.get("/chat/messages", params={"conversation": "main"})).status_code == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_other_pages_of_this_machine_cannot_use_the_cookie(face: Face, headers: dict[str, str]) -> None:
    """A browser sends the cookie for other ports of the machine, too: what they ask is 403."""
    async with signed_in(face, "Ann") as page:
        page.client.headers.update(headers)
        assert (await page.client.get("/chat/messages", params={"conversation": "main"})).status_code == 403
        assert (await page.say("hello there", "forged-message-1")).status_code == 403
        assert (await page.client.delete("/chat/session")).status_code == 403


async def test_a_form_of_another_site_is_refused(face: Face) -> None:
    """Only a body that calls itself JSON is read, which no form can send."""
    async with signed_in(face, "Ann") as page:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            sent = await page.client.post("/chat/messages", content=b'{"id": "x"}', headers={"Content-Type": kind})
            assert sent.status_code == 415


async def test_a_reply_grows_before_eyes_and_is_there_after_a_reload(face: Face, provider: FakeOpenAI) -> None:
    """Pieces of the reply come while it is written, then the whole, with its sources; a reload shows the same."""
    provider.will("The **harbour** plan.\n\n- one\n- two")
    provider.chunk_delay_seconds = 0.05
    async with signed_in(face, "Cleo") as page:
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
    async with signed_in(face, "Dora") as page:
        await page.messages()
        async with page.watching():
            await page.say("Good morning to you", "question-0001")
            await page.until(answered)
        before = await page.messages()
        web = face.runtime.connectors["web"]
        async with asyncio.timeout(60):
            while len(await face.runtime.transcript.newest(key_of("admin.dora"), 5)) < 2:
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
    async with signed_in(face, "Emil") as page:
        await page.messages()
        async with page.watching():
            first, second = await asyncio.gather(page.say("Hello you", "same-id-1"), page.say("Hello you", "same-id-1"))
            assert sorted([first.json()["outcome"], second.json()["outcome"]]) == ["duplicate", "stored"]
            await page.until(answered)
        assert (await page.say("Hello you", "same-id-1")).json()["outcome"] == "duplicate"
        assert [one["by"] for one in await page.messages()] == ["you", "bot"]


async def test_a_page_that_lost_its_connection_has_what_came_meanwhile(face: Face) -> None:
    """With the last event's id the stream goes on where it broke; nothing comes twice."""
    async with signed_in(face, "Finn") as page:
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
    """What one person says in one conversation is in no other, and no other person's, with the same token."""
    async with signed_in(face, "Gus") as gus, signed_in(face, "Hanna") as hanna:
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
    async with signed_in(face, "Ida <b>") as page:
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
    async with signed_in(face, "Jo") as page:
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
    async with signed_in(face, "Jim") as page:
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
        channel = face.runtime.connectors["web"]._channels.of("acme", "admin.jim")  # type: ignore[attr-defined]
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
    async with signed_in(face, "Kai") as page:
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


async def test_nothing_is_shown_of_a_workspace_that_was_deleted(face: Face) -> None:
    """What was said there is gone for pages that are still open, too, and so is the workspace."""
    await face.workspace("shortlived")
    async with signed_in(face, "Lou", workspace="shortlived") as page:
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
