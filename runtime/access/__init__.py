"""Decides who may talk to the bot, in which role, and how often; keeps the tokens of the HTTP API.

`Access` holds roles and pairing requests, `RateLimit` the limit for each person and conversation, `ApiTokens` the
bearer tokens.
"""

from runtime.access.api_tokens import (
    ADMIN_TOKEN_FILE,
    AlreadyInvited,
    ApiToken,
    ApiTokens,
    Caller,
    InvalidTokenName,
    SecretUnreadable,
    Unauthenticated,
    admin_token,
    check_token_name,
    fingerprint,
    secret_in_file,
)
from runtime.access.limits import MOMENT_SECONDS, Admission, RateLimit, wait_in_words
from runtime.access.pairing import AlreadyDecided, PairingRequest, TooManyAttempts, UnknownCode
from runtime.access.roles import Access, Decision, Person, Rule

__all__ = [
    "ADMIN_TOKEN_FILE",
    "MOMENT_SECONDS",
    "Access",
    "Admission",
    "AlreadyDecided",
    "AlreadyInvited",
    "ApiToken",
    "ApiTokens",
    "Caller",
    "Decision",
    "InvalidTokenName",
    "PairingRequest",
    "Person",
    "RateLimit",
    "Rule",
    "SecretUnreadable",
    "TooManyAttempts",
    "Unauthenticated",
    "UnknownCode",
    "admin_token",
    "check_token_name",
    "fingerprint",
    "secret_in_file",
    "wait_in_words",
]
