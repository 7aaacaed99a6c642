"""Which errors of Redis mean that the store cannot be had."""

from __future__ import annotations

import inspect

import pytest
from redis import exceptions as errors
from redis.asyncio.connection import SSLConnection

from runtime.redis_errors import why_unavailable
from runtime.stores import connect

NOT_OUTAGES = {
    # The caller asked for something wrong, or a script is not loaded yet.
    "AskError", "AuthenticationWrongNumberOfArgsError", "ChildDeadlockedError", "ClusterCrossSlotError",
    "CrossSlotTransactionError", "DataError", "ExecAbortError", "IncorrectPolicyType", "InvalidPipelineStack",
    "LockError", "LockNotOwnedError", "ModuleError", "MovedError", "NoPermissionError", "NoScriptError",
    "NoSuchFieldsetError", "PubSubError", "RedisClusterException", "RedisError", "ResponseError", "WatchError",
}  # fmt: skip


def _all_error_classes() -> list[type[Exception]]:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", _all_error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_class_of_redis_py_is_an_outage_or_known_not_to_be_one(kind: type[Exception]) -> None:
    error = kind.__new__(kind)  # some constructors want a reply of a certain form
    assert (why_unavailable(error) is None) == (kind.__name__ in NOT_OUTAGES)


def test_every_connection_error_is_an_outage() -> None:
    for kind in _all_error_classes():
        if issubclass(kind, errors.ConnectionError | errors.TimeoutError):
            assert why_unavailable(kind.__new__(kind)), kind


@pytest.mark.parametrize(
    "reply",
    [
        "MISCONF Errors writing to the AOF file: No space left on device",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed",
        "MISCONF Errors writing to the AOF file script: 3a, on @user_script:1.",
    ],
)
def test_replies_that_say_it_cannot_keep_are_outages(reply: str) -> None:
    assert why_unavailable(errors.ResponseError(reply))


@pytest.mark.parametrize("reply", ["WRONGTYPE Operation against a key", "ERR unknown command 'OOM'", "", "BUSYGROUP x"])
def test_replies_about_the_command_are_no_outages(reply: str) -> None:
    assert why_unavailable(errors.ResponseError(reply)) is None


@pytest.mark.parametrize("url", ["redis+sentinel://host:26379", "redis+cluster://", "redis+cluster://:7000"])
def test_a_url_without_what_it_needs_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis|Redis"):
        connect(url, 1)


def test_a_url_says_hosts_credentials_database_and_tls() -> None:
    client = connect("rediss://bot:p%40ss@store.example:7000/3", 2)
    options = client.connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["db"]) == ("store.example", 7000, 3)
    assert (options["username"], options["password"]) == ("bot", "p@ss")
    assert client.connection_pool.connection_class is SSLConnection

    sentinel = connect("redis+sentinel://:secret@s1:26379,s2:26380/mymaster/2?tls=true", 2)
    pool = sentinel.connection_pool
    places = [node.connection_pool.connection_kwargs["port"] for node in pool.sentinel_manager.sentinels]  # type: ignore[attr-defined]
    assert places == [26379, 26380]
    assert (pool.connection_kwargs["password"], pool.connection_kwargs["db"]) == ("secret", 2)
    assert (pool.max_connections, pool.timeout) == (64, 2)  # type: ignore[attr-defined]  # waits where none is free
