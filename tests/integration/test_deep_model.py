"""The deeper embedding model: a real one, in a process of its own."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from pathlib import Path

import pytest

from connectors.connector import State
from grounding.documents.deeper import NotYet
from grounding.documents.embedding import EmbedderUnavailable
from grounding.documents.minilm import MiniLMEmbedder
from runtime.embedded import deep_model as module
from runtime.embedded.deep_model import DeepModel, deep_model
from runtime.embedded.vector_lane import VectorLane

TEXTS = [
    "The refund window is thirty days.",
    "Schiffe im Hafen \U0001f6a2 – \udcff",
    "",
    "how long is the window for a refund " * 1000,
]


PATIENT = 30.0
"""What these tests ask is whether there is an answer: the machine may be busy."""


async def test_its_vectors_are_those_of_the_model_in_this_process(data_dir: Path) -> None:
    here = MiniLMEmbedder(only_english=True)
    async with deep_model(data_dir, PATIENT) as model:
        assert (model.name, model.dimensions) == (here.name, here.dimensions)
        found = await model.embed_documents(TEXTS)
        expected = await here.embed_documents([text.encode("utf-8", "replace").decode() for text in TEXTS])
        for vector, other in zip(found, expected, strict=True):
            assert vector == pytest.approx(other, abs=1e-6)
        assert found[2] == [0.0] * 384
        assert math.hypot(*found[0]) == pytest.approx(1, abs=1e-5)
        assert await model.embed_queries(TEXTS[:2]) == found[:2]


async def test_a_model_that_nobody_wants_is_never_started(data_dir: Path) -> None:
    async with deep_model(data_dir, PATIENT) as model:
        await asyncio.sleep(0)
        assert model.health.state is State.STOPPED
        assert model.pid is None
    assert not (data_dir / "model").exists()


async def test_a_question_before_the_child_is_ready_goes_without_and_starts_it(data_dir: Path) -> None:
    async with deep_model(data_dir, 0.01) as model:
        with pytest.raises(NotYet):
            await model.embed_queries(["refund"])
        await model.embed_documents(["it runs"])
        model.prepare(["refund"])
        while not model._asked["refund"].done():
            await asyncio.sleep(0.01)
        assert len(await model.embed_queries(["refund"])) == 1


async def test_a_question_that_is_not_answered_in_time_goes_without(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deep_model(data_dir, 0.01) as model:
        await model.embed_documents(["it runs"])
        monkeypatch.setattr(VectorLane, "ask", lambda *_: asyncio.get_running_loop().create_future())
        with pytest.raises(EmbedderUnavailable, match="late") as late:
            await model.embed_queries(["refund"])
        assert not isinstance(late.value, NotYet)


async def test_a_question_that_was_prepared_or_asked_before_is_not_embedded_again(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deep_model(data_dir, PATIENT) as model:
        await model.embed_documents(["it runs"])
        asked: list[str] = []
        ask = VectorLane.ask

        def counted(self: VectorLane, text: str) -> asyncio.Future[list[float] | None]:
            asked.append(text)
            return ask(self, text)

        monkeypatch.setattr(VectorLane, "ask", counted)
        model.prepare(["refund", "opening hours"])
        assert asked == ["refund", "opening hours"]
        vectors = await model.embed_queries(["opening hours", "refund"])
        assert await model.embed_queries(["refund"]) == vectors[1:]
        assert asked == ["refund", "opening hours"]
        for number in range(module.REMEMBERED):
            await model.embed_queries([f"question {number}"])
        await model.embed_queries(["refund"])
        assert asked.count("refund") == 2


async def test_a_question_does_not_wait_behind_documents(data_dir: Path) -> None:
    async with deep_model(data_dir, PATIENT) as model:
        await model.embed_documents(["it runs"])
        many = asyncio.ensure_future(model.embed_documents(["how long is the window for a refund " * 40] * 40))
        await asyncio.sleep(0.1)
        assert len(await model.embed_queries(["refund"])) == 1
        assert not many.done()
        assert len(await many) == 40


async def test_killed_the_child_is_started_again_and_what_it_was_asked_has_failed(data_dir: Path) -> None:
    async with deep_model(data_dir, PATIENT) as model:
        await model.embed_documents(["it runs"])
        first = model.pid
        many = asyncio.ensure_future(model.embed_documents(["refund window " * 200] * 200))
        await asyncio.sleep(0.1)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with pytest.raises(EmbedderUnavailable) as failed:
            await many
        assert failed.value.retryable
        assert len(await model.embed_documents(["again"])) == 1
        assert len(await model.embed_queries(["again"])) == 1
        last = model.pid
        assert last is not None
        assert last != first
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


async def test_a_child_that_cannot_load_its_model_says_why(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = data_dir / "broken" / "onnxruntime"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('built for another machine')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    monkeypatch.setattr(module, "DOCUMENTS_SECONDS", 0.1)
    async with deep_model(data_dir, PATIENT) as model:
        model.begin()
        while model.health.state is not State.DEGRADED:
            await asyncio.sleep(0.01)
        assert "exit code 1" in model.health.why
        with pytest.raises(EmbedderUnavailable):
            await model.embed_documents(["refund"])


async def test_a_text_that_the_model_refuses_is_told_and_the_next_one_is_embedded(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DeepModel(data_dir, PATIENT)
    lane = VectorLane()
    monkeypatch.setattr(VectorLane, "is_open", True)
    monkeypatch.setattr(lane, "ask", lambda text: _done(None if text == "bad" else [1.0]))

    async def ready() -> VectorLane:
        return lane

    monkeypatch.setattr(model._program, "documents_lane", ready)
    with pytest.raises(EmbedderUnavailable) as failed:
        await model.embed_documents(["good", "bad"])
    assert not failed.value.retryable
    assert await model.embed_documents(["good"]) == [[1.0]]


def _done(vector: list[float] | None) -> asyncio.Future[list[float] | None]:
    future: asyncio.Future[list[float] | None] = asyncio.get_running_loop().create_future()
    future.set_result(vector)
    return future
