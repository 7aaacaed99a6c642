"""What the doctor asks of language models: a word of each, a second of silence written down."""

from __future__ import annotations

import asyncio
import io
import wave
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from config.settings import EXTRACTIVE
from runtime.llm import ModelFailed

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

PROBE_TOKENS = 8
"""What the model may say to the probe: with one token some models say nothing that can be seen."""
_PROBE = ({"role": "user", "content": "Say: ok"},)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``advice`` is empty where it is well. With advice and ``ok`` it is a warning."""

    name: str
    ok: bool
    detail: str
    advice: str = ""

    def row(self) -> dict[str, Any]:
        return asdict(self)


async def first(runtime: Runtime) -> list[Check]:
    """The model that is asked first, asked for a word."""
    name = runtime.model.name
    try:
        completion = await runtime.model.complete(_PROBE, max_output_tokens=PROBE_TOKENS, purpose="doctor")
    except ModelFailed as error:
        return [Check("model", False, f"{name}: {error.without_model}", _advice(error.why))]
    detail = f"{completion.model} answered in {completion.latency_ms} ms"
    if completion.model != name:
        advice = "see the model.failed events: `agent-runtime metrics tail --event model.failed`"
        return [Check("model", False, f"{name} did not answer; the fallback {detail}", advice)]
    if name == EXTRACTIVE:
        detail += "; this is not a language model: answers are quotations; `./agent-runtime setup` adds a model"
    return [Check("model", True, detail)]


async def fallbacks(runtime: Runtime) -> list[Check]:
    """Each fallback model, asked as the first one."""
    return list(await asyncio.gather(*(_fallback(runtime, name) for name in runtime.model.names[1:])))


async def _fallback(runtime: Runtime, name: str) -> Check:
    title = f"fallback model {name}"
    advice = "see AGENT_RUNTIME_LLM_FALLBACK_MODELS, the provider's key in the environment, and the event model.failed"
    try:
        completion = await runtime.model.complete(_PROBE, max_output_tokens=PROBE_TOKENS, purpose="doctor", first=name)
    except ModelFailed as error:
        return Check(title, False, error.without_model, advice)
    if completion.model != name:
        return Check(title, False, f"it did not answer; {completion.model} answered instead", advice)
    return Check(title, True, f"answered in {completion.latency_ms} ms")


async def transcription(runtime: Runtime) -> list[Check]:
    """The model that hears recordings, given a second of silence."""
    name = runtime.settings.transcription_model
    if name is None:
        return [Check("transcription model", True, "none is set; voice messages are answered with an apology")]
    try:
        await runtime.model.transcribe(_silence(), "silence.wav", "audio/wav")
    except ModelFailed as error:
        advice = "see AGENT_RUNTIME_TRANSCRIPTION_MODEL, and its provider's key in the environment"
        return [Check("transcription model", False, f"{name}: {error.without_model}", advice)]
    return [Check("transcription model", True, f"{name} answered")]


def _silence() -> bytes:
    """A second of it: 8,000 samples of 16 bits."""
    recording = io.BytesIO()
    with wave.open(recording, "wb") as file:
        file.setparams((1, 2, 8000, 8000, "NONE", ""))
        file.writeframes(bytes(16_000))
    return recording.getvalue()


def _advice(why: str) -> str:
    match why:
        case "auth":
            return (
                "set AGENT_RUNTIME_LLM_API_KEY, or the provider's own variable, to a key that is valid for this model"
            )
        case "not_found":
            return (
                "set AGENT_RUNTIME_LLM_MODEL to a model that the provider has, as provider/model "
                "(`agent-runtime setup` lists them); an address in AGENT_RUNTIME_LLM_API_BASE often ends in /v1"
            )
        case "unreachable":
            return "check that the server runs, its address in AGENT_RUNTIME_LLM_API_BASE, and this machine's network"
    return "see AGENT_RUNTIME_LLM_MODEL, AGENT_RUNTIME_LLM_API_BASE and AGENT_RUNTIME_LLM_API_KEY, or run setup"
