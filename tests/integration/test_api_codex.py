"""Material over HTTP: kept, listed with what decides how it is given, and found only where it belongs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from config.settings import Settings
from connectors.message import Scope
from grounding.prompt import build_prompt
from grounding.retrieval import Kind
from tests.emulators import openai
from tests.emulators.face import ADMIN, Face, serving_face

pytestmark = pytest.mark.asyncio(loop_scope="module")

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


async def test_the_list_says_what_a_turn_does_with_each_amount_of_material(
    data_dir: Path, provider: openai.FakeOpenAI
) -> None:
    """The model is offered tools, which take of its window."""
    settings = Settings.model_validate(
        {
            "data_dir": data_dir,
            "admin_token": ADMIN,
            "llm_model": "openai/fake",
            "llm_api_base": provider.base_url,
            "llm_api_key": "key",
            "llm_tools": "always",
            "llm_context_window_tokens": 16_000,
            "deep_embedding_model": "none",
        }
    )
    modes = []
    async with serving_face(settings) as face:
        here = await face.workspace("codex-amounts")
        for number, sentences in enumerate([600, *[40] * 8]):
            await put(face, here, f"filler{number}.md", "Ballast of no interest to anybody at all. " * sentences)
            found = await listed(face, here)
            built = await ground(face, here, "does the quokka on its island fear anybody?", "den")
            [block] = [one for one in built["blocks"] if one["name"] == "codex"]
            modes.append((found["mode"], "whole" if block["used"] else "search"))
    assert {said for said, _ in modes} == {"whole", "search"}
    assert [said for said, _ in modes] == [done for _, done in modes]


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


async def test_material_goes_with_its_workspace(face: Face) -> None:
    here = await face.workspace("codex-gone")
    await put(face, here, "quokka.md", QUOKKA)
    assert (await face.client.delete(here)).status_code == 200
    left = [key async for key in face.runtime.store.client.scan_iter(match="ar:codex:{w.codex-gone}:*")]
    assert left == []


async def test_a_reindex_cuts_and_embeds_the_material_anew(face: Face) -> None:
    here, scope = await face.workspace("codex-anew"), Scope("codex-anew")
    await put(face, here, "quokka.md", QUOKKA)
    async with asyncio.timeout(30):
        while await face.runtime.materials.is_behind(scope):
            await asyncio.sleep(0.05)
    collection = await face.runtime.knowledge.ready()
    await collection.index.delete(scope, Kind.CODEX)
    assert (await face.runtime.materials.find(scope, "the quokka on its island", 5, 2000, 2000))[0] == []

    async with face.client.stream("POST", "/v1/reindex", json={"workspace": "codex-anew"}) as answer:
        told = [line async for line in answer.aiter_lines()]

    assert any('"material":1' in line.replace(" ", "") for line in told), told
    assert (await face.runtime.materials.find(scope, "the quokka on its island", 5, 2000, 2000))[0] != []
