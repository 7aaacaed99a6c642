"""The benches measure what they say, with tiny sizes. What they print of times is nobody's promise here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scale, storm, turns
from bench.actors import MESSAGES, is_reply
from bench.figures import others_share, share, spread
from bench.processes import ChildFailed, child, cpu_ms, memory_mb, own_redis
from bench.turns import Overhead, overheads
from grounding.transcript import Transcript
from runtime import stores


def test_figures_of_several_repeats_show_their_spread() -> None:
    assert spread([3.0, 1.0, 2.0]).split() == ["2.00", "[1.00", "…", "3.00]"]
    assert share([float(n) for n in range(100)], 0.95) == 95.0


def test_overhead_is_what_lies_before_and_behind_the_turns_first_request() -> None:
    spans = [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)]
    requests = [(1.25, 1.5), (1.9, 4.5), (3.5, 3.75)]
    found = overheads(spans, requests)
    assert found[:2] == [Overhead(250.0, 500.0), Overhead(500.0, 250.0)]
    assert len(found) == 2, "a turn without a request is left out"


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
    assert is_reply(answer, stream) is said


def test_the_sections_are_chosen_by_name() -> None:
    asked = turns.arguments(["--only", "rate", "telegram", "--turns", "5"])
    assert (asked.only, asked.turns, asked.repeats) == (["rate", "telegram"], 5, 3)
    assert scale.arguments(["--only", "memory"]).only == ["memory"]


def test_what_other_programs_computed_is_what_was_not_ours() -> None:
    assert others_share((0.0, 0.0, 0.0), (10.0, 6.0, 1.0)) == 0.5


async def test_a_command_that_breaks_in_a_child_is_told() -> None:
    async with child("bench.actors", "people") as process:
        with pytest.raises(ChildFailed, match="ClientConnectorError"):
            await process.ask("talk", url="http://127.0.0.1:1", texts=["hello"], turns=1, places=["a"])
        assert cpu_ms(process.pid) > 0
        assert memory_mb(process.pid) > 10


async def test_turns_of_a_served_bot_are_measured_with_all_its_processes(tmp_path: Path) -> None:
    async with scale.scene(tmp_path) as made:
        before = made.bot.cpu_ms()
        await made.model.ask("times")
        spans = (await made.talk([MESSAGES["none"]], 2, ["a"]))["spans"]
        found = overheads(spans, await made.model.ask("times"))
        assert len(found) == 2
        assert all(one.before > 0 and one.after > 0 for one in found)
        await made.model.ask("chunks", count=40)
        assert len((await made.talk([MESSAGES["none"]], 2, ["b"], stream=True))["spans"]) == 2
        assert sum(made.bot.cpu_ms().values()) > sum(before.values())
        names = made.bot.memory_mb().keys()
        assert {"runtime", "runtime.embedded.index_server"} <= names
        assert any("valkey" in name or "redis" in name for name in names)


def test_a_storm_is_as_large_as_it_is_asked_for() -> None:
    assert vars(storm.arguments([])) == {"messages": 2000, "conversations": 200}
    assert vars(storm.arguments(["20", "4"])) == {"messages": 20, "conversations": 4}


async def test_histories_are_filled_by_the_real_modules(tmp_path: Path) -> None:
    places = [("a", 6), ("b", 4)]
    async with own_redis(tmp_path / "redis") as url:
        filling = scale.Filling(url, tmp_path / "data")
        await filling.write(places)
        await filling.close()
        redis = stores.connect(url, 5.0)
        transcript = Transcript(redis)
        assert [(await transcript.reach(scale.key_of(place))).entries for place, _ in places] == [6, 4]
        assert await transcript.to_copy([scale.key_of("a").partition], 10) == {}
        await redis.aclose()
    assert list((tmp_path / "data" / "qdrant").iterdir())
