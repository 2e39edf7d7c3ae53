"""The engine's HTTP side against a server that answers with given bytes, to the letter."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hum_workers.errors import ErrorCode
from hum_workers.frames import Mmm
from hum_workers.tender import upstream as module
from hum_workers.tender.upstream import Response, Stream, Upstream
from tests.upstream.script import (
    CHUNKED,
    EVENT,
    HEAD,
    LAST,
    Client,
    Turn,
    answering,
    chunk,
    serving,
    turn,
    whole,
)


async def test_a_request_carries_headers_and_body_and_gets_the_whole_answer(
    short_dir: Path,
) -> None:
    seen: list[bytes] = []

    async def script(client: Client) -> None:
        seen.append(await client.request())
        await client.send(whole(b'{"a":', b"201 Created")[:-5], b'{"a":')

    async with serving(short_dir, script) as (upstream, _):
        assert await upstream.request("POST", "/path", b"body") == Response(201, b'{"a":')
    assert seen[0].startswith(b"POST /path HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in seen[0]
    assert seen[0].endswith(b"Content-Length: 4\r\n\r\nbody")


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + chunk(EVENT) + chunk(LAST) + b"0\r\n\r\n",
        CHUNKED + chunk((EVENT + LAST)[:30]) + chunk((EVENT + LAST)[30:]) + b"0\r\n\r\n",
        HEAD + b"content-length: %d\r\n\r\n" % len(EVENT + LAST) + EVENT + LAST,
        HEAD + b"connection: close\r\n\r\n" + EVENT + LAST,
        b"HTTP/1.0 200 OK\r\n\r\n" + EVENT + LAST,
        b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + chunk(EVENT + LAST) + b"0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 1 << 20])
async def test_a_stream_is_read_in_every_framing_of_http(
    short_dir: Path, answer: bytes, size: int
) -> None:
    parts = [answer[at : at + size] for at in range(0, len(answer), size)]
    async with serving(short_dir, answering(*parts, then="close")) as (upstream, _):
        for _ in range(2):
            got = await turn(upstream)
            assert got.events == [
                (Mmm.TEXT, "a"),
                (Mmm.FINISH, {"reason": "stop", "usage": None}),
            ]


async def test_text_of_many_chunks_in_one_read_is_one_event(short_dir: Path) -> None:
    answer = CHUNKED + chunk(EVENT) * 500 + chunk(LAST) + b"0\r\n\r\n"
    async with serving(short_dir, answering(answer)) as (upstream, _):
        got = await turn(upstream)
        assert got.so_far() == "a" * 500
        assert len(got.events) < 20


async def test_a_refusal_is_one_error_and_keeps_the_connection(short_dir: Path) -> None:
    refusal = b'{"error":{"message":"too long","code":400}}'
    async with serving(short_dir, answering(whole(refusal, b"400 Bad Request"))) as (up, server):
        for _ in range(2):
            assert (await turn(up)).error() == (ErrorCode.BAD_PROMPT, "too long")


async def test_what_an_engine_calls_otherwise_is_told_in_the_words_of_an_egg(
    short_dir: Path,
) -> None:
    refusal = b'{"error":{"message":"too long, try increasing it","code":400}}'
    script = answering(whole(refusal, b"400 Bad Request"))
    words = [["try increasing it", "raise ctx"]]
    async with serving(short_dir, script, reworded=words) as (upstream, _):
        assert (await turn(upstream)).error() == (ErrorCode.BAD_PROMPT, "too long, raise ctx")


async def test_an_answer_that_is_no_event_stream_is_an_error(short_dir: Path) -> None:
    answer = whole(b"{}", more=b"content-type: application/json\r\n")
    async with serving(short_dir, answering(answer)) as (upstream, _):
        code, message = (await turn(upstream)).error()
        assert code is ErrorCode.ENGINE_ERROR
        assert "other than an event stream" in message


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000]
)
async def test_an_answer_that_is_no_http_is_an_error(short_dir: Path, answer: bytes) -> None:
    async with serving(short_dir, answering(answer)) as (upstream, _):
        assert (await turn(upstream)).error()[0] is ErrorCode.ENGINE_ERROR


@pytest.mark.parametrize("ends", [b"", chunk(EVENT)[:20], b"0\r\n\r\n"])
async def test_an_end_without_a_finish_is_a_broken_stream(short_dir: Path, ends: bytes) -> None:
    script = answering(CHUNKED, chunk(EVENT), ends, then="close")
    async with serving(short_dir, script) as (upstream, _):
        got = await turn(upstream)
        assert got.so_far() == "a"
        assert got.error()[0] is ErrorCode.STREAM_BROKEN


async def test_an_end_after_the_finish_reason_is_a_finish(short_dir: Path) -> None:
    script = answering(CHUNKED, chunk(EVENT + LAST.removesuffix(b"data: [DONE]\n\n")), then="close")
    async with serving(short_dir, script) as (upstream, _):
        assert (await turn(upstream)).events[-1][0] is Mmm.FINISH


async def test_without_an_engine_a_stream_is_one_error(short_dir: Path) -> None:
    upstream = Upstream(short_dir / "none.sock")
    code, message = (await turn(upstream)).error()
    assert code is ErrorCode.ENGINE_ERROR
    assert "none.sock: No such file or directory" in message
    with pytest.raises(FileNotFoundError):
        await upstream.request("GET", "/health")
    await upstream.close()


async def test_nothing_reaches_the_sink_within_the_call(short_dir: Path) -> None:
    upstream = Upstream(short_dir / "none.sock")
    got = Turn()
    stream = upstream.stream("/", b"", got)
    assert got.events == []
    await got.ended.wait()
    assert stream.done
    await upstream.close()


async def test_a_request_ends_at_its_deadline(short_dir: Path) -> None:
    gone = asyncio.Event()

    async def script(client: Client) -> None:
        await client.request()
        await client.left()
        gone.set()

    async with serving(short_dir, script) as (upstream, _):
        with pytest.raises(TimeoutError):
            await upstream.request("GET", "/health", timeout=0.05)
        await gone.wait()


async def test_an_answer_over_the_limit_is_refused(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BODY", 1000)
    async with serving(short_dir, answering(whole(b"x" * 2000))) as (upstream, _):
        with pytest.raises(ConnectionError, match="over 1000 bytes"):
            await upstream.request("GET", "/metrics")
    async with serving(short_dir, answering(whole(b"x" * 2000, b"500 No"))) as (upstream, _):
        code, message = (await turn(upstream)).error()
        assert code is ErrorCode.ENGINE_ERROR
        assert message.startswith("the engine answered 500: xxx")


async def test_closing_a_stream_closes_its_connection(short_dir: Path) -> None:
    gone = asyncio.Event()

    async def script(client: Client) -> None:
        await client.request()
        await client.send(CHUNKED, chunk(EVENT))
        await client.left()
        gone.set()

    async with serving(short_dir, script) as (upstream, _):
        got = Turn()
        stream = upstream.stream("/", b"{}", got)
        await got.text(1)
        stream.close()
        assert stream.done
        await gone.wait()
        assert got.events == [(Mmm.TEXT, "a")]


async def test_a_sink_that_closes_its_stream_gets_nothing_more(short_dir: Path) -> None:
    read = chunk(EVENT + b'data: {"choices":[{"delta":{"reasoning":"r"}}]}\n\n' + EVENT)
    streams: list[Stream] = []
    events: list[Any] = []

    def sink(kind: Mmm, data: Any) -> None:
        events.append(data)
        streams[0].close()

    scripts = answering(CHUNKED, read + chunk(LAST)), answering(whole(b""))
    async with serving(short_dir, *scripts) as (upstream, _):
        streams.append(upstream.stream("/", b"{}", sink))
        while not events:
            await upstream.request("GET", "/")
        assert events == ["a"]


async def test_a_paused_stream_holds_the_engine_back(short_dir: Path) -> None:
    paused, full = asyncio.Event(), asyncio.Event()
    blocks = 0

    async def script(client: Client) -> None:
        nonlocal blocks
        await client.request()
        await client.send(CHUNKED, chunk(EVENT))
        await paused.wait()
        while not client.writer.transport.get_write_buffer_size():
            client.writer.write(chunk(EVENT * 1000))
            blocks += 1
            await asyncio.sleep(0)
        full.set()
        await client.send(chunk(LAST), b"0\r\n\r\n")

    async with serving(short_dir, script) as (upstream, _):
        got = Turn()
        stream = upstream.stream("/", b"{}", got)
        await got.text(1)
        stream.pause()
        paused.set()
        await full.wait()
        assert got.so_far() == "a"
        stream.resume()
        await got.ended.wait()
        assert len(got.so_far()) == 1000 * blocks + 1


async def test_a_large_body_arrives_whole(short_dir: Path) -> None:
    body = json.dumps({"text": "x" * (16 << 20)}).encode()
    sizes: list[int] = []

    async def script(client: Client) -> None:
        sizes.append(len((await client.request()).partition(b"\r\n\r\n")[2]))
        await client.send(CHUNKED, chunk(LAST), b"0\r\n\r\n")

    async with serving(short_dir, script) as (upstream, _):
        await turn(upstream, body)
    assert sizes == [len(body)]


def test_a_header_with_a_line_break_is_refused(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path, {"Authorization": "Bearer a\r\nX: y"})
    with pytest.raises(ValueError, match="line break"):
        upstream.stream("/", b"", Turn())
