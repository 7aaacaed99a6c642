"""Many waits, each within its own time, by one timer."""

import asyncio

import pytest

from grounding.deadlines import Deadlines


async def hung(deadlines: Deadlines) -> str:
    with deadlines.wait():
        await asyncio.Event().wait()
    return "never"


async def late(deadlines: Deadlines) -> str:
    try:
        return await hung(deadlines)
    except TimeoutError:
        return "given up"


async def test_a_wait_that_takes_too_long_is_given_up_and_its_task_goes_on() -> None:
    deadlines = Deadlines(0.01)

    async def twice() -> list[str]:
        return [await late(deadlines), await late(deadlines)]

    task = asyncio.create_task(twice())

    assert await task == ["given up", "given up"]
    assert task.cancelling() == 0


async def test_each_of_several_waits_has_its_own_time() -> None:
    deadlines, ended = Deadlines(0.05), list[str]()

    async def wait(name: str, before: float) -> None:
        await asyncio.sleep(before)
        await late(deadlines)
        ended.append(name)

    async def quick() -> None:
        with deadlines.wait():
            await asyncio.sleep(0)
        ended.append("quick")

    await asyncio.gather(wait("second", 0.03), wait("first", 0), quick())

    assert ended == ["quick", "first", "second"]


async def test_a_task_that_is_to_end_is_not_told_that_its_time_is_over() -> None:
    task = asyncio.create_task(late(Deadlines(10.0)))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_is_to_end_as_its_time_is_over_ends() -> None:
    deadlines = Deadlines(0.0)
    task = asyncio.create_task(late(deadlines))
    await asyncio.sleep(0)
    # In this pass of the loop its time is over, and somebody else wants it to end, too.
    asyncio.get_running_loop().call_soon(task.cancel)

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_breaks_after_its_time_is_raised_as_it_is_and_the_task_goes_on() -> None:
    deadlines = Deadlines(0.0)

    async def breaks() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("while it was broken off")

    async def outer() -> str:
        with pytest.raises(LookupError, match="broken off"), deadlines.wait():
            await breaks()
        await asyncio.sleep(0)
        return "went on"

    assert await asyncio.create_task(outer()) == "went on"


async def test_without_a_wait_no_timer_is_left() -> None:
    loop, deadlines = asyncio.get_running_loop(), Deadlines(1000.0)

    with deadlines.wait(), deadlines.wait():
        await asyncio.sleep(0)

    timers = getattr(loop, "_scheduled", [])
    assert [one for one in timers if "Deadlines" in repr(one) and not one.cancelled()] == []
