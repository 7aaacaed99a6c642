"""What a model's attention cache takes, where that is known from, and what goes out of a prompt that would not fit."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grounding.prompt import CacheShape, CondensedPrompt, build_prompt, condense_to_memory, record_line, shape_of
from grounding.prompt.memory_budget import cache_mib
from grounding.prompt_input import (
    CONDENSED,
    ContextTooLarge,
    Injected,
    ModelMemory,
    Passage,
    Query,
    RunContext,
    SummaryInput,
    Trace,
)
from runtime.embedded.llama import WEIGHTS_SHA256
from runtime.machine.model_memory import SMOLLM2_SHAPE
from tests.emulators.prompts import SELECTION, TEXT, TOKENS, context, everything, exchange, record

LLAMA_8B = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
}


def test_the_cache_of_a_model_with_grouped_queries_takes_128_kib_a_token_at_16_bits() -> None:
    shape = shape_of(LLAMA_8B)
    assert shape == CacheShape(layers=32, kv_heads=256, key_size=128, value_size=128)
    assert shape.bytes_per_token("f16") == 2 * 32 * 8 * 128 * 2 == 131_072
    assert shape.bytes_per_token("q8_0") == 69_632
    assert shape.bytes_per_token("q4_0") == 36_864


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"llama.attention.head_count_kv": None}, CacheShape(32, 1024, 128, 128)),
        ({"llama.attention.key_length": 64, "llama.attention.value_length": 96}, CacheShape(32, 256, 64, 96)),
        ({"llama.attention.head_count_kv": [8] * 16 + [0] * 16}, CacheShape(32, 128, 128, 128)),
        ({"llama.attention.head_count": [32] * 32}, CacheShape(32, 256, 128, 128)),
        ({"llama.block_count": None}, None),
        ({"llama.block_count": 2**40}, None),
        ({"llama.block_count": True}, None),
        ({"llama.embedding_length": "wide"}, None),
        ({"llama.attention.head_count_kv": [8], "llama.attention.head_count": None}, None),
        ({"general.architecture": None}, None),
    ],
)
def test_a_description_gives_the_shape_or_nothing(changes: dict[str, Any], shape: CacheShape | None) -> None:
    about = {key: value for key, value in (LLAMA_8B | changes).items() if value is not None}
    assert shape_of(about) == shape


def test_the_bundled_model_takes_22_kib_a_token() -> None:
    """The shape is that of these weights: others need another one."""
    assert WEIGHTS_SHA256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert SMOLLM2_SHAPE.bytes_per_token("f16") == 2 * 30 * 3 * 64 * 2


def memory(free_mib: int, **changes: Any) -> ModelMemory:
    fields: dict[str, Any] = {"bytes_per_token": 131_072, "buffer_mib": 256, "where": "gpu", "source": "ollama"}
    return ModelMemory(**(fields | {"free_mib": free_mib} | changes))


TRACE = Trace(turn_id="t-7", asked="why?", answered="because", marked_on="2026-01-02", good=1)
KEPT = record("v1", "Never round a price", verbatim=True)
FULL: dict[str, Any] = {
    "query": Query(text="What does the basic plan cost?"),
    "tail": (*exchange("t1", "first", "one"), *exchange("t2", "second", "two")),
    "karma": (TRACE,),
    "records": (record("r1", "Plans change in May"), KEPT),
    "selection": SELECTION,
    "passages": tuple(Passage(source=f"{n}.md", heading="", text=f"passage {n} " * 20, score=1.0) for n in range(3)),
}


@functools.cache
def steps() -> list[CondensedPrompt]:
    """The prompt for less and less memory, each time that another block is taken."""
    found: list[CondensedPrompt] = []
    whole = context(**FULL)
    for free in range(600, 200, -1):
        made = condense_to_memory(whole.model_copy(update={"memory": memory(free)}), TOKENS)
        if not found or made.taken != found[-1].taken or made.prompt.sha256 != found[-1].prompt.sha256:
            found.append(made)
    return found


def test_traces_go_in_the_order_of_their_worth_and_the_message_and_what_is_kept_word_for_word_stay() -> None:
    made = steps()
    assert [one.taken[-1] if one.taken else "" for one in made] == [
        *("", "karma", "records", "records", "tail", "summary", "retrieved", "retrieved")
    ]
    last = made[-1]
    assert "What does the basic plan cost?" in last.prompt.user
    assert record_line(KEPT, with_id=False) in last.prompt.user
    assert "Lena: second\nassistant: two" in last.prompt.user
    assert "first" not in last.prompt.user
    assert last.prompt.system == made[0].prompt.system


def test_what_was_said_longer_ago_and_is_known_besides_is_told_in_short_before_it_is_taken_out() -> None:
    long = "It was moored in the east. " * 30
    document = "".join(f"## {title}\n- one\n- two\n- three {long}\n\n" for title in ("Facts", "Decisions"))
    full = {
        **FULL,
        "tail": (*exchange("t1", "first. " + long, "one. " + long), *exchange("t2", "second", "two. " + long)),
        "records": (record("r1", "Plans change in May. " + long), record("v1", long.strip(), verbatim=True)),
        "summary": SummaryInput(text=document, turns=3, version=1),
    }
    whole = context(**full)
    needed = cache_mib(whole.model_copy(update={"memory": memory(0)}), build_prompt(whole, TOKENS))
    made = condense_to_memory(whole.model_copy(update={"memory": memory(256 + needed - 60)}), TOKENS)

    assert not made.is_over
    assert set(made.taken) <= {"karma", "records", "tail", "summary"}
    assert [one.text for one in made.context.records][1:] == [long.strip()]
    assert made.context.records[0].text.startswith("Plans change in May. It was moored")
    assert len(made.context.records[0].text) < 200
    assert made.context.tail[-2:] == whole.tail[-2:]


def test_what_was_taken_is_named_and_no_prompt_says_that_documents_could_not_be_searched() -> None:
    last = steps()[-1]
    assert [(one.block, one.why) for one in last.context.degraded] == [
        (block, CONDENSED) for block in ("karma", "records", "tail", "summary", "retrieved")
    ]
    assert "could not be searched" not in last.prompt.user
    assert "No document" not in last.prompt.user
    block = last.prompt.block("retrieved")
    assert block is not None
    assert block.why == "degraded: condensed"


def test_a_condensed_turn_is_rebuilt_byte_for_byte_from_what_is_stored_of_it() -> None:
    for made in steps():
        again = RunContext.model_validate_json(made.context.model_dump_json())
        assert build_prompt(again, TOKENS).sha256 == made.prompt.sha256


@given(said=TEXT, free=st.integers(0, 3000), per_token=st.integers(1, 500_000), reserved=st.integers(0, 9000))
@settings(max_examples=40, deadline=None)
def test_a_prompt_fits_the_memory_unless_nothing_is_left_to_take(
    said: str, free: int, per_token: int, reserved: int
) -> None:
    held = memory(free, bytes_per_token=per_token, reserved_tokens=reserved)
    whole = context(**everything(said, (record("r", said[:400] or "x"), KEPT), "why?"), memory=held)
    try:
        made = condense_to_memory(whole, TOKENS)
    except ContextTooLarge:
        return
    assert made.is_over or cache_mib(made.context, made.prompt) <= max(free - held.buffer_mib, 0)
    if made.is_over:
        shown = [block.name for block in made.prompt.blocks if block.text]
        assert not {"karma", "summary", "retrieved"} & set(shown)
        assert [one.id for one in made.context.records] == ["v1"]
    assert record_line(KEPT, with_id=False) in made.prompt.user


def test_where_nothing_is_left_to_take_the_model_is_asked_all_the_same() -> None:
    made = condense_to_memory(context(**FULL, memory=memory(0)), TOKENS)
    assert made.is_over
    assert made.taken == steps()[-1].taken
    assert "What does the basic plan cost?" in made.prompt.user


def test_what_formatters_added_goes_first_and_what_they_made_of_a_block_goes_with_it() -> None:
    added = Injected(name="weather", message="user", place="records", volatility="turn", text="rain", budget=50)
    told = added.model_copy(update={"name": "summary", "place": "summary", "volatility": "session", "text": "retold"})
    fixed = added.model_copy(update={"name": "tree", "message": "system", "place": "codex", "volatility": "static"})
    whole = context(**FULL, injected=(added, told, fixed))
    assert "retold" in build_prompt(whole, TOKENS).user
    made = condense_to_memory(whole.model_copy(update={"memory": memory(0)}), TOKENS)
    assert made.taken[0] == "injected"
    assert made.context.injected == (fixed,)
    assert "rain" not in made.prompt.user
    assert "retold" not in made.prompt.user


def test_without_knowledge_of_the_memory_nothing_is_taken() -> None:
    made = condense_to_memory(context(**FULL), TOKENS)
    assert (made.taken, made.is_over, made.needed_mib) == ((), False, 0)


def test_what_the_server_has_set_aside_already_need_not_be_free() -> None:
    whole = context(**FULL, memory=memory(0, reserved_tokens=8192))
    assert condense_to_memory(whole, TOKENS).taken == ()
