"""The session at Discord's gateway: opened, watched, given up and opened again.

discord.py keeps the socket, sends heartbeats and resumes after a drop. `Session` does what discord.py does not: it
limits the wait between attempts, which grows to 17 minutes there. Discord ends the session of a token that is revoked.
"""

from __future__ import annotations

import asyncio
from typing import Any

import discord
import structlog

from connectors.connector import ConnectorFailed
from connectors.discord.errors import DISCORD_ERRORS, meaning, retry_after_seconds
from connectors.discord.events import CONNECTOR
from connectors.discord.interactions import Interactions
from connectors.discord.login import GatewayClient, Login
from connectors.discord.receive import Intake
from connectors.health import Backoff, ConnectionHealth

log = structlog.get_logger()


class Session:
    """Receives through *login*, and hands what comes in to *intake* and *interactions*.

    If a session does not come back within *session_seconds*, a new one is opened.
    """

    def __init__(
        self,
        login: Login,
        vitals: ConnectionHealth,
        backoff: Backoff,
        session_seconds: float,
        intake: Intake,
        interactions: Interactions,
    ) -> None:
        self._login = login
        self._vitals = vitals
        self._backoff = backoff.fresh()
        self._session_seconds = session_seconds
        self._intake = intake
        self._interactions = interactions
        self._deadline: asyncio.Timeout | None = None
        login.on_event = self._take

    async def receive(self) -> ConnectorFailed:
        """Keep a session open. Return, with the reason, if only a person can help."""
        while True:
            try:
                await self._connect(await self._login.open())
            except DISCORD_ERRORS as error:
                why = self._login.describe(error)
                if needs_person := meaning(error).needs_person:
                    self._vitals.failed(f"{needs_person} ({why})")
                    return ConnectorFailed(f"{needs_person} ({why})")
                asked_seconds = retry_after_seconds(error)
            except Exception as error:  # noqa: BLE001 - discord.py cannot read a frame, and ended the session for it
                # Not the error's text, which may quote the message.
                log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
                why = "Discord sent something that cannot be read"
                asked_seconds = None
            self._note_lost(why)
            await asyncio.sleep(self._backoff.next_seconds(asked_seconds))

    async def _connect(self, client: GatewayClient) -> None:
        """Let discord.py connect and resume, until it gives up or has had no session for too long.

        It waits up to 17 minutes between attempts. A new session, after which the missed messages are read, is sooner.
        Raises one of `DISCORD_ERRORS`.
        """
        try:
            async with asyncio.timeout(self._session_seconds) as self._deadline:
                await client.connect()
        except AttributeError as error:
            # If the first attempt fails, discord.py asks a socket that does not exist for its session.
            cause = error.__context__
            if not isinstance(cause, DISCORD_ERRORS):
                raise
            raise cause from error
        finally:
            self._deadline = None
            await self._login.hang_up()
        raise discord.GatewayNotFound  # connect() returns only after the client was closed

    def _take(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        match event:
            case "socket_event_type" if args[0] == "READY":  # Discord accepts the token and the intents only now
                self._note_connected()
            case "connect":
                self._intake.session_began()
            case "resumed":
                self._note_connected()
            case "disconnect":
                self._note_lost("the connection to Discord was lost")
            case "interaction":
                self._interactions.take(args[0])
            case _:
                self._intake.take(client, event, args)

    def _note_connected(self) -> None:
        self._vitals.connected()
        self._vitals.well("gateway")
        self._backoff.failures = 0
        if self._deadline is not None:
            self._deadline.reschedule(None)

    def _note_lost(self, why: str) -> None:
        self._vitals.trouble("gateway", why)
        if self._deadline is not None and self._deadline.when() is None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._session_seconds)
