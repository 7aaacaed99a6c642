"""What is asked in one pass of the event loop is asked together."""

import asyncio
from typing import Any

import pytest

from runtime.batching import Batching

MOST = 2


class Server:
    """Doubles numbers; remembers what came together."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.away: Exception | None = None
        self.held = asyncio.Event()
        self.held.set()

    async def ask(self, questions: list[Any]) -> list[Any]:
        self.batches.append(questions)
        await self.held.wait()
        if self.away:
            raise self.away
        return [ValueError(question) if question < 0 else 2 * question for question in questions]


async def test_questions_of_one_pass_share_a_batch_and_each_has_its_own_answer() -> None:
    server = Server()
    batching = Batching(server.ask, MOST)

    answers = await asyncio.gather(*(batching.call(number) for number in (1, -2, 3)), return_exceptions=True)
    alone = await batching.call(4)

    assert [str(answer) for answer in answers] == ["2", "-2", "6"]
    assert alone == 8
    assert server.batches == [[1, -2, 3], [4]]


async def test_what_a_task_asks_that_was_only_just_begun_comes_along() -> None:
    """A step that is itself made of steps does not cost a round trip more."""
    server = Server()
    batching = Batching(server.ask, MOST)

    async def further() -> None:
        await asyncio.gather(batching.call(3), batching.call(4))

    async def both() -> None:
        await asyncio.gather(batching.call(2), further())

    await asyncio.gather(batching.call(1), both())

    assert server.batches == [[1, 2, 3, 4]]


async def test_where_nobody_could_come_along_nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loop: Any = asyncio.get_running_loop()
    passes: list[object] = []
    select = loop._selector.select

    def counted(timeout: float | None) -> Any:
        passes.append(timeout)
        return select(timeout)

    monkeypatch.setattr(loop._selector, "select", counted)

    assert await Batching(Server().ask, MOST).call(1) == 2
    assert len(passes) == 3  # it is looked who else asks; the server is asked; its answer is told


async def test_what_is_hastened_goes_before_whatever_else_was_ready_to_run() -> None:
    server = Server()
    batching = Batching(server.ask, MOST)
    seen: list[int] = []

    async def busy() -> None:
        for _ in range(3):  # others are ready to run all the time, and could come along
            seen.append(len(server.batches))
            await asyncio.sleep(0)

    asked = asyncio.gather(batching.call(1), batching.call(2))
    asyncio.get_running_loop().call_soon(batching.hasten)
    beside = asyncio.create_task(busy())

    assert list(await asked) == [2, 4]
    await beside
    assert server.batches == [[1, 2]]
    assert seen[1:] == [1, 1], "it was not waited for who else might ask"


async def test_where_nothing_is_asked_nothing_is_hastened() -> None:
    server = Server()
    batching = Batching(server.ask, MOST)
    batching.hasten()
    assert await batching.call(1) == 2
    batching.hasten()
    await asyncio.sleep(0)
    assert server.batches == [[1]]


async def test_no_batch_waits_for_an_earlier_one() -> None:
    server = Server()
    server.held.clear()
    batching = Batching(server.ask, MOST)
    first = asyncio.create_task(batching.call(1))
    while not server.batches:
        await asyncio.sleep(0)
    server.held = asyncio.Event()
    server.held.set()

    assert await batching.call(2) == 4
    assert not first.done()
    first.cancel()


async def test_where_so_many_are_on_their_way_what_is_asked_gathers_until_one_is_back() -> None:
    server = Server()
    server.held.clear()
    batching = Batching(server.ask, MOST)
    asked = []
    for number in (1, 2, 3, 4):
        asked.append(asyncio.create_task(batching.call(number)))
        for _ in range(5):
            await asyncio.sleep(0)
    gathering = len(server.batches)
    server.held.set()

    assert await asyncio.gather(*asked) == [2, 4, 6, 8]
    assert gathering == MOST
    assert server.batches == [[1], [2], [3, 4]]
    assert await batching.call(5) == 10


async def test_what_gathered_and_is_not_waited_for_any_more_is_not_asked_and_holds_up_nobody() -> None:
    server = Server()
    server.held.clear()
    batching = Batching(server.ask, 1)
    first, second = (asyncio.create_task(batching.call(number)) for number in (1, 2))
    while not server.batches:
        await asyncio.sleep(0)
    third = asyncio.create_task(batching.call(3))
    for _ in range(5):
        await asyncio.sleep(0)
    third.cancel()
    server.held.set()

    assert [await first, await second] == [2, 4]
    assert await batching.call(4) == 8
    assert server.batches == [[1, 2], [4]]


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    server = Server()
    server.held.clear()
    batching = Batching(server.ask, MOST)
    first, second = (asyncio.create_task(batching.call(number)) for number in (1, 2))
    while not server.batches:
        await asyncio.sleep(0)
    first.cancel()
    server.held.set()

    assert await second == 4
    assert first.cancelled()


async def test_what_is_not_waited_for_any_more_is_not_asked() -> None:
    server = Server()
    batching = Batching(server.ask, MOST)
    first, second = (asyncio.create_task(batching.call(number)) for number in (1, 2))
    await asyncio.sleep(0)
    first.cancel()

    assert await second == 4
    assert server.batches == [[2]]


async def test_where_the_server_is_away_each_caller_has_an_error_of_its_own() -> None:
    server = Server()
    server.away = ConnectionError("away")
    batching = Batching(server.ask, MOST)

    errors = await asyncio.gather(batching.call(1), batching.call(2), return_exceptions=True)

    assert [str(error) for error in errors] == ["away", "away"]
    assert errors[0] is not errors[1]
    with pytest.raises(ConnectionError):
        await batching.call(3)


async def test_an_error_that_is_made_in_a_way_of_its_own_is_raised_all_the_same() -> None:
    class Moved(Exception):
        def __init__(self, said: str) -> None:
            _, place = said.split()
            super().__init__(place)

    server = Server()
    server.away = Moved("MOVED elsewhere")
    batching = Batching(server.ask, most=8)

    async with asyncio.timeout(5):
        errors = await asyncio.gather(batching.call(1), batching.call(2), return_exceptions=True)

    assert [str(error) for error in errors] == ["elsewhere", "elsewhere"]
