"""One table of what each error of aiogram means for a send and for the connection."""

from __future__ import annotations

from aiogram import exceptions as aio
from aiogram.utils.token import TokenValidationError
from aiohttp import ClientConnectorError, ConnectionTimeoutError

from connectors.connector import SendFailed
from connectors.sdk_errors import LATER, REFUSED, UNKNOWN, Meaning, find_meaning
from connectors.telegram.check import BASE_VARIABLE, TOKEN_VARIABLE

_BAD_TOKEN = Meaning(
    retryable=False,
    needs_person=f"Telegram does not accept the bot token. Set {TOKEN_VARIABLE} to the token that @BotFather shows for "
    f"the bot (and leave {BASE_VARIABLE} unset unless you use a proxy).",
)

MEANINGS: dict[type[Exception], Meaning] = {
    # Refused: the request was read and not carried out.
    aio.TelegramBadRequest: REFUSED,
    aio.TelegramForbiddenError: REFUSED,
    aio.TelegramEntityTooLarge: REFUSED,
    aio.TelegramMigrateToChat: REFUSED,
    # Not now.
    aio.TelegramRetryAfter: LATER,
    aio.TelegramConflictError: LATER,
    aio.TelegramAPIError: LATER,  # a status that aiogram has no class for
    # No answer, or one that does not say whether the request was carried out.
    aio.TelegramNetworkError: UNKNOWN,
    aio.TelegramServerError: UNKNOWN,
    aio.RestartingTelegram: UNKNOWN,
    aio.ClientDecodeError: UNKNOWN,
    # Telegram answers 401 to a revoked token and 404 to one that it never gave out.
    aio.TelegramUnauthorizedError: _BAD_TOKEN,
    aio.TelegramNotFound: _BAD_TOKEN,
    TokenValidationError: _BAD_TOKEN,
    # Raised inside aiogram, before anything is sent.
    aio.AiogramError: REFUSED,
    aio.DetailedAiogramError: REFUSED,
    aio.CallbackAnswerException: REFUSED,
    aio.SceneException: REFUSED,
    aio.UnsupportedKeywordArgument: REFUSED,
    aio.DataNotDictLikeError: REFUSED,
}

AIOGRAM_ERRORS = (aio.AiogramError, TokenValidationError)
"""The errors that a call through aiogram may raise."""


def meaning(error: Exception) -> Meaning:
    """Return the table's entry for *error*, or for its nearest base class. Raises `KeyError`."""
    if isinstance(error, aio.TelegramNetworkError) and isinstance(
        error.__cause__, (ClientConnectorError, ConnectionTimeoutError)
    ):
        return LATER  # no connection, so nothing was sent
    return find_meaning(error, MEANINGS)


def retry_after_seconds(error: Exception) -> float | None:
    """Return the wait that Telegram demands, if *error* is its 429."""
    return float(error.retry_after) if isinstance(error, aio.TelegramRetryAfter) else None


def send_failed(error: Exception, why: str) -> SendFailed:
    """Return *error* as `SendFailed`. *why* is its text without secrets."""
    return meaning(error).send_failed(f"Telegram did not do what it was asked: {why}", retry_after_seconds(error))


def refuses(failed: SendFailed, words: str) -> bool:
    """Return whether Telegram refused the call with *words*, given in small letters."""
    return isinstance(failed.__cause__, aio.TelegramBadRequest) and words in str(failed).lower()


def migrated_to(failed: SendFailed) -> int | None:
    """Return the new id of a group that became a supergroup, if the call was refused for that reason."""
    cause = failed.__cause__
    return cause.migrate_to_chat_id if isinstance(cause, aio.TelegramMigrateToChat) else None
