"""Pictures and recordings on their way to the provider, through LiteLLM, against a provider on loopback."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from runtime.llm import Image, Model, ModelRefused, ModelUnavailable, with_images
from runtime.llm.messages import without_images
from tests.conftest import MakeSettings
from tests.emulators.documents import OGG, PNG
from tests.emulators.openai import FakeOpenAI

MESSAGES: list[dict[str, Any]] = [
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
    await model.complete(with_images(MESSAGES, [PICTURE]))
    assert openai_server.images == [["data:image/png;base64," + base64.b64encode(PNG).decode()]]
    assert openai_server.prompts == ["system\0Be brief.\nuser\0What is it?"]
    await model.close()


async def test_a_blind_fallback_gets_the_words_alone(model_settings: MakeSettings, openai_server: FakeOpenAI) -> None:
    model = Model(model_settings(llm_model=SEEING, llm_fallback_models=[BLIND], llm_max_attempts=1))
    openai_server.will("server_error")
    await model.complete(with_images(MESSAGES, [PICTURE]))
    assert [len(shown) for shown in openai_server.images] == [1, 0]
    assert openai_server.requests[1]["messages"] == MESSAGES
    await model.close()


@pytest.mark.parametrize("name", [BLIND, "openai/fake", "nobody/knows-this"])
async def test_a_model_of_which_litellm_does_not_say_so_does_not_see(model_settings: MakeSettings, name: str) -> None:
    assert not await Model(model_settings(llm_model=name)).sees_images()


async def test_the_model_that_was_chosen_decides_whether_pictures_are_seen(model_settings: MakeSettings) -> None:
    model = Model(model_settings(llm_model=SEEING, llm_fallback_models=[BLIND]))
    assert await model.sees_images(SEEING)
    assert not await model.sees_images(BLIND)


def test_taking_pictures_out_again_leaves_the_words_as_they_were() -> None:
    assert without_images(with_images(MESSAGES, [PICTURE, PICTURE])) == MESSAGES
    assert with_images(MESSAGES, []) == MESSAGES


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
