"""Connections that are kept, and what becomes of a request when one turns out to be closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hum_workers.errors import ErrorCode
from hum_workers.tender import http_pool
from tests.upstream.script import (
    CHUNKED,
    EVENT,
    LAST,
    Client,
    Turn,
    answering,
    chunk,
    closing,
    serving,
    turn,
    whole,
)


async def test_connections_are_kept_and_used_again(short_dir: Path) -> None:
    stream = answering(CHUNKED, chunk(EVENT), chunk(LAST), b"0\r\n\r\n")
    async with serving(short_dir, stream) as (upstream, server):
        for _ in range(3):
            got = await turn(upstream)
            assert got.so_far() == "a"
            await upstream.request("GET", "/health")
        assert server.connections <= 2


async def test_a_stream_closed_before_it_is_connected_is_never_sent(short_dir: Path) -> None:
    seen: list[bytes] = []

    async def script(client: Client) -> None:
        seen.append(await client.request())
        await client.send(whole(b""))

    async with serving(short_dir, script) as (upstream, _):
        upstream.stream("/secret", b"{}", Turn()).close()
        await upstream.request("GET", "/health")
    assert [request.split()[1] for request in seen if request] == [b"/health"]


async def test_a_stream_may_be_paused_before_it_is_connected(short_dir: Path) -> None:
    async with serving(short_dir, answering(CHUNKED, chunk(EVENT + LAST), b"0\r\n\r\n")) as (up, _):
        got = Turn()
        stream = up.stream("/", b"{}", got)
        stream.pause()
        await up.request("GET", "/")
        assert got.events == []
        stream.resume()
        await got.ended.wait()


async def test_a_kept_connection_that_was_just_closed_is_replaced_once(short_dir: Path) -> None:
    fresh = answering(CHUNKED, chunk(EVENT + LAST), b"0\r\n\r\n")
    async with serving(short_dir, closing, fresh) as (upstream, server):
        await upstream.request("GET", "/")
        got = await turn(upstream)
        assert got.so_far() == "a"
        assert server.connections == 2


async def test_nothing_is_sent_twice_once_a_byte_of_answer_came(short_dir: Path) -> None:
    async def script(client: Client) -> None:
        await client.request()
        await client.send(whole(b"{}"))
        await client.request()
        await client.send(b"HTTP/1.1 2")

    async with serving(short_dir, script) as (upstream, server):
        await upstream.request("GET", "/")
        assert (await turn(upstream)).error()[0] is ErrorCode.STREAM_BROKEN
        assert server.connections == 1


async def test_nothing_is_sent_twice_on_a_new_connection(short_dir: Path) -> None:
    async def script(client: Client) -> None:
        await client.request()

    async with serving(short_dir, script) as (upstream, server):
        code, message = (await turn(upstream)).error()
        assert code is ErrorCode.ENGINE_ERROR
        assert "closed the connection before its answer ended" in message
        assert server.connections == 1


async def test_a_kept_connection_that_ends_late_is_not_replaced(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_pool, "RACE", 0.0)
    async with serving(short_dir, closing) as (upstream, server):
        await upstream.request("GET", "/")
        assert (await turn(upstream)).error()[0] is ErrorCode.ENGINE_ERROR
        assert server.connections == 1


async def test_an_idle_connection_is_not_kept_for_ever(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_pool, "IDLE_KEPT", 0.0)
    async with serving(short_dir, answering(whole(b""))) as (upstream, server):
        await upstream.request("GET", "/")
        await upstream.request("GET", "/")
        assert server.connections == 2


@pytest.mark.parametrize("surplus", [whole(b"more"), b"HTTP/1.1 200", b"x"])
async def test_bytes_that_nobody_asked_for_cost_the_connection(
    short_dir: Path, surplus: bytes
) -> None:
    sent = asyncio.Event()

    async def script(client: Client) -> None:
        await client.request()
        await client.send(whole(b"first") + surplus)
        await client.left()
        sent.set()

    async with serving(short_dir, script, answering(whole(b"right"))) as (upstream, _):
        assert (await upstream.request("GET", "/")).body == b"first"
        await sent.wait()
        assert (await upstream.request("GET", "/")).body == b"right"


async def test_closing_ends_open_streams_with_an_error(short_dir: Path) -> None:
    async def script(client: Client) -> None:
        await client.request()
        await client.send(CHUNKED, chunk(EVENT))
        await client.left()

    async with serving(short_dir, script) as (upstream, _):
        got, late = Turn(), Turn()
        upstream.stream("/", b"{}", got)
        await got.text(1)
        upstream.stream("/", b"{}", late)
        await upstream.close()
        assert got.error()[0] is ErrorCode.STREAM_BROKEN
        assert late.error()[0] is ErrorCode.ENGINE_ERROR


async def test_an_engine_that_never_stops_sending_after_its_end_is_cut_off(
    short_dir: Path,
) -> None:
    gone = asyncio.Event()

    async def script(client: Client) -> None:
        await client.request()
        await client.send(CHUNKED, chunk(EVENT + LAST))
        try:
            while True:
                await client.send(chunk(EVENT * 1000))
        except ConnectionError:
            gone.set()

    async with serving(short_dir, script) as (upstream, _):
        await turn(upstream)
        await gone.wait()
