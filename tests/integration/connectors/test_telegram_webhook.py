"""Telegram's updates by webhook: stored before they are confirmed, in order, and only from Telegram."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from structlog.testing import capture_logs

from connectors.connector import ConnectionState, ConnectorFailed, MountsRoutes
from connectors.message import Accepted, InboundMessage
from connectors.telegram.check import PATH
from connectors.telegram.connector import TelegramConnector
from connectors.telegram.updates import ALLOWED_UPDATES
from connectors.telegram.webhook import MAX_BODY_BYTES, SECRET_HEADER
from tests.contract.connector_suite import FakeGateway, eventually, running
from tests.contract.telegram_harness import PUBLIC_URL, SECRET, telegram_connector, telegram_connector_by_webhook
from tests.emulators import telegram as emulated
from tests.emulators.telegram import Person, TelegramEmulator

LENA = Person(id=501, name="Lena")


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator() as emulator:
        yield emulator


@pytest.fixture
async def bot(telegram: TelegramEmulator) -> AsyncIterator[TelegramConnector]:
    connector = telegram_connector_by_webhook(telegram)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def posted(bot: TelegramConnector, body: bytes, headers: Mapping[str, str] | None = None) -> int:
    """The status of the answer to *body*, posted with the right secret unless *headers* say otherwise."""
    transport = httpx.ASGITransport(Starlette(routes=list(bot.routes())))
    async with httpx.AsyncClient(transport=transport, base_url=PUBLIC_URL) as client:
        answer = await client.post(PATH, content=body, headers={SECRET_HEADER: SECRET} if headers is None else headers)
        return answer.status_code


def update(number: int, text: str = "hi", by: Person = LENA) -> bytes:
    """A private message, as Telegram would post it."""
    chat = {"id": by.id, "type": "private", "first_name": by.name}
    message = {"message_id": number, "date": 1_700_000_000, "chat": chat, "from": by.as_json(), "text": text}
    return json.dumps({"update_id": number, "message": message}).encode()


# The address


async def test_the_webhook_is_registered_below_the_public_url(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """With its secret, what is to be told, and one delivery at a time; no polling goes on beside it."""
    async with running(bot, gateway):
        await telegram.say("hello by webhook")
        await gateway.until(lambda g: len(g.accepted) == 1)
        info = telegram.webhook.info(ALLOWED_UPDATES)
    assert telegram.webhook.url == f"{PUBLIC_URL}{PATH}"
    assert telegram.webhook.secret == SECRET
    assert info["max_connections"] == 1
    assert "getupdates" not in telegram.calls
    assert "message_reaction" in telegram._allowed


async def test_what_was_said_while_the_bot_was_stopped_arrives_when_it_is_back(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """Stopping leaves the webhook where it is: Telegram keeps what happens meanwhile."""
    async with running(bot, gateway):
        pass
    await telegram.say("anybody there?")
    await telegram.until(lambda t: bool(t.webhook.answers))
    assert {status for _, status in telegram.webhook.answers} == {503}
    again = telegram_connector_by_webhook(telegram)
    async with running(again, gateway):
        await gateway.until(lambda g: len(g.accepted) == 1)
    assert gateway.accepted[0].text == "anybody there?"


async def test_a_webhook_that_somebody_removed_is_set_again(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """And one that was set to another address, too."""
    with capture_logs() as logs:
        async with running(bot, gateway):
            for other in ("", "https://elsewhere.example/hook"):
                telegram.webhook.url = other
                await telegram.until(lambda t: t.webhook.url == f"{PUBLIC_URL}{PATH}")
            await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert [e["why"] for e in logs if e["event"] == "connector.webhook_lost"] == ["removed", "another address"]


async def test_a_webhook_that_telegram_refuses_is_told_and_tried_again(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """A name that does not resolve yet may do so later; health names the variable meanwhile."""
    unresolved = emulated.Fault(400, "Bad Request: bad webhook: Failed to resolve host: Name or service not known")
    telegram.fail_next("setWebhook", *[unresolved] * 3)
    task = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.why != "")
    waiting = bot.health
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    task.cancel()
    await asyncio.wait([task])
    assert waiting.state is ConnectionState.CONNECTING
    assert "Failed to resolve host" in waiting.why
    assert "AGENT_RUNTIME_HTTP_PUBLIC_URL" in waiting.why
    assert telegram.calls.count("setwebhook") == 4


async def test_a_webhook_is_its_own_however_telegram_writes_it(
    telegram: TelegramEmulator, gateway: FakeGateway
) -> None:
    """A host in capital letters comes back in small ones; that is nobody else's address."""
    bot = telegram_connector_by_webhook(telegram, public_url="https://Bot.Example/", check_seconds=0.01)
    async with running(bot, gateway):
        await telegram.until(lambda t: t.calls.count("getwebhookinfo") >= 10)
        assert bot.health.state is ConnectionState.CONNECTED
    assert telegram.webhook.url == f"{PUBLIC_URL}{PATH}"
    assert telegram.calls.count("setwebhook") == 1


async def test_without_a_public_url_the_operator_registers_it(telegram: TelegramEmulator, gateway: FakeGateway) -> None:
    """Until somebody did, health says what to do; then updates are taken."""
    bot = telegram_connector_by_webhook(telegram, public_url=None)
    task = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
    before = bot.health
    telegram.webhook.set({"url": f"{PUBLIC_URL}{PATH}", "secret_token": SECRET})
    await telegram.say("hi")
    await gateway.until(lambda g: len(g.accepted) == 1)
    await eventually(lambda: "max_connections=1" in bot.health.why)  # Telegram's 40 at once have no order
    telegram.webhook.set({"url": f"{PUBLIC_URL}{PATH}", "secret_token": SECRET, "max_connections": "1"})
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    task.cancel()
    await asyncio.wait([task])
    await bot.close()
    assert "AGENT_RUNTIME_HTTP_PUBLIC_URL" in before.why
    assert "setWebhook" in before.why
    assert "setwebhook" not in telegram.calls


@pytest.mark.parametrize("secret", ["", "with space", "x" * 257, "päss"])
async def test_an_unfit_secret_is_refused_by_the_name_of_its_variable(
    telegram: TelegramEmulator, gateway: FakeGateway, secret: str
) -> None:
    """An empty one above all: anybody could post."""
    bot = telegram_connector(telegram, webhook_secret=SecretStr(secret), public_url=PUBLIC_URL)
    with pytest.raises(ConnectorFailed, match="AGENT_RUNTIME_TELEGRAM_WEBHOOK_SECRET") as caught:
        await bot.run(gateway.accept)
    await bot.close()
    assert bot.health.state is ConnectionState.FAILED
    assert not secret or secret not in str(caught.value)
    assert list(bot.routes()) == []


async def test_a_public_url_without_tls_is_refused_by_the_name_of_its_variable(
    telegram: TelegramEmulator, gateway: FakeGateway
) -> None:
    """Telegram says so itself; a Bot API server of one's own would take it."""
    bot = telegram_connector_by_webhook(telegram, public_url="http://bot.example")
    with pytest.raises(ConnectorFailed, match="AGENT_RUNTIME_HTTP_PUBLIC_URL"):
        await bot.run(gateway.accept)
    await bot.close()
    telegram.webhook.takes_http = True
    own = telegram_connector_by_webhook(telegram, public_url="http://bot.example")
    async with running(own, gateway):
        await telegram.say("hi")
        await gateway.until(lambda g: len(g.accepted) == 1)


async def test_a_token_that_is_revoked_is_noticed_without_polling(
    telegram: TelegramEmulator, gateway: FakeGateway
) -> None:
    """By the next look at the webhook."""
    bot = telegram_connector_by_webhook(telegram, check_seconds=0.05)
    task = asyncio.create_task(bot.run(gateway.accept))
    await telegram.say("hi")
    await gateway.until(lambda g: len(g.accepted) == 1)
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    telegram.revoked = True
    with pytest.raises(ConnectorFailed, match="AGENT_RUNTIME_TELEGRAM_BOT_TOKEN"):
        await asyncio.wait_for(task, 20)
    await bot.close()
    assert bot.health.state is ConnectionState.FAILED


async def test_polling_mounts_no_route() -> None:
    """Without a secret there is nothing to post to."""
    bot = telegram_connector()
    assert isinstance(bot, MountsRoutes)
    assert list(bot.routes()) == []


# Who may post, and what


@pytest.mark.parametrize(
    "headers",
    [{}, {SECRET_HEADER: ""}, {SECRET_HEADER: SECRET + "x"}, {SECRET_HEADER: SECRET[:-1]}, {SECRET_HEADER: "\u00e4"}],
)
async def test_who_does_not_know_the_secret_is_refused(
    bot: TelegramConnector, gateway: FakeGateway, headers: dict[str, str]
) -> None:
    """Nothing of it is read, and the secret stands in no log line."""
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    async with running(bot, gateway):
        with capture_logs() as logs:
            status = await posted(bot, update(1), encoded)  # type: ignore[arg-type]
    assert status == 401
    assert gateway.accepted == []
    assert [e["why"] for e in logs if e["event"] == "connector.request_refused"] == ["secret"]
    assert SECRET not in str(logs)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * (MAX_BODY_BYTES + 1), 413),
        (b"no json", 400),
        (b"\xff\xfe", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"update_id": "1"}', 400),
        (b'{"update_id": 1}', 200),
        (b'{"update_id": 1, "message": {"shape": "from the future"}}', 200),
    ],
)
async def test_what_is_no_update_does_no_harm(
    bot: TelegramConnector, gateway: FakeGateway, body: bytes, status: int
) -> None:
    """Too large or no update: refused. One that cannot be read: confirmed, so that it does not come for ever."""
    async with running(bot, gateway):
        assert await posted(bot, body) == status
        assert await posted(bot, update(2)) == 200
    assert [m.message_id for m in gateway.accepted] == ["2"]


# Storing before confirming


async def test_nothing_is_confirmed_before_it_is_accepted_and_the_order_is_kept(
    bot: TelegramConnector,
) -> None:
    """One update is accepted at a time, as they came."""
    release = asyncio.Event()
    asked: list[str] = []

    class SlowGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            asked.append(message.text)
            if message.text == "ten":
                await release.wait()
            return await super().accept(message)

    gateway = SlowGateway()
    async with running(bot, gateway), asyncio.TaskGroup() as group:
        tasks = [group.create_task(posted(bot, update(10, "ten")))]
        await eventually(lambda: asked == ["ten"])
        tasks += [group.create_task(posted(bot, update(n, t))) for n, t in ((11, "eleven"), (12, "twelve"))]
        await asyncio.sleep(0.05)
        done_meanwhile = [task.done() for task in tasks]
        release.set()
    assert asked == ["ten", "eleven", "twelve"]
    assert done_meanwhile == [False, False, False]
    assert [m.text for m in gateway.accepted] == ["ten", "eleven", "twelve"]
    assert [task.result() for task in tasks] == [200] * 3


async def test_an_outage_of_the_store_loses_nothing_and_is_told(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """503 makes Telegram repeat; everything arrives once, in order."""
    gateway.store_available = False
    async with running(bot, gateway):
        for number in range(4):
            await telegram.say(f"number {number}")
        await gateway.until(lambda g: g.refusals >= 3)
        during = bot.health
        gateway.store_available = True
        await gateway.until(lambda g: len(g.accepted) == 4)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert during.state is ConnectionState.DEGRADED
    assert "store" in during.why
    assert [m.text for m in gateway.accepted] == [f"number {number}" for number in range(4)]


async def test_a_message_that_can_never_be_accepted_is_dropped_after_three_attempts(
    telegram: TelegramEmulator, bot: TelegramConnector
) -> None:
    """Each is logged without the message's words; what comes after it is not held up for ever."""

    class FaultyGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "poison":
                raise RuntimeError(f"a fault of ours with {message.text}")
            return await super().accept(message)

    gateway = FaultyGateway()
    with capture_logs() as logs:
        async with running(bot, gateway):
            await telegram.say("poison")
            await telegram.say("water")
            await gateway.until(lambda g: len(g.accepted) == 1)
            await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    failures = [e for e in logs if e["event"] == "message.failed"]
    assert [e["dropped"] for e in failures] == [False, False, True]
    assert "poison" not in str(failures)
    first = emulated.FIRST_UPDATE
    assert [status for update_id, status in telegram.webhook.answers if update_id == first] == [200]


async def test_an_update_that_takes_too_long_is_not_confirmed(telegram: TelegramEmulator) -> None:
    """Telegram is told to try again, and the call ends."""
    never = asyncio.Event()

    class HangingGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            await never.wait()
            return await super().accept(message)

    gateway = HangingGateway()
    bot = telegram_connector_by_webhook(telegram, timeout_seconds=0.3)
    async with running(bot, gateway):
        assert await posted(bot, update(1)) == 503
        never.set()
        assert await posted(bot, update(1)) == 200
    assert len(gateway.accepted) == 1


async def test_deliveries_that_fail_elsewhere_are_told(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """What Telegram says of them reaches health, and goes when they come through again."""
    through = telegram.webhook.post

    async def broken(_url: str, _body: bytes, _headers: Mapping[str, str]) -> int:
        return 502

    async with running(bot, gateway):
        telegram.webhook.post = broken
        await telegram.say("lost on the way")
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        why = bot.health.why
        telegram.webhook.post = through
        await gateway.until(lambda g: len(g.accepted) == 1)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert "502" in why
    assert "AGENT_RUNTIME_HTTP_PUBLIC_URL" in why


async def test_a_change_back_to_polling_loses_nothing(telegram: TelegramEmulator, gateway: FakeGateway) -> None:
    """The webhook is taken down, and what waited for it is polled."""
    hooked = telegram_connector_by_webhook(telegram)
    async with running(hooked, gateway):
        await telegram.say("one")
        await gateway.until(lambda g: len(g.accepted) == 1)
    await telegram.say("two")
    polling = telegram_connector(telegram)
    async with running(polling, gateway):
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert [m.text for m in gateway.accepted] == ["one", "two"]
    assert telegram.webhook.url == ""
