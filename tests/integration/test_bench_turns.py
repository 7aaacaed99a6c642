"""The bench of turns measures what it says, with tiny sizes: what it prints of times is nobody's promise here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import growth, overhead, people, stages, storm, turns
from bench.children import ChildFailed, child, children_of, cpu_ms, memory_mb
from bench.cost import KINDS
from bench.figures import Spread, Verdict, share
from bench.overhead import MESSAGES, Overhead, overheads
from grounding.transcript import Transcript
from runtime import stores


def test_a_figure_is_reached_or_missed_by_a_factor() -> None:
    assert Verdict("time", 5.0, 10.0, "ms").factor == 0.5
    assert Verdict("time", 20.0, 10.0, "ms").factor == 2.0
    assert Verdict("rate", 60.0, 120.0, "/s", at_least=True).factor == 2.0
    assert Verdict("lost", 0, 0, "").factor == 1.0
    assert Verdict("lost", 1, 0, "").factor == float("inf")
    assert "MISSED by a factor of 2.00" in str(Verdict("time", 20.0, 10.0, "ms"))


def test_figures_of_several_repeats_show_their_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0]).median == 2.0
    assert str(Spread.of([3.0, 1.0, 2.0])).endswith("[1.00 … 3.00]")
    assert share([float(n) for n in range(100)], 0.95) == 95.0


def test_overhead_is_what_lies_before_and_behind_the_turns_first_request() -> None:
    spans = [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    requests = [(1.25, 1.5), (1.9, 4.5), (3.5, 3.75)]
    found = overheads(spans, requests)
    assert found[:2] == [Overhead(250.0, 500.0), Overhead(500.0, 250.0)]
    assert len(found) == 2, "a turn without a request is left out"


@pytest.mark.parametrize("place", stages.STAGES.values())
def test_every_stage_is_a_call_of_the_runtime(place: str) -> None:
    owner, name = stages.find(place)
    assert callable(getattr(owner, name))


@pytest.mark.parametrize(
    ("answer", "stream", "said"),
    [
        ('{"text": "hello"}', False, True),
        ('{"text": "", "error_code": "model_unavailable"}', False, False),
        ('{"text": "Sorry.", "error_code": "model_unavailable"}', False, False),
        ('event: delta\ndata: {"text": "he"}\n\nevent: done\ndata: {"text": "hello"}\n\n', True, True),
        ('event: delta\ndata: {"text": "he"}\n\nevent: error\ndata: {"error": {}}\n\n', True, False),
    ],
)
def test_an_apology_or_half_a_stream_is_no_answer(answer: str, stream: bool, said: bool) -> None:
    assert people._said(answer, stream) is said


def test_the_sections_are_chosen_by_name() -> None:
    asked = turns.arguments(["--only", "cpu", "crash", "--turns", "5"])
    assert (asked.only, asked.turns, asked.repeats) == (["cpu", "crash"], 5, turns.DEFAULT_REPEATS)


def test_what_other_programs_computed_is_what_was_not_ours() -> None:
    assert turns.others_share((0.0, 0.0, 0.0), (10.0, 6.0, 1.0)) == 0.5


async def test_a_command_that_breaks_in_a_child_is_told() -> None:
    async with child("bench.people") as process:
        with pytest.raises(ChildFailed, match="ClientConnectorError"):
            await process.ask("talk", url="http://127.0.0.1:1", text="hello", turns=1, places=["a"])
        assert cpu_ms(process.pid) > 0
        assert memory_mb(process.pid)[0] > 10


async def test_the_overhead_of_turns_of_a_served_bot_is_measured_plain_and_streamed(tmp_path: Path) -> None:
    async with overhead.scene(tmp_path) as made:
        await made.stages()
        plain, _ = await made.talk(MESSAGES["none"], 2, "a")
        assert len(plain) == 2
        assert all(one.before > 0 and one.after > 0 for one in plain)
        await made.model.ask("chunks", count=KINDS[-1].chunks)
        streamed, _ = await made.talk(MESSAGES["none"], 2, "b", stream=True)
        assert len(streamed) == 2
        times = await made.stages()
        timed = {stage for stage, found in times.items() if found}
        assert timed >= {"accept", "turn", "model (LiteLLM and provider)", "store reply"}
        assert any("valkey" in name or "redis" in name for name in children_of(made.bot.pid))


def test_a_storm_is_as_large_as_it_is_asked_for() -> None:
    assert vars(storm.arguments([])) == {"messages": 2000, "conversations": 200}
    assert vars(storm.arguments(["20", "4"])) == {"messages": 20, "conversations": 4}


async def test_histories_are_filled_by_the_real_modules(tmp_path: Path) -> None:
    places: Sequence[tuple[str, int]] = [("a", 6), ("b", 4)]
    async with growth.own_redis(tmp_path / "redis") as url:
        filling = growth.Filling(url, tmp_path / "data")
        await filling.histories(places)
        await filling.recall(places)
        await filling.close()
        redis = stores.connect(url, 5.0)
        transcript = Transcript(redis)
        assert [(await transcript.reach(growth.key_of(place))).entries for place, _ in places] == [6, 4]
        assert await transcript.to_copy([growth.key_of("a").partition], 10) == {}
        await redis.aclose()
    assert list((tmp_path / "data" / "qdrant").iterdir())
