"""One real call to a model, and what to do when it fails."""

from __future__ import annotations

from dataclasses import dataclass

from config.settings import Settings
from runtime.embedded.model_server import local_model
from runtime.llm import Model, ModelFailed

QUESTION = "Hello!"
TRIAL_TOKENS = 400
"""Enough for a model that thinks before it speaks."""

ADVICE = {
    "auth": "the provider does not accept the key: check the key, and whether it may use this model",
    "not_found": "check the model's name, the part before the slash, and the address (it often ends in /v1)",
    "budget": "the account has no credit left: add credit, or choose another model",
    "rate_limited": "the provider is busy or the quota is used up: wait a minute and run setup again",
    "timeout": "no answer in time: is the server busy loading the model? A higher llm_timeout_seconds gives it longer",
    "unreachable": "is the server running, and is the address right?",
    "unavailable": "the provider has a problem: try again later, or choose another model",
    "content_policy": "the provider refuses to answer a greeting: choose another model",
    "context_window": "the model's window is too small: choose a model with a larger one",
    "bad_request": "the provider does not understand the request: is this a chat model?",
    "bad_response": "the server does not speak OpenAI's protocol: check the address (it often ends in /v1)",
    "broken_stream": "the connection broke in the middle of the answer: try again",
    "empty": "the model answered nothing: choose another one",
}
"""What to do, by `runtime.llm.ModelFailed.why`."""


@dataclass(frozen=True)
class Trial:
    """What came of it: the answer and its time in milliseconds, or why there is none."""

    answer: str = ""
    model: str = ""
    latency_ms: int = 0
    why: str = ""
    detail: str = ""

    @property
    def advice(self) -> str:
        return ADVICE.get(self.why, "see the line above")


async def attempt(settings: Settings) -> Trial:
    """Ask the configured model one question, once; no other model is asked. Raises nothing."""
    alone = settings.model_copy(update={"llm_fallback_models": (), "llm_max_attempts": 1})
    async with local_model(settings.data_dir) as server:
        model = Model(alone, server)
        try:
            messages = [{"role": "user", "content": QUESTION}]
            completion = await model.complete(messages, max_output_tokens=TRIAL_TOKENS, purpose="setup")
        except ModelFailed as error:
            return Trial(model=error.model, why=error.why, detail=error.without_model)
        finally:
            await model.close()
    return Trial(" ".join(completion.text.split()), completion.model, completion.latency_ms)
