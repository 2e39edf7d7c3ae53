"""The connection while it stands: hello, reading, writing, echoes. On a real socket, both loops."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hum_workers.thrum.connection import Thrum
from hum_workers.thrum.pacer import Pacer
from tests.thrum.conftest import tone
from tests.thrum.listener import Deaf, Listener, Peer


class Bee:
    """A `Thrum` that runs, with what it reported."""

    def __init__(self, path: Path, *, rate: float = 0, burst: int = 256) -> None:
        self.pacer = Pacer(rate, burst, time.monotonic, "h")
        self.tones: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.states: asyncio.Queue[bool] = asyncio.Queue()
        self.models: list[str] = []
        self.thrum = Thrum(
            socket=lambda: path,
            hello=lambda: {"chi": "hello", "models": list(self.models)},
            on_tone=self.on_tone,
            pacer=self.pacer,
            on_state=self.states.put_nowait,
            backoff=lambda: itertools.repeat(0.0),
        )

    def on_tone(self, tone: dict[str, Any]) -> None:
        if tone["chi"] == "explode":
            raise RuntimeError("a handler failed")
        self.tones.put_nowait(tone)

    async def tone(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            return await self.tones.get()

    async def state(self) -> bool:
        async with asyncio.timeout(5):
            return await self.states.get()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bee]:
        task = asyncio.create_task(self.thrum.run())
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def bee(humd: Listener) -> AsyncIterator[Bee]:
    async with Bee(humd.path).running() as bee:
        yield bee


@pytest.fixture
async def peer(humd: Listener, bee: Bee) -> Peer:
    peer = await humd.peer()
    assert await peer.tone() == {"chi": "hello", "models": []}
    assert await bee.state() is True
    return peer


@pytest.fixture
def deaf(short_dir: Path) -> Iterator[Deaf]:
    humd = Deaf(short_dir / "thrum.sock")
    yield humd
    humd.close()


async def test_hello_is_the_first_tone_and_needs_no_breath(bee: Bee, peer: Peer) -> None:
    assert bee.thrum.connected
    assert bee.thrum.epoch == 1


async def test_rehello_says_the_manifest_of_now_once_for_one_turn_of_the_loop(
    bee: Bee, peer: Peer
) -> None:
    for model in ("a", "b"):
        bee.models.append(model)
        bee.thrum.rehello()
    bee.pacer.outbox("s", lambda: None).tone(tone())
    assert await peer.tone() == {"chi": "hello", "models": ["a", "b"]}
    assert (await peer.tone())["chi"] == "session-ready"


async def test_what_a_turn_says_in_one_turn_of_the_loop_goes_out_merged_and_in_order(
    bee: Bee, peer: Peer
) -> None:
    outbox = bee.pacer.outbox("s", lambda: None)
    outbox.tone(tone())
    outbox.delta("text", 0, "Gr")
    outbox.delta("text", 0, "üße")
    outbox.end(tone("finish"))
    assert (await peer.tone())["chi"] == "session-ready"
    assert (await peer.tone())["delta"] == "Grüße"
    assert (await peer.tone())["ext"] == {"h": {"chars": 5}}


async def test_tones_in_pieces_large_tones_and_nonsense_are_read(bee: Bee, peer: Peer) -> None:
    await peer.raw(b'{"chi":"prompt",')
    await peer.raw(b'"n":1}\nnonsense\n\xff\xff\n')
    assert (await bee.tone())["n"] == 1
    for size in (70_000, 8 * 1024 * 1024):
        await peer.say({"chi": "prompt", "text": "x" * size})
        assert len((await bee.tone())["text"]) == size


async def test_a_line_over_the_limit_is_skipped_and_logged_once(bee: Bee, peer: Peer) -> None:
    piece = b"x" * (8 * 1024 * 1024)
    with capture_logs() as logs:
        for _ in range(9):
            await peer.raw(piece)
        await peer.raw(b'\n{"chi":"prompt","n":1}\n')
        assert (await bee.tone())["n"] == 1
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("worker.line.dropped", "too_long")
    ]


async def test_a_handler_that_raises_is_logged_and_reading_goes_on(bee: Bee, peer: Peer) -> None:
    with capture_logs() as logs:
        await peer.say({"chi": "explode", "sid": "s"}, {"chi": "prompt", "n": 1})
        assert (await bee.tone())["n"] == 1
    assert [(entry["event"], entry["chi"]) for entry in logs] == [("worker.tone.failed", "explode")]


async def test_own_replies_and_echoes_are_not_handed_on(bee: Bee, peer: Peer) -> None:
    replies = "chunk finish error tool-call tool-info session-ready pulse echo".split()
    await peer.say(*({"chi": chi, "sid": "s"} for chi in replies))
    await peer.say({"chi": "error", "callId": "c-1"}, {"chi": "tool-result"}, {"chi": "breath"})
    assert [(await bee.tone())["chi"] for _ in range(3)] == ["error", "tool-result", "breath"]


async def test_drained_waits_for_the_echo_of_the_last_ending(bee: Bee, peer: Peer) -> None:
    assert await bee.thrum.drained(5)
    outbox = bee.pacer.outbox("s", lambda: None)
    outbox.end(tone("finish"))
    drained = asyncio.create_task(bee.thrum.drained(5))
    ending = await peer.tone()
    assert not drained.done()
    await peer.echo(ending)
    assert await drained


async def test_drained_waits_for_tones_that_no_echo_answers(humd: Listener) -> None:
    async with Bee(humd.path, rate=100, burst=2).running() as bee:
        assert await bee.state() is True
        for _ in range(4):
            bee.pacer.outbox("s", lambda: None).tone(tone())
        assert await bee.thrum.drained(5)


async def test_drained_gives_up_at_its_deadline_and_at_once_without_a_connection(
    bee: Bee, peer: Peer, humd: Listener
) -> None:
    bee.pacer.outbox("s", lambda: None).end(tone("finish"))
    await peer.tone()
    assert not await bee.thrum.drained(0.01)
    humd.close()
    assert await bee.state() is False
    assert not await bee.thrum.drained(60)


async def test_drained_wakes_when_the_connection_goes(bee: Bee, peer: Peer, humd: Listener) -> None:
    bee.pacer.outbox("s", lambda: None).end(tone("finish"))
    await peer.tone()
    drained = asyncio.create_task(bee.thrum.drained(60))
    await asyncio.sleep(0)
    humd.close()
    async with asyncio.timeout(5):
        assert not await drained


async def test_text_that_humd_does_not_read_is_merged_and_all_of_it_arrives(deaf: Deaf) -> None:
    """Back-pressure: the socket fills, writing pauses, the rest waits as text."""
    async with Bee(deaf.path).running() as bee:
        await deaf.accept()
        assert await bee.state() is True
        outbox = bee.pacer.outbox("s", lambda: None)
        words = [f"{n:07d} " for n in range(20_000)]
        for word in words:
            outbox.delta("text", 0, word)
            if not bee.pacer.held > 1_000:
                await asyncio.sleep(0)
        assert bee.pacer.held > 1_000
        outbox.end(tone("finish"))
        heard: list[dict[str, Any]] = []
        while not heard or heard[-1]["chi"] != "finish":
            heard += await deaf.take()
    assert "".join(t.get("delta", "") for t in heard) == "".join(words)
    assert len(heard) < len(words) / 2
    assert heard[-1]["ext"]["h"]["chars"] == 8 * len(words)


async def test_a_humd_that_stops_reading_finds_no_more_than_a_burst_when_it_wakes(
    deaf: Deaf,
) -> None:
    """The kernel would hold hundreds of tones, and humd would pass them on all at once."""
    async with Bee(deaf.path, rate=100_000, burst=20).running() as bee:
        await deaf.accept()
        stalled = asyncio.Event()
        look, in_vain = bee.pacer.bucket.all_read, 0

        def looked() -> bool:
            nonlocal in_vain
            read = look()
            in_vain = 0 if read else in_vain + 1
            if in_vain == 5:
                stalled.set()
            return read

        bee.pacer.bucket.all_read = looked
        for n in range(100):
            bee.pacer.outbox(f"s{n}", lambda: None).end(tone("finish"))
        heard: list[dict[str, Any]] = []
        while len(heard) < 101:
            if len(heard) <= 80:
                await asyncio.wait_for(stalled.wait(), 5)
            tones = await deaf.take()
            stalled.clear()
            assert len(tones) <= 20
            heard += tones
    assert [t["chi"] for t in heard] == ["hello", *["finish"] * 100]


async def test_all_read_is_what_the_kernel_says(deaf: Deaf) -> None:
    async with Bee(deaf.path).running() as bee:
        await deaf.accept()
        assert await bee.state() is True
        assert not bee.pacer.bucket.all_read()
        assert [t["chi"] for t in await deaf.take()] == ["hello"]
        assert bee.pacer.bucket.all_read()
        bee.pacer.outbox("s", lambda: None).tone(tone(args="x" * 3_000_000))
        await asyncio.sleep(0)
        while not bee.pacer.bucket.all_read():
            await deaf.take()


async def test_where_the_kernel_does_not_say_all_counts_as_read(
    deaf: Deaf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> bytes:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    async with Bee(deaf.path).running() as bee:
        await deaf.accept()
        assert await bee.state() is True
        assert bee.pacer.bucket.all_read()


async def test_cancelling_run_closes_the_socket(humd: Listener) -> None:
    async with Bee(humd.path).running() as bee:
        peer = await humd.peer()
        await peer.tone()
        assert await bee.state() is True
    assert await peer.at_end()
    assert await bee.state() is False
    assert not bee.thrum.connected
