"""The bench of prefixes measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.caches import EXACT, OPENAI, VLLM, Cache, Kind, simulated
from bench.chats import made_up, read
from bench.layout_quality import LAYOUTS, asked, interval, prompt, sign_test
from bench.prefix import arguments
from bench.prompts import in_turn, replayed
from grounding.prompt_input import load_tokens
from runtime.embedded.serve_model import prefix_cache_mib


def test_a_cache_keeps_whole_steps_of_a_beginning_and_never_all_of_a_prompt() -> None:
    blocks = Cache(VLLM)
    assert blocks.read(range(100)) == 0
    assert blocks.read(range(100)) == 96
    assert blocks.read(range(96)) == 80
    assert blocks.read([*range(40), 0, *range(60)]) == 32
    assert blocks.read([1, *range(100)]) == 0
    assert Cache(Kind("", 1)).read(range(9)) == 0


def test_prompts_below_the_least_length_are_not_kept() -> None:
    cache = Cache(OPENAI)
    assert [cache.read(range(1000)), cache.read(range(1000))] == [0, 0]
    assert [cache.read(range(2000)), cache.read(range(2000))] == [0, 1920]


def test_a_cache_of_ones_own_knows_nothing_of_what_others_asked() -> None:
    row = [("a", range(32)), ("b", range(32))]
    assert simulated(EXACT, row, is_shared=False).cached == [0, 0]
    assert simulated(EXACT, row, is_shared=True).cached == [0, 31]


def test_made_up_conversations_are_the_same_every_time_and_ask_for_documents_in_three_of_ten_turns() -> None:
    scene = made_up(10, 20)
    assert scene == made_up(10, 20)
    assert sum(said.wants_documents for chat in scene.chats for said in chat.turns) == 60


def test_all_conversations_are_held_in_turn_and_replayed_with_all_that_was_said() -> None:
    chats = made_up(2, 3).chats
    assert [(chat.name, number) for chat, number in in_turn(chats)][:3] == [("chat-0", 0), ("chat-1", 0), ("chat-0", 1)]
    last = replayed(chats)[-1].messages
    assert [message["role"] for message in last] == ["system", *["user", "assistant"] * 2, "user"]


def test_chats_of_a_folder_are_played_and_what_was_said_later_are_their_documents(tmp_path: Path) -> None:
    lines = [
        {"text": f"{role}: {role} {number}", "metadata": {"workspace": chat}}
        for chat in ("one", "two")
        for number in range(4)
        for role in ("user", "assistant")
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    scene = read(tmp_path, 1, 2)

    [chat] = scene.chats
    assert [said.answered for said in chat.turns] == ["assistant 0", "assistant 1"]
    assert chat.turns[1].asked == "user 1"
    assert scene.documents["one/000.md"] == "user 2"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_question_of_quality_has_its_answer_in_the_prompt_whatever_the_layout(layout: str) -> None:
    for one in asked(8):
        text = prompt(one, layout, load_tokens()).user  # type: ignore[arg-type]
        assert text.count(one.wanted) == 1
        assert text.startswith("Which number has") is (layout == "user_first")


def test_shares_come_with_wilsons_interval_and_differences_with_a_sign_test() -> None:
    assert interval(24, 48) == pytest.approx((0.364, 0.636), abs=0.001)
    assert sign_test(5, 5) == 1.0
    assert sign_test(0, 6) == pytest.approx(2 / 64)


def test_the_sections_and_ways_are_chosen_by_name() -> None:
    assert arguments(["--only", "floor"]).only == ["floor"]
    assert arguments([]).chats == 6
    with pytest.raises(SystemExit):
        arguments(["--ways", "sideways"])


def test_the_memory_for_prompts_follows_the_machines() -> None:
    assert [prefix_cache_mib(gib * 2**30) for gib in (1, 8, 64)] == [256, 409, 1024]
