"""What the fake humd does beside routing: queues, files, misbehaviour on demand."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from hum_workers.errors import UsageError
from hum_workers.fake_humd import Asker, FakeHumd
from tests.transcripts import DEADLINE, Tone, Wire


def hello(hive: str = "w", models: tuple[str, ...] = ("m1",), **fields: Any) -> Tone:
    return {"chi": "hello", "bee": ["worker"], "hive": hive, "models": list(models), **fields}


def delta(sid: str, text: str) -> Tone:
    return {"chi": "chunk", "sid": sid, "chunkType": "text_delta", "blockIdx": 0, "delta": text}


class Clients:
    """Opens clients of a humd and closes them all at the end."""

    def __init__(self, humd: FakeHumd) -> None:
        self._humd = humd
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def wire(self) -> Wire:
        wire = await Wire.open(self._humd.socket)
        self._stack.push_async_callback(wire.close)
        return wire

    async def asker(self) -> Asker:
        return await self._stack.enter_async_context(await Asker.connect(self._humd.socket))

    async def worker(self, hive: str = "w", models: tuple[str, ...] = ("m1",)) -> Wire:
        """A worker that has said hello and heard both breaths."""
        wire = await self.wire()
        await wire.send(hello(hive, models))
        assert [(await wire.next())["chi"] for _ in range(2)] == ["breath", "breath"]
        return wire


@pytest.fixture
async def humd(short_dir: Path, tmp_path: Path) -> AsyncIterator[FakeHumd]:
    async with await FakeHumd.start(short_dir / "thrum.sock", tmp_path) as humd:
        yield humd


@pytest.fixture
async def clients(humd: FakeHumd) -> AsyncIterator[Clients]:
    async with Clients(humd) as clients:
        yield clients


async def test_a_burst_of_a_thousand_tones_loses_nothing(humd: FakeHumd, clients: Clients) -> None:
    """Provenance: measured at humd."""
    wire = await clients.worker()
    asker = await clients.asker()
    sid = asker.prompt(text="x", modelId="m1")
    await wire.next()
    await wire.send(*(delta(sid, "x") for _ in range(1000)))
    await wire.send({"chi": "finish", "sid": sid, "ext": {"w": {"chars": 1000}}})
    answer = await asker.collect(sid, DEADLINE)
    assert (answer.complete, len(answer.text), humd.dropped) == (True, 1000, 0)


async def test_of_a_burst_of_fifteen_hundred_tones_a_third_is_lost(
    humd: FakeHumd, clients: Clients
) -> None:
    """Provenance: measured at humd; its queue holds 1,024."""
    wire = await clients.worker()
    asker = await clients.asker()
    sid = asker.prompt(text="x", modelId="m1")
    await wire.next()
    await wire.send(*(delta(sid, "x") for _ in range(1500)))
    await wire.settle()
    await wire.send({"chi": "finish", "sid": sid, "ext": {"w": {"chars": 1500}}})
    answer = await asker.collect(sid, DEADLINE)
    assert (answer.complete, len(answer.text), humd.dropped) == (False, 1024, 476)


async def test_to_an_asker_that_does_not_read_the_kernel_takes_little_more_than_the_queue(
    humd: FakeHumd, clients: Clients
) -> None:
    """Provenance: humd writes tone by tone, of which the kernel holds 170 to 280."""
    wire = await clients.worker()
    asker = await clients.asker()
    sid = asker.prompt(text="x", modelId="m1")
    await wire.next()
    asker.pause_reading()
    for _ in range(6):
        await wire.send(*(delta(sid, "x" * 60) for _ in range(500)))
        await wire.settle()
    lost = humd.dropped
    assert 100 < 3000 - lost - 1024 < 400


async def test_the_queue_of_one_client_does_not_hold_up_another(
    short_dir: Path, tmp_path: Path
) -> None:
    async with await FakeHumd.start(short_dir / "thrum.sock", tmp_path, queue=4) as humd:
        async with Clients(humd) as clients:
            wire = await clients.worker()
            slow, quick = await clients.asker(), await clients.asker()
            sids = []
            for asker in (slow, quick):
                sids.append(asker.prompt(text="x", modelId="m1"))
                assert (await wire.next())["sid"] == sids[-1]
            slow.pause_reading()
            for _ in range(200):
                await wire.send(delta(sids[0], "x" * 4096))
                await wire.settle()
            await wire.send({"chi": "finish", "sid": sids[1]})
            assert (await quick.collect(sids[1], DEADLINE)).complete
            assert humd.dropped > 100


async def test_a_tone_of_eight_mebibytes_passes_both_ways(humd: FakeHumd, clients: Clients) -> None:
    """Provenance: tried at humd."""
    wire = await clients.worker()
    asker = await clients.asker()
    text = "ü" * (4 * 1024 * 1024)
    sid = asker.prompt(text=text, modelId="m1")
    assert (await wire.next())["text"] == text
    await wire.send(delta(sid, text), {"chi": "finish", "sid": sid})
    assert (await asker.collect(sid, DEADLINE)).text == text


async def test_what_stands_behind_the_last_newline_counts_when_the_client_ends(
    humd: FakeHumd, clients: Clients
) -> None:
    """Provenance: the line reader of humd's runtime yields it."""
    heard: list[Tone] = []
    humd.tap = lambda _, tone: heard.append(tone)
    wire = await clients.wire()
    await wire.send_raw(b'{"chi":"log","n":1}\n{"chi":"log","n":2}')
    await wire.close()
    await humd.until(lambda: humd.clients == [] and len(heard) == 2)


async def test_a_restart_forgets_everything_but_the_files(
    humd: FakeHumd, clients: Clients, tmp_path: Path
) -> None:
    """Provenance: seen at humd: bees.json shows the old bees until the next hello."""
    bees = tmp_path / "hum" / "bees.json"
    wire = await clients.worker("before")
    assert humd.serves("m1")
    await humd.restart()
    await wire.ended()
    assert humd.manifests == []
    assert [bee["name"] for bee in json.loads(bees.read_bytes()).values()] == ["before"]
    again = await clients.worker("after")
    assert [bee["name"] for bee in json.loads(bees.read_bytes()).values()] == ["after"]
    await again.close()
    await humd.until(lambda: not humd.serves("m1"))
    assert json.loads(bees.read_bytes()) == {}


async def test_a_killed_humd_leaves_a_socket_that_refuses(humd: FakeHumd, clients: Clients) -> None:
    """Provenance: seen at humd, also after SIGTERM."""
    humd.kill()
    assert humd.socket.is_socket()
    with pytest.raises(ConnectionRefusedError):
        await clients.wire()
    humd.listen()
    await clients.worker()


async def test_a_second_humd_does_not_take_the_socket_of_one_that_lives(
    humd: FakeHumd, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="HUM_THRUM_SOCK"):
        await FakeHumd.start(humd.socket, tmp_path / "other")
    with pytest.raises(UsageError, match="XDG_STATE_HOME"):
        await FakeHumd.start(humd.socket.with_name("other.sock"), tmp_path)


async def test_the_rendezvous_file_names_socket_and_process(humd: FakeHumd, tmp_path: Path) -> None:
    runtime = json.loads((tmp_path / "hum" / "runtime.json").read_bytes())
    assert (runtime["socket"], runtime["pid"]) == (str(humd.socket), os.getpid())


async def test_a_stalled_humd_reads_nothing_and_catches_up(
    humd: FakeHumd, clients: Clients
) -> None:
    heard: list[Tone] = []
    wire = await clients.wire()
    await wire.settle()
    humd.tap = lambda _, tone: heard.append(tone)
    humd.stall()
    await wire.send({"chi": "perf-mark", "rid": "late"})
    newcomer = await clients.wire()
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard == []
    humd.resume()
    assert (await newcomer.next())["chi"] == "breath"
    assert [(await wire.next())["chi"] for _ in range(2)] == ["breath", "echo"]


async def test_a_half_closed_client_hears_its_end_and_is_still_heard(
    humd: FakeHumd, clients: Clients
) -> None:
    wire = await clients.worker("half")
    asker = await clients.asker()
    sid = asker.prompt(text="x", modelId="m1")
    await wire.next()
    assert humd.half_close("half") == 1
    with pytest.raises(EOFError):
        await wire.next()
    await wire.send(delta(sid, "still here"), {"chi": "finish", "sid": sid})
    assert (await asker.collect(sid, DEADLINE)).text == "still here"


async def test_a_cut_line_comes_in_two_pieces_inside_a_character(humd: FakeHumd) -> None:
    reader, writer = await asyncio.open_unix_connection(str(humd.socket))
    await reader.readline()
    assert humd.cut_lines() == 1
    writer.write('{"chi":"log","rid":"no"}\n{"chi":"perf-mark","rid":"ü"}\n'.encode())
    first = await reader.read(4096)
    assert first.endswith(b"\xc3")
    assert json.loads(first + await reader.readline())["rid"] == "ü"
    writer.close()
    await writer.wait_closed()


async def test_a_dropped_client_is_closed_and_others_are_not(
    humd: FakeHumd, clients: Clients
) -> None:
    one, other = await clients.worker("one"), await clients.worker("other", ("m2",))
    assert humd.drop("one") == 1
    await one.ended()
    await other.settle()
    assert humd.clients == ["other"]


async def test_an_injected_line_arrives_as_it_is(humd: FakeHumd) -> None:
    reader, writer = await asyncio.open_unix_connection(str(humd.socket))
    await reader.readline()
    humd.inject("", b"\xff not a tone\n")
    assert await reader.readline() == b"\xff not a tone\n"
    writer.close()
    await writer.wait_closed()


async def test_of_two_workers_with_a_model_one_gets_every_prompt(
    humd: FakeHumd, clients: Clients
) -> None:
    """Provenance: tried at humd: any one, always the same, no balancing."""
    pair = [await clients.worker(hive) for hive in ("a", "b")]
    asker = await clients.asker()
    for _ in range(5):
        asker.prompt(text="x", modelId="m1")
    asker.send({"chi": "perf-mark", "rid": "r"})
    await asker.echoed("r")
    heard = [len(await wire.unread()) for wire in pair]
    assert sorted(heard) == [0, 5]


async def test_unreadable_lines_are_counted_by_reason(humd: FakeHumd, clients: Clients) -> None:
    wire = await clients.wire()
    await wire.send_raw(b'{"chi":\n[]\n{"chi":""}\n{"chi":"log","x":' + b"[" * 200 + b"]" * 200)
    await wire.send_raw(b"}\n")
    await wire.settle()
    assert humd.bad_lines == {"not JSON": 1, "not an object": 1, "no chi": 1, "too deep": 1}
