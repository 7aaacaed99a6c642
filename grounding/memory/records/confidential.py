"""Detect secrets in text, so that the memory does not store them. Pure."""

from __future__ import annotations

import re
from itertools import pairwise

_NAMED = re.compile(
    r"\b(?:pass\s?(?:word|code|phrase|wd)|pwd|passwort|kennwort|contraseña|clave|mot de passe|api[\s_-]?key|"
    r"(?:access|secret|private|bearer|auth|session|refresh)[\s_-]?(?:key|token|code)|secret|token|credentials?|"
    r"pin|cvv|cvc|tan|iban|ssn|social security|one[\s-]time code|otp|2fa|recovery (?:code|phrase)|seed phrase)\b",
    re.IGNORECASE,
)
_SHAPED = re.compile(
    r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}|\bgh[opsur]_\w{8,}|\bgithub_pat_\w+|\bglpat-[\w-]{8,}|\bxox[abposr]-[\w-]{8,}|"
    r"\bxapp-[\w-]{8,}|\bAKIA[A-Z0-9]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{10,}\.[\w-]+|-----BEGIN|"
    r"\b[a-z][a-z0-9+.-]*://[^\s/@:]+:[^\s/@]+@|\b[A-Z]{2}\d{2}(?:\s?[A-Z0-9]{4}){3,7}\s?[A-Z0-9]{0,4}\b",
)
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{20,}")
_DIGITS = re.compile(r"(?:\d[ -]?){13,19}(?!\d)")


def looks_secret(text: str) -> bool:
    """Say whether *text* names or contains a secret: passwords, keys, tokens, account and card numbers.

    In doubt the answer is yes: a lost fact costs less than a stored secret.
    """
    if _NAMED.search(text) or _SHAPED.search(text):
        return True
    if any(_is_random(run) for run in _RUN.findall(text)):
        return True
    return any(_is_card(re.sub(r"\D", "", run)) for run in _DIGITS.findall(text))


def _is_random(run: str) -> bool:
    """Say whether letters and digits alternate as they do in no word, path or date."""
    kinds = ["d" if one.isdigit() else "u" if one.isupper() else "l" for one in run if one.isalnum()]
    turns = sum(1 for one, other in pairwise(kinds) if one != other)
    return "d" in kinds and len(set(kinds)) > 1 and turns >= 6


def _is_card(digits: str) -> bool:
    """Apply Luhn's check (ISO/IEC 7812-1, annex B)."""
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [int(one) * (2 if place % 2 else 1) for place, one in enumerate(reversed(digits))]
    return sum(one - 9 if one > 9 else one for one in doubled) % 10 == 0
