"""Documents and material over HTTP: kept, indexed on arrival, and found only where they belong."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from connectors.message import Scope
from grounding.prompt import build_prompt
from grounding.retrieval import IndexUnavailable
from runtime.background.migration import MigrationStatus
from tests.emulators.face import Face, sse

pytestmark = pytest.mark.asyncio(loop_scope="module")

ZEBRA = "# Stripes\n\nThe zebra has stripes, and the quokka has none.\n"


async def found(face: Face, here: str, query: str) -> list[str]:
    answer = await face.client.get(f"{here}/search", params={"q": query})
    return [hit["source"] for hit in answer.json()["results"]]


async def test_a_document_put_with_wait_is_found_at_once(face: Face) -> None:
    """200 means that a search finds it; it reads back as it was put, and its source is its path."""
    here = await face.workspace("zoo")
    put = await face.client.put(f"{here}/documents/animals/zebra.md?wait=true", content=ZEBRA.encode())
    assert (put.status_code, put.json()) == (
        200,
        {"path": "animals/zebra.md", "bytes": len(ZEBRA), "indexed": True},
    )
    hit = (await face.client.get(f"{here}/search", params={"q": "quokka"})).json()["results"][0]
    assert set(hit) == {"source", "heading", "score", "text", "chunk_id"}
    assert (hit["source"], hit["heading"]) == ("animals/zebra.md", "Stripes")
    explained = (await face.client.get(f"{here}/search", params={"q": "quokka", "explain": 1})).json()["results"][0]
    assert explained["sparse"]["rank"] == 1
    got = await face.client.get(f"{here}/documents/animals/zebra.md")
    assert got.text == ZEBRA
    assert got.headers["content-type"].startswith("text/markdown")
    listed = (await face.client.get(f"{here}/documents")).json()["documents"]
    assert [(one["path"], one["bytes"]) for one in listed] == [("animals/zebra.md", len(ZEBRA))]


async def test_a_document_put_without_wait_is_found_soon(face: Face) -> None:
    """202 comes at once, and the index follows."""
    here = await face.workspace("later")
    put = await face.client.put(f"{here}/documents/okapi.md", content=b"The okapi is shy.")
    assert put.status_code == 202
    while await found(face, here, "okapi") != ["okapi.md"]:
        await asyncio.sleep(0.02)


async def test_a_deleted_document_is_found_no_more(face: Face) -> None:
    """With wait the answer comes when the index has forgotten it; a second deletion is 404."""
    here = await face.workspace("losing")
    await face.client.put(f"{here}/documents/dodo.md?wait=true", content=b"The dodo is gone.")
    assert await found(face, here, "dodo") == ["dodo.md"]
    assert (await face.client.delete(f"{here}/documents/dodo.md?wait=true")).status_code == 200
    assert await found(face, here, "dodo") == []
    assert (await face.client.delete(f"{here}/documents/dodo.md")).status_code == 404
    assert (await face.client.get(f"{here}/documents/dodo.md")).status_code == 404


async def test_workspaces_do_not_see_each_others_documents(face: Face) -> None:
    """A search finds nothing of another workspace, even of one whose id begins alike."""
    one, other = await face.workspace("iso"), await face.workspace("iso-2")
    await face.client.put(f"{one}/documents/secret.md?wait=true", content=b"The narwhal password is swordfish.")
    assert await found(face, other, "narwhal password") == []
    assert (await face.client.get(f"{other}/documents/secret.md")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("a.md", b"\x00\x01", 400, "document_binary"),
        ("a.md", b"\xff\xfe latin", 400, "document_encoding"),
        ("a.md", b"x" * 20_001, 413, "too_large"),
        ("a.md", b"x" * 5_000_000, 413, "too_large"),
        ("a.exe", b"x", 400, "document_path"),
        ("..%2Fescape.md", b"x", 400, "document_path"),
        ("%2Fetc%2Fpasswd.md", b"x", 400, "document_path"),
        (".hidden.md", b"x", 400, "document_path"),
        ("a%00b.md", b"x", 400, "document_path"),
        ("x" * 250 + ".md", b"x", 400, "document_path"),
    ],
)
async def test_what_is_no_document_is_refused(face: Face, path: str, body: bytes, status: int, code: str) -> None:
    """Binary, wrong encoding, too large, and paths that lead elsewhere: a clear error, and nothing on disk."""
    here = await face.workspace("bad")
    answer = await face.client.put(f"{here}/documents/{path}", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert (await face.client.get(f"{here}/documents")).json() == {"documents": [], "skipped": []}


async def test_a_path_that_looks_like_another_documents_is_refused(face: Face) -> None:
    here = await face.workspace("twins")
    forms = [unicodedata.normalize(form, "für/Gebühren.md") for form in ("NFC", "NFD")]
    for folder, first, second in (("documents", *forms), ("codex", *forms), ("codex", *reversed(forms))):
        for _ in range(2):
            answer = await face.client.put(f"{here}/{folder}/{quote(first)}", content=b"The zebra has stripes.")
            assert answer.is_success, answer.text
        answer = await face.client.put(f"{here}/{folder}/{quote(second)}", content=b"The zebra has spots.")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "document_path")
        await face.client.delete(f"{here}/{folder}/{quote(first)}")


async def test_many_documents_come_as_lines(face: Face) -> None:
    """Each line stands for itself: bad ones are named with their number, the others are kept and found."""
    here = await face.workspace("bulk")
    lines = [
        json.dumps({"path": f"n{number}.md", "text": f"Number {number} is wombat{number}."}) for number in range(40)
    ]
    lines[7:7] = ["", "not json", '{"path": "../up.md", "text": "x"}', '{"path": "a.md"}']
    body = "\n".join(lines).encode()

    async def pieces() -> object:
        for at in range(0, len(body), 333):  # lines do not end where pieces do
            yield body[at : at + 333]

    answer = await face.client.post(f"{here}/documents?wait=true", content=pieces())  # type: ignore[arg-type]
    assert answer.status_code == 200
    told = answer.json()
    assert (told["documents"], told["refused"], told["indexed"]) == (40, 3, True)
    assert [one["line"] for one in told["refusals"]] == [8, 9, 10]
    assert (await found(face, here, "wombat17"))[0] == "n17.md"
    assert (await face.client.get(f"{here}/index")).json()["documents"] == 40


@pytest.mark.parametrize("body", [b"", b"\n\n", b"nonsense\n", b'{"path": "x", "text": "y"}'])
async def test_lines_without_any_document_are_an_error(face: Face, body: bytes) -> None:
    """Where nothing could be kept the answer is 400."""
    here = await face.workspace("nothing")
    assert (await face.client.post(f"{here}/documents", content=body)).status_code == 400


async def test_a_run_of_the_index_tells_its_progress(face: Face) -> None:
    """Events: progress for each document, then done with the counts."""
    here = await face.workspace("run")
    for name in ("a.md", "b.md"):
        await face.client.put(f"{here}/documents/{name}?wait=true", content=f"About {name}.".encode())
    answer = await face.client.post(f"{here}/index", json={"fresh": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *progress, (last, counts) = sse(answer.text)
    assert progress == [
        ("progress", {"done": 1, "total": 2, "path": "a.md"}),
        ("progress", {"done": 2, "total": 2, "path": "b.md"}),
    ]
    assert last == "done"
    assert (counts["documents"], counts["unchanged"]) == (2, 0)
    again = sse((await face.client.post(f"{here}/index", json={"paths": ["a.md"]})).text)
    assert again[-1][1]["unchanged"] == 1


async def test_an_index_that_is_away_is_said_not_hidden(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search and waiting answer 503, a run ends with an error, and a document is kept all the same."""
    here = await face.workspace("outage")

    async def away(*_: object, **__: object) -> None:
        raise IndexUnavailable("the index is away")

    monkeypatch.setattr(face.runtime.knowledge.collections, "ready", away)
    searched = await face.client.get(f"{here}/search", params={"q": "x"})
    assert (searched.status_code, searched.json()["error"]["code"]) == (503, "index_unavailable")
    waited = await face.client.put(f"{here}/documents/kept.md?wait=true", content=b"The ibex is kept.")
    assert waited.status_code == 503
    kept = await face.client.put(f"{here}/documents/kept.md", content=b"The ibex is kept.")
    assert kept.status_code == 202
    run = sse((await face.client.post(f"{here}/index")).text)
    assert run == [("error", {"error": {"code": "index_unavailable", "message": "the index is away"}})]
    grounded = await face.client.post(f"{here}/ground", json={"text": "What do our documents say about the ibex?"})
    assert {part["block"] for part in grounded.json()["degraded"]} >= {"retrieved"}
    monkeypatch.undo()
    assert (await face.client.post(f"{here}/index")).status_code == 200
    assert await found(face, here, "ibex") == ["kept.md"]


async def test_a_document_is_accepted_while_the_former_model_s_index_answers(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await face.workspace("changing")

    async def underway(*_: object) -> MigrationStatus:
        return MigrationStatus("old", "new", 0, turns=False)

    monkeypatch.setattr("runtime.http.routes.documents.migration_status", underway)
    put = await face.client.put(f"{here}/documents/late.md?wait=true", content=b"The ibex is late.")
    assert (put.status_code, put.json()["indexed"]) == (202, False)


@pytest.mark.parametrize("place", ["connector=slack", "external_id=C1", "context=http:a&connector=http&external_id=a"])
async def test_half_a_place_or_two_places_are_no_place_to_search_from(face: Face, place: str) -> None:
    found = await face.client.get(f"/v1/workspaces/sample/search?q=refund&{place}")
    assert (found.status_code, found.json()["error"]["code"]) == (400, "bad_request")


async def test_a_path_that_is_no_utf_8_makes_no_document(face: Face) -> None:
    """Else all such names would be one."""
    here = await face.workspace("bytes")
    put = await face.client.put(f"{here}/documents/%ff.md", content=b"# A text")
    assert (put.status_code, put.json()["error"]["code"]) == (400, "bad_request")
    assert (await face.client.get(f"{here}/documents")).json()["documents"] == []


QUOKKA = "# Marsupials\n\nThe quokka lives on an island and fears nobody.\n"
SPOKEN = "The secret word of this conversation is okapi, as the zoo says.\n"


async def put(face: Face, here: str, path: str, text: str | bytes, **query: str) -> httpx.Response:
    content = text.encode() if isinstance(text, str) else text
    return await face.client.put(f"{here}/codex/{path}", content=content, params=query)


async def listed(face: Face, here: str, **query: str) -> dict[str, Any]:
    answer = await face.client.get(f"{here}/codex", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ground(face: Face, here: str, text: str, context: str) -> dict[str, Any]:
    answer = await face.client.post(f"{here}/ground", json={"text": text, "context": context})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_file_is_kept_listed_read_and_taken_away(face: Face) -> None:
    here = await face.workspace("codex-one")
    kept = await put(face, here, "zoo/quokka.md", QUOKKA)
    assert kept.status_code == 200
    row = kept.json()
    assert (row["path"], row["shown_as"], row["bytes"]) == ("zoo/quokka.md", "zoo/quokka.md", len(QUOKKA))
    found = await listed(face, here)
    assert [one["path"] for one in found["files"]] == ["zoo/quokka.md"]
    assert (found["mode"], found["why"], found["bytes"]) == ("whole", "below_line", len(QUOKKA))
    assert found["tokens"] > row["tokens"] > 0
    assert (await face.client.get(f"{here}/codex/zoo/quokka.md")).text == QUOKKA
    assert (await face.client.delete(f"{here}/codex/zoo/quokka.md")).json() == {
        "path": "zoo/quokka.md",
        "deleted": True,
    }
    assert (await listed(face, here))["why"] == "empty"
    assert (await face.client.delete(f"{here}/codex/zoo/quokka.md")).status_code == 404
    assert (await face.client.get(f"{here}/codex/zoo/quokka.md")).status_code == 404


@pytest.mark.parametrize(
    ("path", "content", "status", "code"),
    [
        ("a.bin", b"\x00\x01", 400, "document_binary"),
        ("a.txt", b"\xff\xfe\xff", 400, "document_encoding"),
        ("a.txt", b"x" * 20_001, 413, "too_large"),
        ("here/a.txt", b"x", 400, "document_path"),
    ],
)
async def test_what_is_no_text_or_too_much_is_refused_by_name(
    face: Face, path: str, content: bytes, status: int, code: str
) -> None:
    here = await face.workspace("codex-refused")
    answer = await put(face, here, path, content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert (await listed(face, here))["files"] == []


async def test_all_files_together_have_a_limit_and_what_is_there_can_shrink(face: Face) -> None:
    here = await face.workspace("codex-full")
    for name in "abc":
        assert (await put(face, here, f"{name}.txt", "word " * 3000)).status_code == 200
    full = await put(face, here, "d.txt", "word " * 3000)
    assert (full.status_code, full.json()["error"]["code"]) == (413, "codex_full")
    assert (await put(face, here, "a.txt", "less")).status_code == 200
    assert (await put(face, here, "d.txt", "word " * 2000)).status_code == 200
    held = await face.runtime.materials.store.held(Scope("codex-full"))
    entries = await face.runtime.materials.store.entries(Scope("codex-full"))
    assert held.every.size_bytes == sum(one.size_bytes for one in entries.values())
    assert held.every.size.tokens == sum(one.size.tokens for one in entries.values())


async def test_only_admins_change_material_and_a_conversations_own_is_for_its_readers(face: Face) -> None:
    here = await face.workspace("codex-roles")
    await put(face, here, "a.md", QUOKKA)
    await put(face, here, "own.md", SPOKEN, context="slack:C1")
    for role, status in (("viewer", 403), ("member", 403), ("admin", 200)):
        async with face.as_token(await face.token("codex-roles", role)) as caller:
            assert (await caller.get(f"{here}/codex/a.md")).status_code == 200
            assert (await caller.put(f"{here}/codex/b.md", content=b"x")).status_code == status
            assert (await caller.get(f"{here}/codex/own.md", params={"context": "slack:C1"})).status_code == status


async def test_a_conversations_own_material_is_in_its_prompts_and_no_others(face: Face) -> None:
    here = await face.workspace("codex-places")
    await put(face, here, "quokka.md", QUOKKA)
    await put(face, here, "word.md", SPOKEN, context="http:den")
    inside, outside = await ground(face, here, "hm?", "den"), await ground(face, here, "hm?", "yard")
    elsewhere = await ground(face, await face.workspace("codex-elsewhere"), "hm?", "den")

    system = inside["messages"][0]["content"]
    assert "=== here/word.md\n" in system
    assert "=== quokka.md\n" in system
    assert "quokka" in outside["messages"][0]["content"]
    assert "okapi" not in str(outside["messages"])
    assert "quokka" not in str(elsewhere["messages"])


async def test_material_is_found_by_its_own_search_alone_and_in_its_own_place(face: Face) -> None:
    here = await face.workspace("codex-found")
    materials = face.runtime.materials
    await put(face, here, "quokka.md", QUOKKA)
    await put(face, here, "word.md", SPOKEN, context="http:den")
    den, yard = Scope("codex-found", "http:den"), Scope("codex-found", "http:yard")
    async with asyncio.timeout(30):
        while await materials.is_behind(den) or not (await listed(face, here))["indexed"]:
            await asyncio.sleep(0.05)

    async def sources(scope: Scope, text: str) -> set[str]:
        found, is_whole = await materials.find(scope, text, 5, 2000, 2000)
        assert is_whole
        return {one.source for one in found}

    assert await sources(den, "the quokka on its island") == {"quokka.md"}
    assert await sources(den, "the secret word okapi") == {"here/word.md"}
    assert await sources(yard, "the secret word okapi") == set()
    assert await sources(Scope("codex-one", "http:den"), "the quokka on its island") == set()
    documents = await face.client.get(f"{here}/search", params={"q": "quokka"})
    assert documents.json()["results"] == []

    await face.client.delete(f"{here}/codex/quokka.md")
    async with asyncio.timeout(30):
        while await materials.is_behind(den):
            await asyncio.sleep(0.05)
    assert await sources(den, "the quokka on its island") == set()


async def test_what_was_removed_or_changed_is_not_found_however_long_the_index_takes(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, scope = await face.workspace("codex-behind"), Scope("codex-behind", "http:den")
    for name in ("removed.md", "changed.md", "kept.md"):
        await put(face, here, name, f"The secret word is okapi, says {name}.")
        await put(face, here, name, f"In this den {name} names okapi as the secret word.", context="http:den")
    async with asyncio.timeout(30):
        while await face.runtime.materials.is_behind(scope):
            await asyncio.sleep(0.05)
    collection = await face.runtime.knowledge.ready()

    async def never(owner: Scope) -> int:
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(collection.material, "sync", never)
        for query in ({}, {"context": "http:den"}):
            await face.client.delete(f"{here}/codex/removed.md", params=query)
            await put(face, here, "changed.md", "There is no word.", **query)
        found, is_whole = await face.runtime.materials.find(scope, "the secret word okapi", 10, 2000, 2000)

    assert {one.source for one in found} == {"kept.md", "here/kept.md"}
    assert not is_whole


async def test_a_model_without_tools_is_given_what_bears_on_the_message_of_too_much(face: Face) -> None:
    """The emulated model is not known to call tools, and the material is more than 0.7 of its window."""
    here = await face.workspace("codex-search")
    for number in range(3):
        await put(face, here, f"filler{number}.md", "Ballast of no interest to anybody at all. " * 400)
    await put(face, here, "quokka.md", QUOKKA, context="http:den")
    scope = Scope("codex-search", "http:den")
    async with asyncio.timeout(60):
        while await face.runtime.materials.is_behind(scope):
            await asyncio.sleep(0.05)

    built = await ground(face, here, "does the quokka on its island fear anybody?", "den")

    [block] = [one for one in built["blocks"] if one["name"] == "codex"]
    assert (block["used"], block["why"]) == (False, "4 files, search: over line")
    assert "[here/quokka.md" in built["messages"][1]["content"]
    assert "fears nobody" in built["messages"][1]["content"]


async def test_a_turn_is_rebuilt_after_its_material_changed_and_kept_once(face: Face) -> None:
    here, scope = await face.workspace("codex-replay"), Scope("codex-replay")
    await put(face, here, "quokka.md", QUOKKA)
    turns = []
    for _ in range(2):
        answer = await face.client.post(f"{here}/messages", json={"text": "hm?", "context": "den"})
        turns.append(answer.json()["turn_id"])
    await put(face, here, "quokka.md", QUOKKA.replace("island", "mountain"))
    await face.client.post(f"{here}/messages", json={"text": "hm?", "context": "den"})

    for turn_id in turns:
        shown = (await face.client.get(f"{here}/turns/{turn_id}/replay")).json()
        assert shown["identical"] is True
        assert "lives on an island" in shown["messages"][0]["content"]
        explained = (await face.client.get(f"{here}/turns/{turn_id}")).json()
        assert "island" not in str(explained["context"])
    kept = [key async for key in face.runtime.store.client.scan_iter(match="ar:manifests:{w.codex-replay}:material:*")]
    assert len(kept) == 2
    manifest = await face.runtime.manifests.get(scope, turns[0])
    assert build_prompt(manifest.context, face.runtime.tokens).sha256 == manifest.prompt_sha256
