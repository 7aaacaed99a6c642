"""Child processes that are supervised: `embedded_redis`, `local_model` and the search index."""

from runtime.embedded.child import ChildFailed, UnsafeSocketFolder, background_task, die_with_parent, socket_path
from runtime.embedded.installed import check_installed
from runtime.embedded.llama import (
    CONTEXT_TOKENS,
    LocalModelServer,
    check_platform,
    find_weights,
    installed_weights,
    local_model,
)
from runtime.embedded.redis import EmbeddedRedis, StoreInUse, embedded_redis

__all__ = [
    "CONTEXT_TOKENS",
    "ChildFailed",
    "EmbeddedRedis",
    "LocalModelServer",
    "StoreInUse",
    "UnsafeSocketFolder",
    "background_task",
    "check_installed",
    "check_platform",
    "die_with_parent",
    "embedded_redis",
    "find_weights",
    "installed_weights",
    "local_model",
    "socket_path",
]
