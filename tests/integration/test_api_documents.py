"""Documents over HTTP: kept, indexed on arrival, found, and nothing that is none."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from urllib.parse import quote

import pytest

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
