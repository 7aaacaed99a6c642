"""A whole runtime with the deeper model: documents are found at once, and looked at more deeply later."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from connectors.connector import ConnectionState
from connectors.message import Scope
from runtime.embedded.index_client import RemoteIndex
from runtime.process import bootstrap
from runtime.search import deepening
from runtime.workspaces import SAMPLE
from tests.conftest import MakeSettings
from tests.emulators.face import ADMIN, Face, serving_face

TEXTS = {
    "money.md": "# Money\n\nWhoever sends an article back is paid what it cost.",
    "ships.md": "# Ships\n\nThe harbour opens at nine.",
    **{f"other{n}.md": f"# Other {n}\n\nNumber {n} of many notes about nothing." for n in range(10)},
}


async def until_deepened(face: Face, here: str) -> None:
    async with asyncio.timeout(60):
        while (await face.client.get(f"{here}/index")).json()["shallow"]:
            await asyncio.sleep(0.05)


async def until_followed(face: Face) -> None:
    """Before that nobody knows what became of the documents since the last start, and every search says so."""
    async with asyncio.timeout(60):
        while not face.runtime.knowledge.is_followed:
            await asyncio.sleep(0.05)


async def checks(face: Face) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in (await face.client.get("/v1/doctor")).json()["checks"]}


async def test_documents_are_found_at_once_and_compared_by_a_deeper_model_later(
    settings: MakeSettings, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepening, "START_SECONDS", 0.0)
    monkeypatch.setattr(bootstrap, "QUESTION_SECONDS", 30.0)  # the machine may be busy
    made = settings(deep_embedding_model="bundled/minilm", admin_token=ADMIN, llm_model="openai/fake")
    async with serving_face(made) as face:
        here = await face.workspace("zoo")
        for path, text in TEXTS.items():
            put = await face.client.put(f"{here}/documents/{path}?wait=true", content=text.encode())
            assert put.json()["indexed"]
        await until_deepened(face, here)
        await until_deepened(face, f"/v1/workspaces/{SAMPLE}")  # seen to after what was stored last
        told = await face.event("index.deepened", workspace_id="zoo")
        assert told["chunks"] >= 1
        search = face.runtime.knowledge.finding.search
        hits = await search(Scope("zoo"), "refund of an article", 3, explain=True)
        assert hits[0].passage.source == "money.md"
        assert hits[0].deep is not None
        found = await checks(face)
        assert (found["deep embedding"]["ok"], found["deep embedding"]["detail"]) == (True, "bundled/minilm")
        assert "index_chunks_deepened_total" in (await face.client.get("/metrics")).text

        model, index = face.runtime.deep, (await face.runtime.knowledge.ready()).index
        assert model is not None
        assert isinstance(index, RemoteIndex)
        killed = index._process.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        while index._process.pid in (killed, None):
            await asyncio.sleep(0.05)
        await face.client.put(f"{here}/documents/late.md?wait=true", content=b"# Late\n\nIt came last.")
        assert [hit.passage.source for hit in await search(Scope("zoo"), "came last", 1)] == ["late.md"]
        await until_deepened(face, here)
        assert model.health.state is ConnectionState.CONNECTED


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"deep_embedding_model": "none"}, "DEEP_EMBEDDING_MODEL is none"),
        ({"deep_embedding_model": "bundled/minilm", "embedding_model": "bundled/minilm"}, "EMBEDDING_MODEL is another"),
        ({"deep_embedding_model": "bundled/minilm"}, "not installed"),
    ],
)
async def test_without_a_deeper_model_everything_is_as_it_was_and_the_doctor_says_why(
    settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], why: str
) -> None:
    if why == "not installed":
        monkeypatch.setattr("runtime.search.deepening._has", lambda package: package == "onnxruntime")
    async with serving_face(settings(admin_token=ADMIN, llm_model="openai/fake", **chosen)) as face:
        here = await face.workspace("zoo")
        await until_followed(face)
        await face.client.put(f"{here}/documents/money.md?wait=true", content=TEXTS["money.md"].encode())
        found = (await face.client.get(f"{here}/search", params={"q": "article"})).json()
        assert [hit["source"] for hit in found["results"]] == ["money.md"]
        assert found["degraded"] == []
        assert (await face.client.get(f"{here}/index")).json()["shallow"] == 0
        check = (await checks(face))["deep embedding"]
        assert check["ok"]
        assert check["detail"].startswith("off: ")
        assert why in check["detail"]
