"""How work that goes on by itself tells what it could not do, and goes on."""

from __future__ import annotations

import structlog

from connectors.message import AgentRuntimeError

_log = structlog.get_logger()


def tell_index_failed(error: Exception, **of: str) -> None:
    """Tell what could not be indexed: whatever one file, turn or workspace breaks, the bot answers, and the others are
    seen to. What nobody foresaw is told with its traceback."""
    if isinstance(error, AgentRuntimeError | OSError):
        _log.warning("index.failed", why=str(error), **of)
    else:
        _log.error("index.failed", why=f"{type(error).__name__}: {error}", exc_info=error, **of)
