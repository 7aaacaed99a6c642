"""Files are found by the process that runs their connector, and fetched even from a server that means harm."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from connectors.connector import AttachmentUnavailable, Location
from connectors.message import Attachment
from runtime.attachments import Locator
from runtime.attachments.fetch import fetch
from runtime.attachments.network import Fetched, Network, is_public
from runtime.coordination import Hub
from tests.emulators import hostile

TEXT = frozenset({"text/*"})
SECRET = "Bearer do-not-show-this"


class Resolver:
    """Answers with the next list of addresses, then with the last again, and counts."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[hostile.HostileServer]:
    async with hostile.serving("files.example", "cdn.example") as running:
        yield running


@pytest_asyncio.fixture
async def plain_server() -> AsyncIterator[hostile.HostileServer]:
    async with hostile.serving() as running:
        yield running


async def get(
    server: hostile.HostileServer,
    path: str,
    *,
    resolver: Resolver | None = None,
    hosts: tuple[str, ...] = ("files.example", "cdn.example"),
    url: str = "",
    max_bytes: int = 100_000,
    allowed: frozenset[str] = TEXT,
    timeout: float = 10,
) -> Fetched:
    """*path* of *server* as if 127.0.0.1 were the one public address of the internet."""
    network = Network(
        resolver or Resolver(["127.0.0.1"]),
        permits=lambda address: str(address) == "127.0.0.1",
        port=server.port,
        tls=server.trusting,
    )
    location = Location(url or f"https://files.example:{server.port}{path}", hosts, {"Authorization": SECRET})
    return await fetch(location, max_bytes, allowed, timeout, network)


async def test_a_file_comes_with_the_type_that_its_bytes_have(server: hostile.HostileServer) -> None:
    server.files["/a.md"] = ("application/octet-stream", b"# Words")
    assert await get(server, "/a.md") == Fetched(b"# Words", "text/plain")
    assert server.seen == [(f"files.example:{server.port}", "/a.md", SECRET)]


async def test_the_name_is_resolved_once_and_its_certificate_checked_by_name(server: hostile.HostileServer) -> None:
    """A name that answers otherwise the second time is connected to where it was judged."""
    server.files["/a"] = ("text/plain", b"words")
    resolver = Resolver(["127.0.0.1"], ["127.0.0.2"])
    assert (await get(server, "/a", resolver=resolver)).data == b"words"
    assert resolver.asked == ["files.example"]


async def test_a_certificate_for_another_name_is_refused(server: hostile.HostileServer) -> None:
    url = f"https://other.example:{server.port}/a"
    with pytest.raises(AttachmentUnavailable, match="could not be fetched"):
        await get(server, "", url=url, hosts=("other.example",))
    assert server.seen == []


async def test_a_name_at_a_private_address_is_not_asked(server: hostile.HostileServer) -> None:
    with pytest.raises(AttachmentUnavailable, match="public address"):
        await get(server, "/a", resolver=Resolver(["10.0.0.1", "169.254.169.254", "::1"]))
    assert server.seen == []


async def test_of_a_names_addresses_only_the_public_ones_are_asked(server: hostile.HostileServer) -> None:
    server.files["/a"] = ("text/plain", b"words")
    assert (await get(server, "/a", resolver=Resolver(["10.0.0.1", "127.0.0.1"]))).data == b"words"


async def test_a_redirect_within_the_platform_is_followed_with_the_secret(server: hostile.HostileServer) -> None:
    server.redirects["/a"] = f"https://cdn.example:{server.port}/b?sig=%2Fx~"
    server.files["/b"] = ("text/plain", b"words")
    assert (await get(server, "/a")).data == b"words"
    assert [host for host, _, _ in server.seen] == [f"files.example:{server.port}", f"cdn.example:{server.port}"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("https://evil.example:{port}/b", "own servers"),
        ("https://127.0.0.1:{port}/b", "own servers"),
        ("https://169.254.169.254:{port}/latest/meta-data", "own servers"),
        ("https://files.example.evil.example:{port}/b", "own servers"),
        ("https://files.example:1/b", "unusual port"),
        ("http://files.example:{port}/b", "encrypted"),
        ("ftp://files.example:{port}/b", "encrypted"),
        ("file:///etc/passwd", "encrypted"),
        ("https://me:secret@files.example:{port}/b", "user name"),
        ("https://@files.example:{port}/b", "user name"),
        ("/a", "too often"),
    ],
)
async def test_a_redirect_is_judged_like_the_first_address(
    server: hostile.HostileServer, target: str, why: str
) -> None:
    server.redirects["/a"] = target.format(port=server.port)
    with pytest.raises(AttachmentUnavailable, match=why):
        await get(server, "/a")
    assert all(path == "/a" for _, path, _ in server.seen)


async def test_a_redirect_to_a_name_that_has_become_private_is_refused(server: hostile.HostileServer) -> None:
    server.redirects["/a"] = f"https://files.example:{server.port}/b"
    server.files["/b"] = ("text/plain", b"words")
    with pytest.raises(AttachmentUnavailable, match="public address"):
        await get(server, "/a", resolver=Resolver(["127.0.0.1"], ["192.168.1.1"]))


@pytest.mark.parametrize(("path", "why"), [("/endless", "too large"), ("/liar", "too large")])
async def test_no_more_than_the_limit_is_taken(server: hostile.HostileServer, path: str, why: str) -> None:
    """A body without end, and one that claims more, are cut off."""
    with pytest.raises(AttachmentUnavailable, match=why):
        await get(server, path)
    assert server.sent_bytes < 20_000_000


async def test_a_body_that_drips_is_given_up_in_time(server: hostile.HostileServer) -> None:
    with pytest.raises(AttachmentUnavailable, match=r"longer than 0\.3 seconds"):
        await get(server, "/drip", timeout=0.3)


async def test_a_compressed_body_which_nobody_asked_for_is_not_expanded(server: hostile.HostileServer) -> None:
    with pytest.raises(AttachmentUnavailable, match="not asked for"):
        await get(server, "/bomb")


@pytest.mark.parametrize(
    ("declared", "data", "why"),
    [
        ("video/mp4", b"words", "a video"),
        ("text/plain", b"MZ\x90\x00\x03\x00", "a program"),
        ("text/plain", b"\x89PNG\r\n\x1a\n", "an image"),
    ],
)
async def test_declared_and_real_type_have_to_be_allowed(
    server: hostile.HostileServer, declared: str, data: bytes, why: str
) -> None:
    server.files["/a"] = (declared, data)
    with pytest.raises(AttachmentUnavailable, match=why):
        await get(server, "/a")


@pytest.mark.parametrize(
    ("status", "why"), [(403, "not let me"), (404, "any more"), (500, "HTTP 500"), (206, "HTTP 206")]
)
async def test_a_refusal_of_the_platform_is_told(server: hostile.HostileServer, status: int, why: str) -> None:
    with pytest.raises(AttachmentUnavailable, match=why):
        await get(server, f"/status/{status}")


@pytest.mark.parametrize(
    "url",
    [
        "https://files.example:{port}/a b",
        "https://files.example:{port}/ä",
        "https://files.example:{port}/\r\nX: y",
        "https://[::1",
        "",
    ],
)
async def test_an_address_that_is_none_is_refused(server: hostile.HostileServer, url: str) -> None:
    with pytest.raises(AttachmentUnavailable):
        await get(server, "", url=url.format(port=server.port) or "nonsense")
    assert server.seen == []


async def test_no_message_holds_the_address_or_the_secret(server: hostile.HostileServer) -> None:
    for path in ("/status/500", "/endless", "/liar", "/bomb"):
        with pytest.raises(AttachmentUnavailable) as failed:
            await get(server, path, max_bytes=1000)
        chain: BaseException | None = failed.value
        while chain is not None:
            assert "example" not in str(chain)
            assert SECRET not in str(chain)
            chain = chain.__cause__


async def test_an_operators_own_server_may_stand_at_a_private_address_without_tls(
    plain_server: hostile.HostileServer,
) -> None:
    plain_server.files["/a"] = ("text/plain", b"words")
    url = f"http://127.0.0.1:{plain_server.port}/a"
    assert (await fetch(Location(url, ("127.0.0.1",), {}, True), 100, TEXT, 5)).data == b"words"
    with pytest.raises(AttachmentUnavailable, match="encrypted"):
        await fetch(Location(url, ("127.0.0.1",)), 100, TEXT, 5)


async def test_a_trusted_server_still_cannot_send_elsewhere(plain_server: hostile.HostileServer) -> None:
    plain_server.redirects["/a"] = "http://169.254.169.254/latest/meta-data"
    url = f"http://127.0.0.1:{plain_server.port}/a"
    with pytest.raises(AttachmentUnavailable, match="own servers"):
        await fetch(Location(url, ("127.0.0.1",), {}, True), 100, TEXT, 5)


async def test_a_trusted_server_cannot_send_from_the_encrypted_to_the_plain_connection() -> None:
    """The secret was given for the encrypted one."""
    async with hostile.serving("files.example") as server:
        server.redirects["/a"] = f"http://files.example:{server.port}/b"
        network = Network(Resolver(["127.0.0.1"]), tls=server.trusting)
        url = f"https://files.example:{server.port}/a"
        with pytest.raises(AttachmentUnavailable, match="redirected to an unencrypted"):
            await fetch(Location(url, ("files.example",), {"Authorization": SECRET}, True), 100, TEXT, 5, network)


async def test_proxies_of_the_environment_are_not_used(
    plain_server: hostile.HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    plain_server.files["/a"] = ("text/plain", b"words")
    url = f"http://127.0.0.1:{plain_server.port}/a"
    assert (await fetch(Location(url, ("127.0.0.1",), {}, True), 100, TEXT, 5)).data == b"words"


@pytest.mark.parametrize(
    "text",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.0.1"),
        *("192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::8.8.8.8", "64:ff9b::808:808", "64:ff9b:1::1"),
        *("2002:7f00:1::", "2001::1", "2001:db8::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1", "100::1"),
    ],
)
def test_an_address_that_is_not_of_the_public_internet_is_known(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "149.154.167.220", "2001:67c:4e8:f004::9", "2606:4700::6810:84e5"])
def test_an_address_of_the_public_internet_is_known(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@given(st.ip_addresses(v=4))
def test_no_embedding_makes_an_address_more_public(address: ipaddress.IPv4Address) -> None:
    """Whatever IPv4 address is wrapped in IPv6's ways of wrapping one is refused."""
    number = int(address)
    for wrapped in (number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80):
        assert not is_public(ipaddress.IPv6Address(wrapped))


FILE = Attachment("document", "a.pdf", "application/pdf", 12, "file-1")
THERE = Location("https://files.example/a.pdf", ("files.example",), {"Authorization": "Bearer x"})


class Shelf:
    """A connector that knows one file."""

    async def locate(self, attachment: Attachment) -> Location:
        if attachment != FILE:
            raise AttachmentUnavailable("it is gone")
        return THERE


@asynccontextmanager
async def process(redis: Redis, connectors: dict[str, Any], *, shared: bool = True) -> AsyncIterator[Locator]:
    hub = Hub(redis, shared=shared)
    locator = Locator(cast("Any", connectors), hub)
    running = [asyncio.create_task(hub.run()), asyncio.create_task(locator.run())]
    await asyncio.sleep(0.1)  # until it listens
    try:
        yield locator
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def test_a_worker_is_told_by_the_gateway_that_runs_the_connector(redis: Redis) -> None:
    """With what is needed to fetch it; a refusal comes in its own words."""
    async with process(redis, {"shelf": Shelf()}), process(redis, {}) as worker, asyncio.timeout(5):
        assert await worker.locate("shelf", FILE) == THERE
        with pytest.raises(AttachmentUnavailable, match="it is gone"):
            await worker.locate("shelf", Attachment("document", "b.pdf"))


async def test_where_nobody_runs_the_connector_the_caller_waits_as_long_as_it_likes(redis: Redis) -> None:
    """Who asks bounds it; nothing is left behind."""
    async with process(redis, {}) as worker:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await worker.locate("shelf", FILE)


async def test_a_connector_whose_files_cannot_be_had_says_so(redis: Redis) -> None:
    async with process(redis, {"deaf": object()}, shared=False) as gateway:
        with pytest.raises(AttachmentUnavailable, match="cannot be fetched"):
            await gateway.locate("deaf", FILE)
