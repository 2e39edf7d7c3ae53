"""The HTTP side of the figures: two methods on one path, bounds on everything a client may do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from hum_workers.errors import UsageError
from hum_workers.figures import server as metrics_server
from hum_workers.figures.server import MetricsServer

WAIT = 5.0
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    async with await MetricsServer.start("127.0.0.1", 0, lambda: b"up 1\n") as it:
        yield it


class Client:
    """A connection that a test speaks by hand."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()

    async def say(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._link, data)

    async def all(self) -> bytes:
        """What comes until the server closes."""
        answer = b""
        while data := await self._loop.sock_recv(self._link, 65536):
            answer += data
        return answer


@asynccontextmanager
async def connected(server: MetricsServer) -> AsyncIterator[Client]:
    with socket.socket() as link:
        link.setblocking(False)
        async with asyncio.timeout(WAIT):
            await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", server.port))
            yield Client(link)


async def said(server: MetricsServer, request: bytes) -> bytes:
    """What comes back until the server closes."""
    async with connected(server) as client:
        await client.say(request)
        return await client.all()


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110 - what a test waits for has no event of its own
            await asyncio.sleep(0)


async def test_the_page_is_served_whole_and_the_connection_closed(server: MetricsServer) -> None:
    head, _, body = (await said(server, GET)).partition(b"\r\n\r\n")
    assert head.splitlines() == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain; version=0.0.4; charset=utf-8",
        b"Content-Length: 5",
        b"Connection: close",
    ]
    assert body == b"up 1\n"


async def test_head_brings_the_head(server: MetricsServer) -> None:
    answer = await said(server, GET.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 5" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"404 Not Found"),
        (b"GET /metrics/ HTTP/1.1\r\nHost: x\r\n\r\n", b"404 Not Found"),
        (b"HEAD /nothing HTTP/1.1\r\nHost: x\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 999999\r\n\r\n", b"405 Method Not Allowed"),
        (b"DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /metrics HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nx", b"200 OK"),
        (b"CONNECT /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"40"),
        (b"\x16\x03\x01 a TLS hello\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 9000, b"431 Request Header Fields Too Large"),
        (b"GET /" + b"y" * 9000, b"431 Request Header Fields Too Large"),
        (GET + GET, b"200 OK"),
    ],
)
async def test_anything_else_is_refused(
    server: MetricsServer, request_: bytes, status: bytes
) -> None:
    answer = await said(server, request_)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"HTTP/1.1") == 1
    if status.startswith(b"405"):
        assert b"Allow: GET, HEAD" in answer


async def test_a_head_in_pieces_is_one_request(server: MetricsServer) -> None:
    async with connected(server) as client:
        for byte in GET:
            await client.say(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.all()).startswith(b"HTTP/1.1 200 OK")


async def test_a_page_that_fails_is_a_500_and_a_log_line() -> None:
    def broken() -> bytes:
        raise RuntimeError("no")

    async with await MetricsServer.start("127.0.0.1", 0, broken) as it:
        with capture_logs() as logs:
            assert (await said(it, GET)).startswith(b"HTTP/1.1 500")
    assert [entry["event"] for entry in logs] == ["worker.metrics.failed"]


async def test_a_client_that_says_nothing_is_let_go() -> None:
    async with await MetricsServer.start("127.0.0.1", 0, lambda: b"", deadline=0.05) as it:
        assert await said(it, b"GET /met") == b""
        assert not it.connections


async def test_a_client_that_does_not_read_is_let_go() -> None:
    page = b"x" * (32 * 1024 * 1024)
    async with await MetricsServer.start("127.0.0.1", 0, lambda: page, deadline=0.2) as it:
        async with connected(it) as client:
            await client.say(GET)
            await until(lambda: bool(it.connections))
            await until(lambda: not it.connections)


async def test_there_is_room_for_sixteen(server: MetricsServer) -> None:
    async with AsyncExitStack() as stack:
        held = [
            await stack.enter_async_context(connected(server)) for _ in range(metrics_server.MOST)
        ]
        await until(lambda: len(server.connections) == metrics_server.MOST)
        with capture_logs() as logged:
            async with connected(server) as surplus:
                assert await surplus.all() == b""
        assert [line["event"] for line in logged] == ["worker.metrics.turned_away"]
        await held[0].say(GET)
        assert (await held[0].all()).startswith(b"HTTP/1.1 200")
        await until(lambda: len(server.connections) < metrics_server.MOST)
        assert (await said(server, GET)).startswith(b"HTTP/1.1 200")


async def test_closing_ends_what_is_open_and_stops_listening() -> None:
    it = await MetricsServer.start("127.0.0.1", 0, lambda: b"")
    port = it.port
    async with connected(it) as client:
        await until(lambda: bool(it.connections))
        await it.close()
        assert await client.all() == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT)


async def test_a_port_that_is_taken_is_told_in_one_sentence(server: MetricsServer) -> None:
    with pytest.raises(
        UsageError,
        match=rf"can't listen on 127.0.0.1:{server.port}: [A-Z][a-z ]+; name another port",
    ):
        await MetricsServer.start("127.0.0.1", server.port, lambda: b"")


async def test_a_free_port_is_named_in_the_log() -> None:
    with capture_logs() as logs:
        async with await MetricsServer.start("127.0.0.1", 0, lambda: b"") as it:
            port = it.port
    assert logs[0] == {
        "event": "worker.metrics.listening",
        "log_level": "info",
        "host": "127.0.0.1",
        "port": port,
    }
