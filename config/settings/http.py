"""Settings of the HTTP interface and its limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from config.settings.types import List, Positive, WebUrl


class HttpSettings(BaseModel):
    """Settings of the HTTP interface."""

    http_host: str = "127.0.0.1"
    """Address to listen on."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8420
    """Port to listen on; 0 takes a free one."""
    http_public_url: WebUrl | None = None
    """Where other machines reach this runtime; its host is served too. Telegram's webhook is registered there."""
    http_allowed_hosts: List = ()
    """Further values of the Host header that are accepted."""
    http_max_body_bytes: Positive = 1_000_000
    """Largest request of a message."""
    document_max_bytes: Positive = 2_000_000
    """Largest document."""
    codex_file_max_bytes: Positive = 2_000_000
    """Largest file of the codex."""
    codex_max_bytes: Positive = 50_000_000
    """Size of all material of a workspace, and of each conversation's own."""
    context_document_max_bytes: Positive = 65_536
    """Largest context document (summary) of a conversation."""
    admin_token: SecretStr | None = None
    """Token of the administrator. Unset: one is generated into DATA_DIR/admin-token, readable by you alone."""
