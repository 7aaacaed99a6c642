"""Context documents over HTTP: put and got byte for byte, versions, conflicts, search from their own context only."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from redis.asyncio import Redis

from connectors.message import ConversationKey
from grounding.memory.context_document import ContextDocument, ContextDocuments
from grounding.transcript import Reach
from tests.emulators.face import Face
from tests.emulators.jobs import until_idle

PLAIN = {"Content-Type": "text/plain; charset=utf-8"}
KEY = ConversationKey("acme", "http", "default")
AT = "2026-11-21T10:00:00Z"


def path(vault: str, memory: str, more: str = "") -> str:
    return f"/v1/vaults/{vault}/memories/{quote(memory, safe='')}/contexts{more}"


@pytest.mark.asyncio(loop_scope="module")
class TestOverHttp:
    @pytest_asyncio.fixture(autouse=True, loop_scope="module")
    async def acme(self, face: Face) -> None:
        """The workspace is there, whichever of the tests are run."""
        await face.workspace("acme")

    async def test_of_many_that_put_at_once_nobody_is_refused_who_did_not_say_what_is_to_be_replaced(
        self, face: Face
    ) -> None:
        await asyncio.gather(*(self.put(face, "notes:busy", f"text {number}") for number in range(30)))
        versions = (await face.client.get(path("acme", "notes:busy"))).json()["contexts"]
        assert len({one["id"] for one in versions}) == 30

    async def put(self, face: Face, memory: str, text: str, vault: str = "acme", **headers: str) -> str:
        """The ETag of what was put."""
        answer = await face.client.put(path(vault, memory), content=text.encode(), headers={**PLAIN, **headers})
        assert answer.status_code == 200, answer.text
        return str(answer.headers["etag"])

    async def found(self, face: Face, query: str, **parameters: str) -> list[str]:
        answer = await face.client.get("/v1/workspaces/acme/search", params={"q": query, **parameters})
        assert answer.status_code == 200, answer.text
        return [hit["source"] for hit in answer.json()["results"] if hit["heading"] == "Context document"]

    async def test_what_is_put_is_got_byte_for_byte(self, face: Face) -> None:
        """Whatever text it is: line ends, marks and odd characters stay; as text, and as a JSON string."""
        memories = iter(f"notes:{number}" for number in range(10_000))

        @examples(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
        def texts(text: str) -> None:
            cases.append(text)

        cases = ["\ufeffwith a mark", "a\r\nb\rc\u2028d\x00e\n\n", " # Facts \n", "日本語 👩‍👩‍👧 e\u0301"]
        await asyncio.to_thread(texts)
        for text in cases:
            memory = next(memories)
            tag = await self.put(face, memory, text)
            got = await face.client.get(path("acme", memory, "/latest"))
            assert got.content == text.encode()
            assert got.headers["etag"] == tag
            assert got.headers["content-type"] == "text/plain; charset=utf-8"
            sent = await face.client.put(
                path("acme", memory + "j"), content=json.dumps(text), headers={"Content-Type": "application/json"}
            )
            assert sent.headers["etag"] == tag
            assert (await face.client.get(path("acme", memory + "j", "/latest"))).content == text.encode()

    @pytest.mark.parametrize(
        ("body", "media", "status"),
        [
            (b"", "text/plain", 400),
            (b" \n\t", "text/plain", 400),
            (b"\xff\xfe", "text/plain", 400),
            (b"x" * 65_537, "text/plain", 413),
            ("ü".encode() * 32_769, "text/plain", 413),
            (b"x" * 5_000_000, "text/plain", 413),
            (b"text", "text/markdown", 415),
            (b"text", "application/octet-stream", 415),
            ("grün".encode("latin-1"), "text/plain; charset=iso-8859-1", 415),
            (b'{"context": "text"}', "application/json", 415),
            (b"17", "application/json", 415),
            (b"null", "application/json", 415),
            (b'""', "application/json", 400),
            (b"text", "application/json", 400),
            (b'"\\ud800"', "application/json", 400),
            (b'"' + b"\\u0041" * 65_537 + b'"', "application/json", 413),
        ],
    )
    async def test_what_is_no_document_is_refused_and_nothing_is_kept(
        self, face: Face, body: bytes, media: str, status: int
    ) -> None:
        answer = await face.client.put(path("acme", "http:bad"), content=body, headers={"Content-Type": media})
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"code", "message"}
        assert (await face.client.get(path("acme", "http:bad", "/latest"))).status_code == 404
        assert (await face.client.get(path("acme", "http:bad"))).status_code == 404

    async def test_the_largest_document_is_kept(self, face: Face) -> None:
        for text in ("x" * 65_536, "ü" * 32_768):
            await self.put(face, "http:large", text)
            assert (await face.client.get(path("acme", "http:large", "/latest"))).text == text

    @pytest.mark.parametrize("memory", ["http:", ":x", "Htt p:x", "http:" + "x" * 600, "{p1}:x", "a/b:c"])
    async def test_a_memory_of_another_form_is_refused(self, face: Face, memory: str) -> None:
        answer = await face.client.put(path("acme", memory), content=b"text", headers=PLAIN)
        assert answer.status_code == 400, answer.text

    async def test_a_put_that_saw_an_older_version_is_refused(self, face: Face) -> None:
        """409 wherever If-Match no longer holds; a second writer loses nothing of the first's."""
        first = await self.put(face, "http:race", "one")
        second = await self.put(face, "http:race", "two", **{"If-Match": first})
        assert second != first
        for headers in ({"If-Match": first}, {"If-Match": f"W/{second}"}, {"If-None-Match": "*"}):
            answer = await face.client.put(path("acme", "http:race"), content=b"three", headers={**PLAIN, **headers})
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "version_moved")
        absent = await face.client.put(path("acme", "http:none"), content=b"x", headers={**PLAIN, "If-Match": "*"})
        assert absent.status_code == 409
        assert (await face.client.get(path("acme", "http:race", "/latest"))).text == "two"
        same = await face.client.get(path("acme", "http:race", "/latest"), headers={"If-None-Match": second})
        assert same.status_code == 304

    async def test_of_many_that_saw_the_same_version_one_wins(self, face: Face) -> None:
        tag = await self.put(face, "http:many", "zero")
        answers = await asyncio.gather(
            *(
                face.client.put(
                    path("acme", "http:many"), content=f"by {n}".encode(), headers={**PLAIN, "If-Match": tag}
                )
                for n in range(12)
            )
        )
        won = [n for n, answer in enumerate(answers) if answer.status_code == 200]
        assert sorted(answer.status_code for answer in answers) == [200, *[409] * 11]
        assert (await face.client.get(path("acme", "http:many", "/latest"))).text == f"by {won[0]}"

    async def test_who_puts_or_gets_a_document_that_no_prompt_shows_whole_is_told(self, face: Face) -> None:
        text = "\n".join(f"- machine {number} is painted green" for number in range(90))
        put = await face.client.put(path("acme", "http:long"), content=text, headers=PLAIN)
        got = await face.client.get(path("acme", "http:long", "/latest"), headers={"Accept": "application/json"})
        for answer in (put.json(), got.json()):
            assert answer["problem"] == "The lines that people wrote take 720 of 380 tokens."
            assert "context-doc put" in answer["advice"]
        short = await face.client.put(path("acme", "http:long"), content=b"- short", headers=PLAIN)
        assert "problem" not in short.json()

    async def test_every_version_is_kept_with_who_and_when(self, face: Face) -> None:
        token = await face.token("acme", "admin")
        await self.put(face, "http:C1", "first")
        async with face.as_token(token) as other:
            answer = await other.put(path("acme", "http:C1"), content="zweite ü".encode(), headers=PLAIN)
            assert answer.status_code == 200
        listed = (await face.client.get(path("acme", "http:C1"))).json()["contexts"]
        assert [one["bytes"] for one in listed] == [9, 5]
        assert set(listed[0]) == {"id", "created_at", "author", "bytes"}
        assert listed[0]["created_at"] >= listed[1]["created_at"]
        assert listed[1]["author"] == "Admin" != listed[0]["author"]
        old = await face.client.get(path("acme", "http:C1", f"/{listed[1]['id']}"))
        assert old.text == "first"
        page = await face.client.get(path("acme", "http:C1"), params={"before": listed[0]["id"]})
        assert page.json()["contexts"] == listed[1:]
        assert (await face.client.get(path("acme", "http:C1", "/1-1"))).status_code == 404

    async def test_a_section_can_be_asked_for_by_name(self, face: Face) -> None:
        await self.put(face, "http:parts", "# Progress\n- done\n\n# Facts\n- a: b\n")
        got = await face.client.get(path("acme", "http:parts", "/latest"), params={"section": "progress"})
        assert got.text == "- done"
        for missing in ("Timeline", "Poetry"):
            answer = await face.client.get(path("acme", "http:parts", "/latest"), params={"section": missing})
            assert answer.status_code == 404

    async def test_programs_keep_documents_under_names_of_their_own(self, face: Face) -> None:
        """Vaults need be no workspace, and leave no folder; they do not meet."""
        await self.put(face, "notes:42", "mine", vault="other-program")
        await self.put(face, "plain", "without a colon", vault="other-program")
        assert (await face.client.get(path("other-program", "notes:42", "/latest"))).text == "mine"
        assert (await face.client.get(path("other-program", "plain", "/latest"))).text == "without a colon"
        assert (await face.client.get(path("acme", "notes:42x", "/latest"))).status_code == 404
        assert (await face.client.get(path("UPPER", "notes:42", "/latest"))).status_code == 400
        folders = face.runtime.settings.data_dir / "workspaces"
        assert not await asyncio.to_thread((folders / "other-program").exists)

    async def test_it_is_found_from_inside_its_own_context_only(self, face: Face) -> None:
        """The latest version alone, with the documents of the workspace; a deleted one no more."""
        await face.client.put(
            "/v1/workspaces/acme/documents/zoo.md?wait=true", content=b"# Zoo\n\nThe quokka smiles at the okapi.\n"
        )
        await self.put(face, "http:here", "## Facts\n- mascot: quokka\n")
        assert await self.found(face, "quokka mascot", context="http:here") == ["http:here"]
        assert await self.found(face, "quokka mascot", connector="http", external_id="here") == ["http:here"]
        assert await self.found(face, "quokka mascot", context="http:there") == []
        assert await self.found(face, "quokka mascot") == []
        answer = await face.client.get(
            "/v1/workspaces/acme/search", params={"q": "quokka", "context": "http:here", "explain": "1"}
        )
        assert {hit["source"] for hit in answer.json()["results"]} >= {"http:here", "zoo.md"}
        scores = [hit["score"] for hit in answer.json()["results"]]
        assert scores == sorted(scores, reverse=True)

        await self.put(face, "http:here", "## Facts\n- mascot: narwhal\n")
        assert await self.found(face, "quokka", context="http:here") == []
        assert await self.found(face, "narwhal", context="http:here") == ["http:here"]
        assert (await face.client.delete(path("acme", "http:here"))).status_code == 200
        await until_idle(face.runtime.jobs)
        assert await self.found(face, "narwhal", context="http:here") == []
        assert (await face.client.delete(path("acme", "http:here"))).status_code == 404

    async def test_its_file_follows(self, face: Face) -> None:
        await self.put(face, "http:file", "for people\r\n")
        file = face.runtime.settings.data_dir / "workspaces/acme/memory/contexts/http%3Afile.md"
        assert await asyncio.to_thread(file.read_bytes) == b"for people\r\n"
        await face.client.delete(path("acme", "http:file"))
        assert not await asyncio.to_thread(file.exists)

    async def test_tokens_see_what_they_may(self, face: Face) -> None:
        """Nobody what was said on a platform, or another vault; members and admins the rest; only admins write."""
        await self.put(face, "http:seen", "said over HTTP")
        await self.put(face, "telegram:7", "said in a chat")
        member, viewer = await face.token("acme", "member"), await face.token("acme", "viewer")
        admin = await face.token("acme", "admin")
        wanted = [
            (admin, "http:seen", 200), (admin, "telegram:7", 403), (member, "http:seen", 200),
            (member, "telegram:7", 403), (viewer, "http:seen", 403),
        ]  # fmt: skip
        for token, memory, status in wanted:
            async with face.as_token(token) as client:
                for more in ("", "/latest"):
                    assert (await client.get(path("acme", memory, more))).status_code == status
                searched = await client.get("/v1/workspaces/acme/search", params={"q": "said", "context": memory})
                assert searched.status_code == status
                assert (await client.get(path("elsewhere", memory, "/latest"))).status_code == 403
                put = await client.put(path("acme", "http:written"), content=b"x", headers=PLAIN)
                assert put.status_code == (200 if token == admin else 403)


def version(number: int, *turn_ids: str, text: str = "") -> ContextDocument:
    return ContextDocument(text or f"about {turn_ids}", number, number, 2 * number, "model", AT, turn_ids)


async def test_a_document_made_of_one_that_was_forgotten_meanwhile_is_not_stored(redis: Redis) -> None:
    """Version numbers come again after forgetting; ids do not."""
    documents = ContextDocuments(redis)
    assert await documents.store(KEY, version(1, "t1"))
    assert not await documents.store(KEY, version(1, "t1"))
    tainted = await documents.store(KEY, version(2, "t2"))
    assert tainted is not None
    await documents.forget_turn(KEY, "t2")
    assert await documents.store(KEY, version(2, "t3"))

    assert await documents.store(KEY, version(3, "t4"), tainted.id) is None
    latest = await documents.latest(KEY)
    assert latest is not None
    assert latest.turn_ids == ("t3",)
    assert await documents.store(KEY, version(3, "t4"), latest.id)


async def test_what_was_restored_by_forgetting_has_its_own_id_again(redis: Redis) -> None:
    documents = ContextDocuments(redis)
    first = await documents.store(KEY, version(1, "t1"))
    await documents.store(KEY, version(2, "t2"))
    await documents.forget_turn(KEY, "t2")

    latest = await documents.latest(KEY)
    assert first is not None
    assert latest is not None
    assert latest.id == first.id
    assert [one.id for one in await documents.versions(KEY, 10)] == [first.id]


async def test_what_holds_on_covers_more_turns_without_a_new_version(redis: Redis) -> None:
    documents = ContextDocuments(redis)
    first = await documents.store(KEY, version(1, "t1"))
    assert first is not None

    assert await documents.cover(KEY, first, Reach(7, 14))
    latest = await documents.latest(KEY)
    assert latest is not None
    assert (latest.reach, latest.text, len(await documents.versions(KEY, 10))) == (Reach(7, 14), first.text, 1)

    assert await documents.store(KEY, version(2, "t8"))
    assert not await documents.cover(KEY, first, Reach(9, 18))


async def test_documents_of_before_ids_and_authors_are_read(redis: Redis) -> None:
    """As a former version of the runtime stored them."""
    documents = ContextDocuments(redis)
    old: dict[Any, Any] = {
        "v": "1",
        "text": "## Facts\n- a",
        "version": "3",
        "turns": "9",
        "entries": "18",
        "made_by": "model",
    }
    await redis.hset(f"ar:contexts:{KEY.tag}:latest:{KEY.encoded}", mapping={**old, "at": AT, "turn_ids": '["t9"]'})

    latest = await documents.latest(KEY)
    assert latest == ContextDocument("## Facts\n- a", 3, 9, 18, "model", AT, ("t9",))
    (mark,) = await documents.marks([KEY])
    assert mark is not None
    assert mark.reach == latest.due_from
    assert await documents.store(KEY, version(4, "t10"), latest.id)
