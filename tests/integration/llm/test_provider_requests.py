"""What providers are sent besides words, and how what they report is counted: marks of what comes again, pictures, and
recordings."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from runtime.llm import Image, Model, ModelRefused, ModelUnavailable, StablePrefix, with_images
from runtime.llm.messages import without_images
from tests.conftest import MakeSettings
from tests.emulators.documents import OGG, PNG
from tests.emulators.openai import FakeOpenAI
from tests.emulators.recorded import answering

RESPONSES = Path(__file__).parents[2] / "data" / "provider_responses"
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


QUESTION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is it?"},
]
SEEING = "openai/gpt-4o"
BLIND = "openai/gpt-3.5-turbo"
PICTURE = Image.of("dot.png", "image/png", PNG)


async def test_a_picture_reaches_a_model_that_sees_beside_the_words(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    model = Model(model_settings(llm_model=SEEING))
    assert await model.sees_images()
    await model.complete(with_images(QUESTION, [PICTURE]))
    assert openai_server.images == [["data:image/png;base64," + base64.b64encode(PNG).decode()]]
    assert openai_server.prompts == ["system\0Be brief.\nuser\0What is it?"]
    await model.close()


async def test_a_blind_fallback_gets_the_words_alone(model_settings: MakeSettings, openai_server: FakeOpenAI) -> None:
    model = Model(model_settings(llm_model=SEEING, llm_fallback_models=[BLIND], llm_max_attempts=1))
    openai_server.will("server_error")
    await model.complete(with_images(QUESTION, [PICTURE]))
    assert [len(shown) for shown in openai_server.images] == [1, 0]
    assert openai_server.requests[1]["messages"] == QUESTION
    await model.close()


@pytest.mark.parametrize("name", [BLIND, "openai/fake", "nobody/knows-this"])
async def test_a_model_of_which_litellm_does_not_say_so_does_not_see(model_settings: MakeSettings, name: str) -> None:
    assert not await Model(model_settings(llm_model=name)).sees_images()


async def test_the_model_that_was_chosen_decides_whether_pictures_are_seen(model_settings: MakeSettings) -> None:
    model = Model(model_settings(llm_model=SEEING, llm_fallback_models=[BLIND]))
    assert await model.sees_images(SEEING)
    assert not await model.sees_images(BLIND)


def test_taking_pictures_out_again_leaves_the_words_as_they_were() -> None:
    assert without_images(with_images(QUESTION, [PICTURE, PICTURE])) == QUESTION
    assert with_images(QUESTION, []) == QUESTION


@pytest.mark.parametrize(("name", "tokens"), [("whisper-1", (0, 0)), ("gpt-4o-transcribe", (14, 6))])
async def test_a_recording_is_written_down(
    model_settings: MakeSettings, openai_server: FakeOpenAI, name: str, tokens: tuple[int, int]
) -> None:
    """What it cost is known as far as the provider says so: the older model is paid by the second."""
    model = Model(model_settings(transcription_model=f"openai/{name}"))
    heard = await model.transcribe(OGG, "voice.ogg", "audio/ogg")
    assert (heard.text, heard.model) == ("What do the tyres cost?", f"openai/{name}")
    assert (heard.usage.prompt, heard.usage.completion) == tokens
    assert heard.usage.cost_usd > 0
    [sent] = openai_server.transcription_requests
    assert sent == {"model": name, "name": "voice.ogg", "media_type": "audio/ogg", "data": OGG}
    await model.close()


async def test_a_transcription_that_fails_in_passing_is_tried_again(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    model = Model(model_settings(transcription_model="openai/whisper-1"))
    openai_server.will("server_error", "rate_limited")
    assert (await model.transcribe(OGG, "voice.ogg", "audio/ogg")).text
    assert len(openai_server.transcription_requests) == 3
    await model.close()


async def test_a_transcription_that_fails_for_good_is_a_models_error(
    model_settings: MakeSettings, openai_server: FakeOpenAI
) -> None:
    model = Model(model_settings(transcription_model="openai/whisper-1"))
    openai_server.will("unauthorized")
    with pytest.raises(ModelRefused) as refused:
        await model.transcribe(OGG, "voice.ogg", "audio/ogg")
    assert refused.value.why == "auth"
    openai_server.will("server_error", "server_error", "server_error")
    with pytest.raises(ModelUnavailable):
        await model.transcribe(OGG, "voice.ogg", "audio/ogg")
    await model.close()
