"""What a platform says of a bot when it is asked, before or while a connector runs: `setup` and `doctor` show it.

Each platform's package has a module ``examine`` that asks with plain HTTP, so that its SDK need not be imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx


class CannotAsk(Exception):
    """The platform gave no answer that could be read. Its text says so in a line, without secrets."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the bot from working: what was seen, and what a person has to do."""

    detail: str
    advice: str


@dataclass(frozen=True, slots=True)
class Examined:
    """Who the bot is there, e.g. ``@helper in Acme``, as far as that could be found out; and what is wrong.

    ``invitation`` is a link by which the bot is brought to where people are, on platforms that have one.
    """

    who: str = ""
    problems: tuple[Problem, ...] = ()
    invitation: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A platform's answer: HTTP's status, its JSON object, and headers by their names in small letters."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]


async def ask(
    url: str, *, shown_as: str, seconds: float, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """What *url* answers within *seconds*. Raises `CannotAsk`, which names *shown_as*: the URL may hold a secret."""
    # Loads the machine's certificates from disk.
    http = await asyncio.to_thread(httpx.AsyncClient, timeout=seconds)
    try:
        async with http, asyncio.timeout(seconds):
            response = await http.request(method, url, headers=headers)
            body = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
        # "from None": the error shows the URL.
        raise CannotAsk(f"{shown_as} cannot be reached ({type(error).__name__})") from None
    if not isinstance(body, dict):
        raise CannotAsk(f"{shown_as} does not answer like the platform")
    return Answer(response.status_code, body, {name.lower(): value for name, value in response.headers.items()})


def unreachable(error: CannotAsk, variable: str) -> Examined:
    """A platform that gave no answer at the address that *variable* sets."""
    advice = f"check that this machine can reach it, and that {variable} is right"
    return Examined(problems=(Problem(str(error), advice),))
