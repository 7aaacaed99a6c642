"""Layers are gathered side by side, each once."""

import asyncio
from typing import Any, cast

import pytest

from connectors.message import ConversationKey, StoreUnavailable
from grounding.pipeline import Gathering, Layer, Pipeline, Sources
from grounding.strategy import Choice, Strategy

_NONE: Any = None
NOWHERE = Sources(_NONE, _NONE, _NONE, _NONE, _NONE, timeout_seconds=0.05)


async def gathered(*layers: Layer[Any]) -> Gathering:
    async with asyncio.TaskGroup() as group:
        made = Gathering(NOWHERE, cast("Any", None), group)
        made.begin(layers)
    return made


async def test_a_layer_that_two_others_need_is_read_once() -> None:
    read: list[str] = []

    async def tail(of: Gathering) -> str:
        read.append("tail")
        return "said"

    async def marks(of: Gathering) -> str:
        return "marks of " + await of.of(tail)

    async def records(of: Gathering) -> str:
        return "records of " + await of.of(tail)

    made = await gathered(marks, records, tail)

    assert read == ["tail"]
    assert [made.of(one).result() for one in (marks, records)] == ["marks of said", "records of said"]


async def test_layers_that_wait_for_no_other_are_begun_before_one_of_them_goes_on() -> None:
    steps: list[str] = []

    async def first(of: Gathering) -> None:
        steps.append("first asks")
        await asyncio.sleep(0)
        steps.append("first is answered")

    async def second(of: Gathering) -> None:
        steps.append("second asks")

    await gathered(first, second)

    assert steps == ["first asks", "second asks", "first is answered"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (StoreUnavailable("away"), "store_unavailable"),
        (TimeoutError(), "timeout"),
        (KeyError("what nobody foresaw"), "key_error"),
    ],
)
async def test_a_layer_that_fails_is_named_and_left_out_and_the_others_come(error: Exception, why: str) -> None:
    async def breaks() -> str:
        raise error

    async def broken(of: Gathering) -> str | None:
        return await of.bounded("records", breaks)

    async def other(of: Gathering) -> str:
        return f"beside {await of.of(broken)}"

    made = await gathered(broken, other)

    assert made.of(other).result() == "beside None"
    assert [(one.block, one.why) for one in made.degraded] == [("records", why)]


async def test_a_layer_that_hangs_is_given_up_but_not_what_it_shares_with_another() -> None:
    there = asyncio.Event()

    async def tail(of: Gathering) -> str:
        await there.wait()
        return "said"

    async def impatient(of: Gathering) -> str | None:
        found = await of.bounded("records", lambda: asyncio.shield(of.of(tail)))
        there.set()
        return found

    made = await gathered(tail, impatient)

    assert made.of(impatient).result() is None
    assert made.of(tail).result() == "said"


async def test_what_breaks_outside_of_what_a_layer_asks_is_raised_as_it_is() -> None:
    class Continuing:
        def small_talk(self, *_: object) -> None:
            raise LookupError("no such word")

    pipeline = Pipeline(_NONE, cast("Any", Continuing()), _NONE, _NONE, _NONE, timeout_seconds=1.0)
    thanks = Choice(Strategy.NONE, "small_talk")
    with pytest.raises(LookupError, match="no such word"):
        await pipeline.ground(ConversationKey("sample", "http", "one"), "thanks!", thanks, _NONE)
