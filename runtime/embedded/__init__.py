"""Child processes that are supervised: `embedded_redis`, `local_model` and the search index."""

from runtime.embedded.child import ChildFailed, UnsafeSocketFolder, background_task, die_with_parent, socket_path
from runtime.embedded.llama import (
    CONTEXT_TOKENS,
    INSTALL,
    WEIGHTS_PACKAGE,
    LocalModelServer,
    check_platform,
    find_weights,
    installed_weights,
    local_model,
)
from runtime.embedded.redis import EmbeddedRedis, NoRedisServer, StoreInUse, embedded_redis, find_binary

__all__ = [
    "CONTEXT_TOKENS",
    "INSTALL",
    "WEIGHTS_PACKAGE",
    "ChildFailed",
    "EmbeddedRedis",
    "LocalModelServer",
    "NoRedisServer",
    "StoreInUse",
    "UnsafeSocketFolder",
    "background_task",
    "check_platform",
    "die_with_parent",
    "embedded_redis",
    "find_binary",
    "find_weights",
    "installed_weights",
    "local_model",
    "socket_path",
]
