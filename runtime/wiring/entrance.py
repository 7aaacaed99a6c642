"""Who may come in, and by which connectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from config.settings import Settings
from connectors.connector import Connector
from connectors.http.connector import HttpConnector
from connectors.web.connector import WebConnector
from runtime.access import Access
from runtime.admin_token import admin_token
from runtime.api.security import Security
from runtime.tokens import Tokens as ApiTokens
from runtime.web_sessions import WebSessions
from runtime.wiring.kept import Kept


@dataclass(frozen=True)
class Entrance:
    """The rules of admittance, and the connectors of this process by name."""

    admin_token: str
    access: Access
    api_tokens: ApiTokens
    security: Security
    http: HttpConnector
    web: WebConnector
    connectors: Mapping[str, Connector]


async def wire_entrance(settings: Settings, kept: Kept, platforms: Sequence[Connector], *, has_faces: bool) -> Entrance:
    """*platforms* are the connectors beside HTTP and the chat page; without *has_faces* there are none at all.

    Raises `OSError` where the administrator's token can be neither read nor written.
    """
    redis = kept.store.client
    token = await admin_token(settings)
    api_tokens = ApiTokens(redis, token)
    security = Security(settings, api_tokens)
    http = HttpConnector.of(settings, security)
    web = WebConnector.of(settings, security, security.check_place, WebSessions(redis, api_tokens))
    connectors: list[Connector] = [http, web, *platforms] if has_faces else []
    return Entrance(
        admin_token=token,
        access=Access(redis, settings),
        api_tokens=api_tokens,
        security=security,
        http=http,
        web=web,
        connectors={connector.name: connector for connector in connectors},
    )
