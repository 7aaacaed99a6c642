"""Decides who may talk to the bot, in which role, and how often; keeps the tokens of the HTTP API.

`Access` holds roles and pairing requests, `RateLimit` the limit for each person and conversation, `Tokens` the bearer
tokens.
"""

from runtime.access.api_tokens import (
    FILE_NAME,
    AlreadyInvited,
    ApiToken,
    Caller,
    InvalidTokenName,
    Tokens,
    Unauthenticated,
    admin_token,
    check_token_name,
    fingerprint,
)
from runtime.access.limits import MOMENT_SECONDS, Admission, RateLimit, in_words
from runtime.access.pairing import AlreadyDecided, Request, TooManyAttempts, UnknownCode
from runtime.access.roles import Access, Decision, Person

__all__ = [
    "FILE_NAME",
    "MOMENT_SECONDS",
    "Access",
    "Admission",
    "AlreadyDecided",
    "AlreadyInvited",
    "ApiToken",
    "Caller",
    "Decision",
    "InvalidTokenName",
    "Person",
    "RateLimit",
    "Request",
    "Tokens",
    "TooManyAttempts",
    "Unauthenticated",
    "UnknownCode",
    "admin_token",
    "check_token_name",
    "fingerprint",
    "in_words",
]
