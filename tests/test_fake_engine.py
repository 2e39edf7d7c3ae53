"""The scripted engine answers as the real one does, and misbehaves as it is told to."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hum_workers.errors import ErrorCode
from hum_workers.frames import Mmm
from hum_workers.tender.prometheus_text import gauges
from hum_workers.tender.upstream import Upstream
from tests.fakes.contract import CONTRACT, Target, ask, gauge
from tests.fakes.running import Running, end, running, start
from tests.upstream.script import Turn, turn

BROKEN = ErrorCode.STREAM_BROKEN
FAILED = ErrorCode.ENGINE_ERROR
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    """One engine for all tests that leave it alive."""
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    engine = start(
        folder,
        enable_prompt_tokens_details=True,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        max_num_seqs=4,
        max_model_len=300_000,
    )
    try:
        asyncio.run(engine.ready())
        yield engine
    finally:
        end(engine)
        shutil.rmtree(folder)


def connect(engine: Running) -> Upstream:
    return Upstream(engine.target.uds, {"Authorization": f"Bearer {engine.target.api_key}"})


@pytest_asyncio.fixture
async def upstream(engine: Running) -> AsyncIterator[Upstream]:
    made = connect(engine)
    yield made
    await made.close()


def body(text: str = "hello", **more: Any) -> bytes:
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = {"model": "scripted", "messages": [{"role": "user", "content": text}]}
    return json.dumps({**request, "stream": True, "stream_options": options, **more}).encode()


def fake(**directives: Any) -> bytes:
    return body(json.dumps({"fake": directives}))


def words(count: int) -> str:
    return " ".join(f"w{n}" for n in range(count))


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
async def test_it_keeps_the_contract_of_the_real_one(
    engine: Running, promise: Callable[[Target], Awaitable[None]]
) -> None:
    await promise(engine.target)


@pytest.mark.parametrize("more", [{}, {"burst": 7}, {"rate": 20_000}, {"comments": True}])
async def test_an_answer_is_complete_and_in_order(upstream: Upstream, more: Any) -> None:
    got = await turn(upstream, fake(tokens=2000, cached=3, **more))
    assert got.so_far() == words(2000)
    assert got.events[-1][1]["reason"] == "stop"
    assert got.events[-1][1]["usage"]["output"] == 2000
    assert got.events[-1][1]["usage"]["cached"] == 3


async def test_without_directives_it_counts_to_max_tokens(upstream: Upstream) -> None:
    got = await turn(upstream, body(max_tokens=5))
    assert got.so_far() == words(5)
    assert got.events[-1][1]["reason"] == "length"


async def test_reasoning_text_and_calls_come_in_order(upstream: Upstream) -> None:
    calls = [{"name": "look", "arguments": {"where": "here ☃"}}, {"name": "go"}]
    got = await turn(upstream, fake(text=["I ", "see"], reasoning=2, tool_calls=calls))
    joined = [data for kind, data in got.events if kind is Mmm.REASONING]
    assert "".join(joined) == "r0 r1 "
    assert got.so_far() == "I see"
    pieces = [data for kind, data in got.events if kind is Mmm.TOOL]
    assert [piece["name"] for piece in pieces if piece["name"]] == ["look", "go"]
    told = "".join(piece["arguments"] for piece in pieces if piece["index"] == 0)
    assert json.loads(told) == {"where": "here ☃"}
    assert got.events[-1][1]["reason"] == "tool_calls"


async def test_it_echoes_the_request(upstream: Upstream) -> None:
    got = await turn(upstream, body('{"fake": {"echo": true}}', top_k=7, seed=3))
    assert json.loads(got.so_far())["top_k"] == 7


@pytest.mark.parametrize(
    ("directives", "text"),
    [
        ({"split_utf8": True, "tokens": 3}, "é日本😀0 é日本😀1 é日本😀2 "),
        ({"surrogates": True}, "a 😀 b"),
        ({"escaped": True, "text": ["é", "😀"]}, "é😀"),
        ({"crlf": True, "tokens": 3}, words(3)),
        ({"plain": True, "tokens": 300}, words(300)),
        ({"text": [""]}, ""),
    ],
)
async def test_text_survives_every_way_of_sending_it(
    upstream: Upstream, directives: dict[str, Any], text: str
) -> None:
    got = await turn(upstream, fake(**directives))
    assert got.so_far() == text
    assert got.events[-1][0] is Mmm.FINISH


async def test_events_of_a_megabyte_arrive_whole(upstream: Upstream) -> None:
    got = await turn(upstream, fake(event_bytes=1 << 20, tokens=3))
    assert len(got.so_far()) == 3 << 20


@pytest.mark.parametrize(
    ("directives", "code"),
    [
        ({"error": "before"}, FAILED),
        ({"error": 503}, ErrorCode.NO_CAPACITY),
        ({"error": 400}, ErrorCode.BAD_PROMPT),
        ({"error": "in_stream"}, FAILED),
        ({"end": "no_finish"}, BROKEN),
        ({"end": "eof"}, BROKEN),
        ({"end": "cut"}, BROKEN),
        ({"end": "abort"}, BROKEN),
        ({"garbage": True}, FAILED),
        ({"garbage": "type"}, FAILED),
        ({"garbage": "binary"}, FAILED),
        ({"garbage": "chunk"}, FAILED),
        ({"garbage": "http"}, FAILED),
        ({"garbage": "head"}, FAILED),
    ],
)
async def test_a_failure_is_one_error_with_the_text_before_it(
    upstream: Upstream, directives: dict[str, Any], code: ErrorCode
) -> None:
    got = await turn(upstream, fake(tokens=10, **directives))
    assert got.error()[0] is code
    assert got.so_far() in ("", words(5), words(10))
    again = await turn(upstream, fake(tokens=3))
    assert again.so_far() == words(3)


@pytest.mark.parametrize("ends", ["no_done", "no_usage"])
async def test_a_finish_reason_is_enough(upstream: Upstream, ends: str) -> None:
    got = await turn(upstream, fake(tokens=3, end=ends))
    assert got.events[-1][0] is Mmm.FINISH
    assert got.events[-1][1]["usage"]["output"] == 3


@pytest.mark.parametrize("hang", ["before", "head", "mid_stream"])
async def test_a_hanging_sequence_is_freed_by_its_client(
    engine: Running, upstream: Upstream, hang: str
) -> None:
    got = Turn()
    stream = upstream.stream("/v1/chat/completions", fake(tokens=10, hang=hang), got)
    async with asyncio.timeout(5):
        while await gauge(engine.target, RUNNING) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stream.close()
        while await gauge(engine.target, RUNNING) != 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert all(kind is Mmm.TEXT for kind, _ in got.events)


async def test_what_is_over_max_num_seqs_waits_its_turn(upstream: Upstream) -> None:
    turns = [Turn() for _ in range(6)]
    streams = [
        upstream.stream("/v1/chat/completions", fake(tokens=20, hang="mid_stream"), got)
        for got in turns[:4]
    ]
    await asyncio.gather(*(got.text(len(words(10))) for got in turns[:4]))
    streams += [upstream.stream("/v1/chat/completions", fake(tokens=20), got) for got in turns[4:]]
    async with asyncio.timeout(5):
        counts: dict[str, float] = {}
        while counts.get(WAITING) != 2:
            answer = await upstream.request("GET", "/metrics")
            counts = gauges(answer.body, [RUNNING, WAITING])
        assert counts[RUNNING] == 4
        for stream in streams[:2]:
            stream.close()
        await asyncio.gather(*(got.ended.wait() for got in turns[4:]))
    assert turns[5].so_far() == words(20)
    for stream in streams:
        stream.close()


async def test_a_paused_stream_loses_nothing(upstream: Upstream) -> None:
    got = Turn()
    stream = upstream.stream("/v1/chat/completions", fake(tokens=20_000), got)
    await got.text(10)
    for _ in range(20):
        stream.pause()
        await asyncio.sleep(0)
        stream.resume()
        got.grown.clear()
        await got.grown.wait()
    await got.ended.wait()
    assert got.so_far() == words(20_000)


async def test_tools_need_their_parser(short_dir: Path) -> None:
    async with running(short_dir) as engine:
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        request = {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}
        answer = await ask(engine.target, "POST", "/v1/chat/completions", request)
        assert answer.status == 400
        assert "--enable-auto-tool-choice" in answer.json()["error"]["message"]


async def test_a_death_amid_a_stream_breaks_it(short_dir: Path) -> None:
    async with running(short_dir) as engine:
        upstream = connect(engine)
        got = await turn(upstream, fake(tokens=10, rate=1000, die="mid_stream"))
        assert got.so_far() == words(5)
        assert got.error()[0] is BROKEN
        assert await engine.gone() == -9
        await upstream.close()


async def test_a_queue_limit_refuses_with_503(short_dir: Path) -> None:
    async with running(short_dir, max_num_queued_reqs=1) as engine:
        upstream = connect(engine)
        first = Turn()
        stream = upstream.stream("/v1/chat/completions", fake(tokens=10, hang="mid_stream"), first)
        await first.text(1)
        assert (await turn(upstream, body())).error()[0] is ErrorCode.NO_CAPACITY
        stream.close()
        await upstream.close()
