"""The connection when humd is not there, goes, or comes back."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hum_workers.thrum.connection import RETRY, RETRY_JITTER, _Link, retries
from tests.thrum.conftest import tone
from tests.thrum.listener import Listener, Peer
from tests.thrum.test_connection import Bee


async def met(humd: Listener, bee: Bee) -> Peer:
    peer = await humd.peer()
    assert (await peer.tone())["chi"] == "hello"
    assert await bee.state() is True
    return peer


def test_the_delays_are_two_seconds_and_some_jitter_for_ever() -> None:
    delays = list(itertools.islice(retries(), 200))
    assert all(RETRY <= delay <= RETRY + RETRY_JITTER for delay in delays)
    assert len(set(delays)) > 100


async def test_after_a_drop_the_bee_says_hello_again(humd: Listener) -> None:
    async with Bee(humd.path).running() as bee:
        (await met(humd, bee)).hang_up()
        assert await bee.state() is False
        await met(humd, bee)
        assert bee.thrum.epoch == 2


async def test_a_humd_that_closes_its_sending_half_has_hung_up(humd: Listener) -> None:
    async with Bee(humd.path).running() as bee:
        peer = await met(humd, bee)
        peer.half_close()
        assert await bee.state() is False
        assert await peer.at_end()
        await met(humd, bee)


async def test_a_half_line_of_the_old_connection_does_not_spoil_the_new(humd: Listener) -> None:
    async with Bee(humd.path).running() as bee:
        peer = await met(humd, bee)
        await peer.raw(b'{"chi":"prom')
        peer.half_close()
        assert await bee.state() is False
        peer = await met(humd, bee)
        await peer.say({"chi": "prompt", "n": 1})
        assert (await bee.tone())["n"] == 1


async def test_the_socket_file_of_a_dead_humd_is_tried_until_one_listens(short_dir: Path) -> None:
    """Section 2: the file stays behind, also after SIGTERM; only the 8th failure is a warning, and
    the first one is said."""
    path = short_dir / "thrum.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    bee = Bee(path)
    tries = 0
    eighth = asyncio.Event()

    def backoff() -> Iterator[float]:
        nonlocal tries
        while True:
            tries += 1
            if tries == 12:
                eighth.set()
            yield 0.0

    bee.thrum._backoff = backoff
    with capture_logs() as logs:
        async with bee.running():
            await asyncio.wait_for(eighth.wait(), 5)
            path.unlink()
            async with Listener(path) as humd:
                await met(humd, bee)
    tried = [entry for entry in logs if entry["event"] == "worker.connecting"]
    assert [entry["log_level"] for entry in tried[:12]] == [
        "info",
        *["debug"] * 6,
        "warning",
        *["debug"] * 4,
    ]
    assert tried[7]["attempt"] == 8
    for entry in (tried[0], tried[7]):
        assert entry["socket"] == str(path)
        assert entry["reason"] == (
            "humd is not there yet: nobody listens at the socket; it is tried again"
        )
    assert "Errno" not in str(tried)


async def test_a_humd_that_goes_is_told_in_words_and_its_absence_then_quietly(
    humd: Listener,
) -> None:
    with capture_logs() as logs:
        async with Bee(humd.path).running() as bee:
            (await met(humd, bee)).hang_up()
            assert await bee.state() is False
            humd.close()
            humd.path.unlink(missing_ok=True)
            await met_again(humd, bee)
    gone, left = [e["reason"] for e in logs if e["event"] == "worker.disconnected"]
    assert gone.endswith("; it is tried again")
    assert left == "the bee leaves"
    tried = [entry for entry in logs if entry["event"] == "worker.connecting"]
    assert {entry["log_level"] for entry in tried} <= {"debug"}


async def met_again(humd: Listener, bee: Bee) -> None:
    """A humd listens at the same path again, and the bee finds it."""
    await humd.listen()
    await met(humd, bee)


async def test_an_ending_without_echo_is_sent_once_more_after_the_next_hello(
    humd: Listener,
) -> None:
    async with Bee(humd.path).running() as bee:
        peer = await met(humd, bee)
        for sid in ("echoed", "lost"):
            bee.pacer.outbox(sid, lambda: None).end(tone("finish", sid=sid))
        echoed, lost = await peer.tone(), await peer.tone()
        await peer.echo(echoed)
        await peer.say({"chi": "prompt"})
        await bee.tone()
        peer.hang_up()
        assert await bee.state() is False
        peer = await met(humd, bee)
        assert await peer.tone() == lost
        peer.hang_up()
        assert await bee.state() is False
        peer = await met(humd, bee)
        bee.pacer.outbox("next", lambda: None).tone(tone())
        assert (await peer.tone())["chi"] == "session-ready"


async def test_what_turns_say_while_humd_is_away_arrives_merged_after_the_hello(
    humd: Listener,
) -> None:
    async with Bee(humd.path).running() as bee:
        peer = await met(humd, bee)
        humd.close()
        peer.hang_up()
        assert await bee.state() is False
        outbox = bee.pacer.outbox("s", lambda: None)
        for text in "abc":
            outbox.delta("text", 0, text)
        outbox.end(tone("finish"))
        bee.thrum.rehello()
        humd.path.unlink(missing_ok=True)
        await humd.listen()
        peer = await met(humd, bee)
        assert (await peer.tone())["delta"] == "abc"
        assert (await peer.tone())["chi"] == "finish"


async def test_what_waits_for_the_bucket_when_the_connection_goes_is_sent_on_the_next(
    short_dir: Path,
) -> None:
    async with Listener(short_dir / "thrum.sock") as humd:
        async with Bee(humd.path, rate=50, burst=2).running() as bee:
            peer = await met(humd, bee)
            outboxes = [bee.pacer.outbox(f"s{n}", lambda: None) for n in range(3)]
            for outbox in outboxes:
                outbox.tone(tone())
            assert (await peer.tone())["chi"] == "session-ready"
            peer.hang_up()
            assert await bee.state() is False
            peer = await met(humd, bee)
            for _ in range(2):
                assert (await peer.tone())["chi"] == "session-ready"


async def test_nothing_is_taken_for_a_connection_that_is_closing(humd: Listener) -> None:
    async with Bee(humd.path).running() as bee:
        await met(humd, bee)
        assert bee.thrum._link is not None
        bee.thrum._link.transport.abort()
        outbox = bee.pacer.outbox("s", lambda: None)
        outbox.delta("text", 0, "a")
        bee.thrum._write()
        peer = await humd.peer()
        assert (await peer.tone())["chi"] == "hello"
        assert (await peer.tone())["delta"] == "a"


async def test_a_connection_that_is_gone_before_its_hello_counts_as_none(humd: Listener) -> None:
    bee = Bee(humd.path)
    link = _Link(bee.thrum, asyncio.get_running_loop())
    link.closed.set()
    bee.thrum._up(link)
    assert (bee.thrum.connected, bee.thrum.epoch) == (False, 0)


async def test_a_humd_that_hangs_up_on_every_bee_is_tried_again(short_dir: Path) -> None:
    path, met_often = short_dir / "thrum.sock", asyncio.Event()
    count = 0

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writer.transport.abort()
        if count == 30:
            met_often.set()

    server = await asyncio.start_unix_server(hang_up, str(path))
    async with Bee(path).running() as bee:
        await asyncio.wait_for(met_often.wait(), 5)
        server.close()
        path.unlink(missing_ok=True)
        async with Listener(path) as humd:
            assert (await (await humd.peer()).tone())["chi"] == "hello"
            assert bee.thrum.connected


async def test_a_state_handler_that_raises_does_not_end_the_connection(humd: Listener) -> None:
    bee = Bee(humd.path)

    def explode(connected: bool) -> None:
        raise RuntimeError("a handler failed")

    bee.thrum._on_state = explode
    with capture_logs() as logs:
        async with bee.running():
            peer = await humd.peer()
            await peer.tone()
            await peer.say({"chi": "prompt"})
            await bee.tone()
    assert "worker.state.failed" in [entry["event"] for entry in logs]


async def test_a_hello_that_fails_is_the_error_of_run(humd: Listener) -> None:
    bee = Bee(humd.path)

    def broken() -> dict[str, object]:
        raise RuntimeError("no manifest")

    bee.thrum._hello = broken
    with pytest.raises(RuntimeError, match="no manifest"):
        await asyncio.wait_for(bee.thrum.run(), 5)
    assert await (await humd.peer()).at_end()
