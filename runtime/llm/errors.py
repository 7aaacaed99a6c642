"""The errors of a model call, and the one table that maps LiteLLM's errors to them. Imports no LiteLLM."""

from __future__ import annotations

import errno
import math
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from connectors.message import AgentRuntimeError
from runtime.access import MOMENT_SECONDS, wait_in_words

LONGEST_RETRY_AFTER_SECONDS = 20.0
"""If a provider asks for a longer pause, the next model is asked. `MOMENT_SECONDS` has the same value but is not linked
with it: that one only chooses the words for people."""
API_BASE = "AGENT_RUNTIME_LLM_API_BASE"
_NO_ANSWER = "I could not get an answer from the language model just now."


class ModelFailed(AgentRuntimeError):
    """A model call gave no answer. ``why`` is one word for metrics; ``model`` is the model that was asked.

    ``shown`` says whether a part of the answer was streamed to the caller. ``retry_after_seconds`` is the pause that
    the provider asked for (``Retry-After``); None if it did not say. If several models failed, it is the shortest.
    """

    user_text = f"{_NO_ANSWER} Please try again in a moment."
    admin_text = ""
    """The text for admins, if it says more than ``user_text``."""
    no_connection = ""
    """Why there was no connection to the server, if that is known: then another attempt is of little use."""
    retry_after_seconds: float | None = None
    _happened = _NO_ANSWER

    def __init__(
        self, message: str, *, why: str, model: str = "", retryable: bool = False, shown: bool = False
    ) -> None:
        super().__init__(message)
        self.why = why
        self.model = model
        self.retryable = retryable
        self.shown = shown

    def tell_retry_time(self, seconds: float | None) -> None:
        """Tell people to try again in *seconds*, unless an earlier time is told already."""
        if seconds is None or (self.retry_after_seconds is not None and self.retry_after_seconds <= seconds):
            return
        self.retry_after_seconds = seconds
        self.user_text = f"{self._happened} Please try again {wait_in_words(seconds)}."

    def name_server(self, address: str, no_connection: str) -> None:
        """Say that nothing answers at *address* (empty for the provider's own), and why."""
        self.no_connection = no_connection
        happened = f"{_server(address)} cannot be reached" + (f": {no_connection}" if no_connection else "")
        advice = f"that it runs, and the setting {API_BASE}" if address else "the network of this machine"
        self._happened = "The language model cannot be reached now."
        self.user_text = f"{self._happened} Please try again in a moment."
        self.admin_text = f"{happened[0].upper()}{happened[1:]}. Please check {advice}."
        self.args = (f"{self.model}: {happened}",)

    def name_model(self, address: str, setting: str) -> None:
        """Say that the server at *address* (empty for the provider's own) lacks the model that *setting* names."""
        happened = f"{_server(address)} has no model {self.model.partition('/')[2] or self.model}"
        self.admin_text = (
            f"{happened[0].upper()}{happened[1:]}. Please set {setting} to a model that it has; "
            "`./agent-runtime setup` lists them."
        )
        if self.model.startswith("openai/") and address and not urlsplit(address).path.strip("/"):
            self.admin_text += f" Or the address in {API_BASE} lacks /v1 at its end."
        self.args = (f"{self.model}: {happened}",)

    def name_provider(self, setting: str) -> None:
        """Say that LiteLLM does not know the provider that *setting* names."""
        happened = f"{setting} names no provider that is known"
        self.admin_text = (
            f"{happened}: {self.model}. Please write it as provider/model, for example ollama_chat/llama3."
        )
        self.args = (f"{self.model}: {happened}",)

    @property
    def when(self) -> str:
        """The time to try again as the end of a sentence, for example `` in about 2 minutes``; may be empty."""
        seconds = self.retry_after_seconds or 0.0
        return f" {wait_in_words(seconds)}" if seconds > MOMENT_SECONDS else ""

    @property
    def without_model(self) -> str:
        """The message without the model's name."""
        return str(self).removeprefix(f"{self.model}: ")


class ModelUnavailable(ModelFailed):
    """The model cannot be reached or did not answer; ``retryable`` says whether another attempt may help."""


class ModelRefused(ModelFailed):
    """The provider refused: the key, the model's name, the size or the content. Another attempt cannot help."""

    user_text = "The language model refused this request."


_REFUSED_TEXTS = {
    "auth": "I have no valid access to the language model. Please tell an administrator.",
    "context_window": "This is more text than the language model can read at once. Please shorten it.",
    "content_policy": "The language model's provider declined to answer that.",
    "budget": "The budget for the language model is used up.",
    "not_found": "The language model that I am set up with does not exist. Please tell an administrator.",
}


class UnfinishedStream(Exception):
    """A stream ended, but the provider did not say that the answer is complete."""


@dataclass(frozen=True)
class Verdict:
    """The meaning of an error: ``why``, whether the same model may be asked again, and whether it is a refusal."""

    why: str
    retry: bool = False
    refused: bool = False


ERRORS: dict[str, Verdict] = {
    "AuthenticationError": Verdict("auth", refused=True),  # HTTP 401
    "PermissionDeniedError": Verdict("auth", refused=True),  # HTTP 403
    "NotFoundError": Verdict("not_found", refused=True),  # HTTP 404
    "BadRequestError": Verdict("bad_request", refused=True),  # HTTP 400
    "InvalidRequestError": Verdict("bad_request", refused=True),
    "UnprocessableEntityError": Verdict("bad_request", refused=True),  # HTTP 422
    "UnsupportedParamsError": Verdict("bad_request", refused=True),
    "LiteLLMUnknownProvider": Verdict("not_found", refused=True),
    "ModelNotMappedError": Verdict("not_found", refused=True),
    "ImageFetchError": Verdict("bad_request", refused=True),
    "VectorStoreSearchError": Verdict("bad_request", refused=True),
    "ContextWindowExceededError": Verdict("context_window", refused=True),  # HTTP 400, told apart by its text
    "ContentPolicyViolationError": Verdict("content_policy", refused=True),  # HTTP 400, told apart by its text
    "RejectedRequestError": Verdict("content_policy", refused=True),
    "GuardrailRaisedException": Verdict("content_policy", refused=True),
    "BlockedPiiEntityError": Verdict("content_policy", refused=True),
    "ModifyResponseException": Verdict("content_policy", refused=True),
    "SensitiveDataRouteException": Verdict("content_policy", refused=True),
    "PaymentRequiredError": Verdict("budget", refused=True),  # HTTP 402
    "BudgetExceededError": Verdict("budget", refused=True),
    "Timeout": Verdict("timeout", retry=True),  # no answer in time, or HTTP 408, 504
    "TimeoutError": Verdict("timeout", retry=True),
    "RateLimitError": Verdict("rate_limited", retry=True),  # HTTP 429
    "APIConnectionError": Verdict("unreachable", retry=True),  # no HTTP answer
    "ConnectionError": Verdict("unreachable", retry=True),
    "OSError": Verdict("unreachable", retry=True),
    "ServiceUnavailableError": Verdict("unavailable", retry=True),  # HTTP 503
    "BadGatewayError": Verdict("unavailable", retry=True),  # HTTP 502
    "InternalServerError": Verdict("unavailable", retry=True),  # HTTP 500
    "MidStreamFallbackError": Verdict("broken_stream", retry=True),
    "APIError": Verdict("bad_response", retry=True),  # any other status
    "APIResponseValidationError": Verdict("bad_response", retry=True),
    "JSONSchemaValidationError": Verdict("bad_response", retry=True),
    "OpenAIError": Verdict("bad_response"),
    "MockException": Verdict("bad_response"),
    "TransportError": Verdict("unreachable", retry=True),  # httpx's own, from a stream
    "UnfinishedStream": Verdict("broken_stream", retry=True),  # our own
}
"""By class name, so that nothing needs to be imported. The most specific class of an error counts. The comments name
the status of the provider's answer for which LiteLLM raises the class."""

_UNREACHABLE = ERRORS["APIConnectionError"]
_AUTH = ERRORS["AuthenticationError"]
_NOT_FOUND = ERRORS["NotFoundError"]
_NO_PROVIDER = "LLM Provider NOT provided"
"""LiteLLM's own words about a model whose provider it does not know."""
_NO_MODEL = re.compile(
    r"\bmodel\b[^.\n]{0,100}\b(?:not found|not exist)|\bmodel_not_found\b|\bno(?:t a valid| such) model\b",
    re.IGNORECASE,
)
"""What servers say if they lack the model but answer with another status than 404."""
_NO_KEY = re.compile(r"Missing [^.]*(?:API key|credentials)", re.IGNORECASE)
"""The beginning of what the clients for OpenAI, Azure and Gemini say if they have no key."""


def classify_error(error: BaseException) -> Verdict:
    """Return the verdict on *error*. An error that is not in the table is ``bad_response`` and is not tried again."""
    original = getattr(error, "original_exception", None)
    if type(error).__name__ == "MidStreamFallbackError" and isinstance(original, Exception):
        # A refusal in a stream is a refusal; any other error is a broken stream.
        verdict = classify_error(original)
        return (
            verdict
            if verdict.refused or verdict.why in ("timeout", "rate_limited")
            else Verdict("broken_stream", retry=True)
        )
    for kind in type(error).__mro__:
        if kind.__name__ in ERRORS:
            verdict = ERRORS[kind.__name__]
            if verdict.why == "bad_request" and _NO_PROVIDER in str(error):
                return _NOT_FOUND
            if verdict.why in ("bad_request", "unavailable") and _NO_MODEL.search(str(error)):
                return _NOT_FOUND
            if verdict.why in ("unavailable", "unreachable", "bad_response") and _lacks_key(error):
                return _AUTH
            # LiteLLM reports a refused connection as an error of the server; the cause tells them apart.
            return _UNREACHABLE if verdict.why == "unavailable" and _never_arrived(error) else verdict
    return Verdict("bad_response")


def _lacks_key(error: BaseException) -> bool:
    """Whether there was no key. Clients notice that before they send anything; LiteLLM reports a server's error."""
    return any(_NO_KEY.match(str(cause)) for cause in _causes(error))


def _never_arrived(error: BaseException) -> bool:
    return any(
        isinstance(cause, OSError) or type(cause).__name__ in ("APIConnectionError", "ConnectError")
        for cause in _causes(error)
    )


def _why_no_connection(error: BaseException) -> str:
    """Return why there was no connection; empty if there was one, or if the reason is not known."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return "its host name is not known"
        if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
            return "it refuses the connection"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and its causes, the innermost last."""
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def model_failure(
    error: Exception,
    model: str,
    *,
    shown: bool,
    address: str | None = None,
    setting: str = "AGENT_RUNTIME_LLM_MODEL",
) -> ModelFailed:
    """Return our error for *error*. Its text names the class and never quotes the provider: that may be prompt or key.

    *address* is the address of the model: empty for its provider's own, None if people need not know it. *setting*
    names the model.
    """
    verdict = classify_error(error)
    kind = ModelRefused if verdict.refused else ModelUnavailable
    status = getattr(error, "status_code", None)
    detail = f"{type(error).__name__}, HTTP {status}" if status else type(error).__name__
    failure = kind(
        f"{model}: {verdict.why} ({detail})", why=verdict.why, model=model, retryable=verdict.retry, shown=shown
    )
    if verdict.why in _REFUSED_TEXTS:
        failure.user_text = _REFUSED_TEXTS[verdict.why]
        if _NO_PROVIDER in str(error):
            failure.name_provider(setting)
        elif verdict.why == "not_found" and address is not None:
            failure.name_model(address, setting)
    elif not verdict.refused:
        if verdict.why == "unreachable" and address is not None:
            failure.name_server(address, _why_no_connection(error))
        failure.tell_retry_time(read_retry_after(error))
    return failure


def _server(address: str) -> str:
    return f"the model server at {_without_user(address)}" if address else "the language model's provider"


def _without_user(address: str) -> str:
    """Return *address* without user name, password, query and fragment: they may be secrets."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def read_retry_after(error: BaseException) -> float | None:
    """Return the pause that the provider asked for; None if it gave none, or gave a date."""
    # LiteLLM makes a response of its own and keeps the provider's headers in an attribute of the error.
    headers = getattr(error, "litellm_response_headers", None)
    headers = headers or getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
