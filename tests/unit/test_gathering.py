"""A layer that fails is named and left out; a fault outside of a layer's reads is raised."""

from typing import Any, cast

import pytest

from connectors.message import ConversationKey, StoreUnavailable
from grounding.pipeline import Pipeline
from grounding.prompt import PrefixPolicy, SessionContinuity
from grounding.strategy import Choice, Strategy

_NONE: Any = None
KEY = ConversationKey("sample", "http", "one")
THANKS = Choice(Strategy.NONE, "small_talk")


class GlobalContexts:
    """Fails with *error*."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def open(self, *_: object, **__: object) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (StoreUnavailable("away"), "store_unavailable"),
        (TimeoutError(), "timeout"),
        (KeyError("a fault of ours"), "key_error"),
    ],
)
async def test_a_layer_that_fails_is_named_and_left_out(error: Exception, why: str) -> None:
    continuing = SessionContinuity(_NONE, PrefixPolicy(_NONE, "prefix_stable"))
    pipeline = Pipeline(_NONE, continuing, cast("Any", GlobalContexts(error)), _NONE, _NONE, timeout_seconds=1.0)

    grounds = await pipeline.ground(KEY, "thanks!", THANKS, _NONE)

    assert grounds.global_context is None
    assert [(one.block, one.why) for one in grounds.degraded] == [("global_context", why)]


async def test_a_fault_outside_of_the_reads_is_raised_as_it_is() -> None:
    class Broken:
        async def before(self, *_: object) -> None:
            return None

        def small_talk(self, *_: object) -> None:
            raise LookupError("no such word")

    contexts = GlobalContexts(StoreUnavailable("away"))
    pipeline = Pipeline(_NONE, cast("Any", Broken()), cast("Any", contexts), _NONE, _NONE, timeout_seconds=1.0)
    with pytest.raises(LookupError, match="no such word"):
        await pipeline.ground(KEY, "thanks!", THANKS, _NONE)
