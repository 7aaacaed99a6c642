"""One table of what each error of aiogram means for a send and for the connection."""

from __future__ import annotations

from dataclasses import dataclass

from aiogram import exceptions as aio
from aiogram.utils.token import TokenValidationError
from aiohttp import ClientConnectorError, ConnectionTimeoutError

from connectors.connector import SendFailed


@dataclass(frozen=True, slots=True)
class Meaning:
    """``retryable`` and ``ambiguous`` are as in `connectors.connector.SendFailed`. ``bad_token``: nothing works until a
    person sets another token."""

    retryable: bool
    ambiguous: bool = False
    bad_token: bool = False


_REFUSED = Meaning(retryable=False)
_LATER = Meaning(retryable=True)
_UNKNOWN = Meaning(retryable=True, ambiguous=True)
_BAD_TOKEN = Meaning(retryable=False, bad_token=True)

MEANINGS: dict[type[Exception], Meaning] = {
    # Refused: the request was read and not carried out.
    aio.TelegramBadRequest: _REFUSED,
    aio.TelegramForbiddenError: _REFUSED,
    aio.TelegramEntityTooLarge: _REFUSED,
    aio.TelegramMigrateToChat: _REFUSED,
    # Not now.
    aio.TelegramRetryAfter: _LATER,
    aio.TelegramConflictError: _LATER,
    aio.TelegramAPIError: _LATER,  # a status that aiogram has no class for
    # No answer, or one that does not say whether the request was carried out.
    aio.TelegramNetworkError: _UNKNOWN,
    aio.TelegramServerError: _UNKNOWN,
    aio.RestartingTelegram: _UNKNOWN,
    aio.ClientDecodeError: _UNKNOWN,
    # Telegram answers 401 to a revoked token and 404 to one that it never gave out.
    aio.TelegramUnauthorizedError: _BAD_TOKEN,
    aio.TelegramNotFound: _BAD_TOKEN,
    TokenValidationError: _BAD_TOKEN,
    # Raised inside aiogram, before anything is sent.
    aio.AiogramError: _REFUSED,
    aio.DetailedAiogramError: _REFUSED,
    aio.CallbackAnswerException: _REFUSED,
    aio.SceneException: _REFUSED,
    aio.UnsupportedKeywordArgument: _REFUSED,
    aio.DataNotDictLikeError: _REFUSED,
}

AIOGRAM_ERRORS = (aio.AiogramError, TokenValidationError)
"""The errors that a call through aiogram may raise."""


def meaning(error: Exception) -> Meaning:
    """Return the table's entry for *error*, or for its nearest base class. Raises `KeyError`."""
    if isinstance(error, aio.TelegramNetworkError) and isinstance(
        error.__cause__, (ClientConnectorError, ConnectionTimeoutError)
    ):
        return _LATER  # no connection, so nothing was sent
    for known in type(error).__mro__:
        if known in MEANINGS:
            return MEANINGS[known]
    raise KeyError(type(error))


def retry_after_seconds(error: Exception) -> float | None:
    """Return the wait that Telegram demands, if *error* is its 429."""
    return float(error.retry_after) if isinstance(error, aio.TelegramRetryAfter) else None


def send_failed(error: Exception, why: str) -> SendFailed:
    """Return *error* as `SendFailed`. *why* is its text without secrets."""
    entry = meaning(error)
    return SendFailed(
        f"Telegram did not do what it was asked: {why}",
        retryable=entry.retryable,
        ambiguous=entry.ambiguous,
        retry_after_seconds=retry_after_seconds(error),
    )


def refuses(failed: SendFailed, words: str) -> bool:
    """Return whether Telegram refused the call with *words*, given in small letters."""
    return isinstance(failed.__cause__, aio.TelegramBadRequest) and words in str(failed).lower()


def migrated_to(failed: SendFailed) -> int | None:
    """Return the new id of a group that became a supergroup, if the call was refused for that reason."""
    cause = failed.__cause__
    return cause.migrate_to_chat_id if isinstance(cause, aio.TelegramMigrateToChat) else None
