"""The HTTP face, and how much may come in by it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, SecretStr

from config.settings.types import List, Positive, WebUrl


class HttpSettings(BaseModel):
    """The HTTP face."""

    http_host: str = "127.0.0.1"
    """Address to listen on."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8420
    """Port to listen on; 0 takes a free one."""
    http_public_url: WebUrl | None = None
    """Where other machines reach this runtime; its host is served too. Telegram's webhook is registered there."""
    http_allowed_hosts: List = ()
    """Further values of the Host header that are served."""
    http_max_body_bytes: Positive = 1_000_000
    """Size of a message's request."""
    document_max_bytes: Positive = 2_000_000
    """Size of one document."""
    codex_file_max_bytes: Positive = 2_000_000
    """Size of one file of the material."""
    codex_max_bytes: Positive = 50_000_000
    """Size of all material of a workspace, and of each conversation's own."""
    context_document_max_bytes: Positive = 65_536
    """Size of a conversation's context document."""
    admin_token: SecretStr | None = None
    """Bearer token of the admin. Unset: generated into DATA_DIR/admin-token, mode 0600."""
