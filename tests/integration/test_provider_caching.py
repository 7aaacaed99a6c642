"""What providers that keep beginnings of prompts are told, and how what they report is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from runtime.llm import Model, StablePrefix
from tests.conftest import MakeSettings
from tests.emulators.recorded import answering

RESPONSES = Path(__file__).parents[1] / "data" / "provider_responses"
STANDING = StablePrefix(static=7, ends=(6, 12), key="k")
MESSAGES = [{"role": "system", "content": "Rules.\n\nLines."}, {"role": "user", "content": "About\nLena: hi.\nQuery?"}]
MARK = {"type": "ephemeral"}


def response(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESPONSES / f"{name}.json").read_text("utf-8"))
    return found


RECORDED = [
    (file.stem, streams)
    for file in sorted(RESPONSES.glob("*.json"))
    for streams in (False, True)
    if not streams or response(file.stem)["events"]
]


def model_at(settings: MakeSettings, base_url: str, name: str, **more: Any) -> Model:
    base = base_url + response(name)["base"]
    return Model(settings(llm_model=response(name)["model"], llm_api_base=base, llm_api_key=SecretStr("key"), **more))


@pytest.mark.parametrize(("name", "streams"), RECORDED)
async def test_cached_tokens_are_part_of_the_prompts_in_every_convention_and_cost_what_the_list_says(
    settings: MakeSettings, name: str, streams: bool
) -> None:
    told = response(name)

    async def show(delta: str) -> None: ...

    async with answering(told["body"], told["events"]) as provider:
        model = model_at(settings, provider.base_url, name)
        completion = await model.complete(MESSAGES, on_delta=show if streams else None, stable_prefix=STANDING)
        await model.close()
    usage = completion.usage
    assert completion.text == "Thirty days."
    assert {"prompt": usage.prompt, "cached": usage.cached, "completion": usage.completion} == told["counted"]
    if told["cost_usd"] is not None:
        assert usage.cost_usd == pytest.approx(told["cost_usd"])
    else:
        assert usage.cost_usd > 0


async def sent(settings: MakeSettings, name: str, standing: StablePrefix | None, **more: Any) -> dict[str, Any]:
    """What the provider of *name* is sent."""
    async with answering(response(name)["body"], ()) as provider:
        model = model_at(settings, provider.base_url, name, **more)
        await model.complete(MESSAGES, stable_prefix=standing)
        await model.close()
    return provider.requests[0]


async def test_anthropics_models_are_told_by_marks_what_comes_again(settings: MakeSettings) -> None:
    request = await sent(settings, "anthropic", STANDING)
    assert request["system"] == [
        {"type": "text", "text": "Rules.\n", "cache_control": MARK},
        {"type": "text", "text": "\nLines.", "cache_control": MARK},
    ]
    [user] = request["messages"]
    assert user["content"] == [
        {"type": "text", "text": "About\n"},
        {"type": "text", "text": "Lena: ", "cache_control": MARK},
        {"type": "text", "text": "hi.\nQuery?"},
    ]


@pytest.mark.parametrize("more", [{"llm_prompt_caching": False}, {}])
async def test_nothing_is_marked_where_that_is_not_wanted_or_nothing_comes_again(
    settings: MakeSettings, more: dict[str, Any]
) -> None:
    assert "cache_control" not in json.dumps(await sent(settings, "anthropic", STANDING if more else None, **more))


@pytest.mark.parametrize("name", ["openai", "vllm", "deepseek"])
async def test_servers_that_speak_openais_protocol_get_the_prompt_as_it_is(settings: MakeSettings, name: str) -> None:
    request = await sent(settings, name, STANDING)
    assert request["messages"] == MESSAGES
    assert "prompt_cache_key" not in request
