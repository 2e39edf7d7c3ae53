"""`vllm-worker status`: the table by itself, and beside bees that run, die and hang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hum_workers.figures import status_file
from hum_workers.figures.counts import BeeView
from hum_workers.figures.status import memory, span, table
from hum_workers.figures.status_file import (
    BeeStatus,
    CellStatus,
    DeviceStatus,
    EggStatus,
    LastDeath,
    StatusFile,
)
from hum_workers.process import proc
from tests.liveness import process_end
from tests.rig import WAIT, egg, environment, fake, served, worker

HIVE = "vllm-worker"


def me() -> proc.Stat:
    found = proc.read_stat(os.getpid())
    assert found is not None
    return found


def cell(**facts: Any) -> CellStatus:
    fields: dict[str, Any] = {
        **{"cell": "a-1", "state": "ready", "pid": 71, "engine_pid": 72, "age_seconds": 60.0},
        **{"rss_bytes": 3 * 1024**3, "cpu_ms": 1, "tokens_per_second": 12.4},
    }
    return CellStatus(**fields | facts)


def one_egg(**facts: Any) -> EggStatus:
    fields: dict[str, Any] = {
        **{"egg": "a", "model": "m", "advertised": True, "failure": None, "running": 2},
        **{"waiting": 1, "restarts": 0, "last_death": None, "cells": [cell()]},
    }
    return EggStatus(**fields | facts)


def bee(*eggs: EggStatus, **facts: Any) -> BeeStatus:
    fields: dict[str, Any] = {
        **{"hive": HIVE, "hid": "wbee_0123456789abcdef", "name": None, "pid": os.getpid()},
        **{"start": me().start, "started_at": 900.0, "written_at": 1000.0, "connected": True},
        **{"metrics": None, "eggs": list(eggs)},
    }
    return BeeStatus(**fields | facts)


def test_the_table_has_a_row_for_each_cell() -> None:
    died = LastDeath(cell="a-0", kind="killed", reason="SIGKILL", at=990.0)
    text = table(HIVE, [bee(one_egg(last_death=died), name="big")], now=1001.0)
    head, row = text.splitlines()
    assert head == (
        "BEE  CELL  MODEL  STATE  PID    AGE   MEMORY  RUNNING  WAITING  TOKENS/S  LAST DEATH"
    )
    assert row == (
        "big  a-1   m      ready   71  1m 1s  3.0 GiB        2        1        12  "
        "11s ago, killed: SIGKILL"
    )


def test_an_egg_without_a_cell_is_cold_or_says_why_it_failed() -> None:
    text = table(
        HIVE,
        [bee(one_egg(cells=[]), one_egg(egg="b", cells=[], failure="no weights"))],
        now=1001.0,
    )
    cold, failed = text.splitlines()[1:]
    assert cold.split()[:5] == ["wbee_01234567", "a", "m", "cold", "-"]
    assert failed.split()[3] == "failed"
    assert failed.endswith("no weights")


def test_a_bee_that_does_not_write_any_more_is_shown_as_silent() -> None:
    text = table(HIVE, [bee(one_egg())], now=1042.0)
    assert "ready, silent for 42s" in text


def test_a_cell_that_hatches_shows_where_it_is() -> None:
    hatching = cell(state="hatching", stage="loading weights")
    text = table(HIVE, [bee(one_egg(cells=[hatching]))], now=1001.0)
    assert "  hatching: loading weights  " in text


def test_a_bee_without_humd_is_told_so_below_the_table() -> None:
    bees = [bee(one_egg(), name="lost", connected=False), bee(one_egg(), name="met")]
    lines = table(HIVE, bees, now=1001.0).splitlines()
    assert len(lines) == 4
    assert lines[3] == (f"lost (pid {os.getpid()}) is not connected to humd; it goes on trying")


def test_a_device_that_is_set_aside_is_told_below_the_table() -> None:
    away = DeviceStatus(uuid="GPU-aa", cell="a-1", reason="900 MiB more are in use", since=961.0)
    lines = table(HIVE, [bee(one_egg(), name="big", devices=[away])], now=1001.0).splitlines()
    assert lines[2:] == [
        "big: GPU-aa is set aside for 40s: after the death of a-1 900 MiB more are in use"
    ]


def test_no_bee_is_told_so_and_a_dead_one_too() -> None:
    assert table(HIVE, [], 0) == "no vllm-worker is running"
    dead = bee(one_egg(), start=me().start - 1)
    assert not dead.alive
    assert table(HIVE, [dead], now=1300.0).splitlines() == [
        "no vllm-worker is running",
        f"wbee_01234567 (pid {os.getpid()}) was killed: it last wrote 5m 0s ago",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (59.9, "59s"),
        (60, "1m 0s"),
        (3599, "59m 59s"),
        (3600, "1h 0m"),
        (86399, "23h 59m"),
        (90000, "1d 1h"),
    ],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_memory_is_in_units_of_1024() -> None:
    assert (memory(512 * 1024**2), memory(1.5 * 1024**3)) == ("512 MiB", "1.5 GiB")


def test_files_that_are_no_status_are_left_out(tmp_path: Path) -> None:
    home = status_file.folder(tmp_path, HIVE)
    home.mkdir(parents=True)
    (home / "bee.1.json").write_bytes(msgspec.json.encode(bee(one_egg(), name="z")))
    (home / "bee.2.json").write_bytes(msgspec.json.encode(bee(one_egg(), name="b")))
    (home / "bee.3.json").write_text("{")
    (home / "bee.4.json").write_text("{}")
    (home / "bee.5.json").mkdir()
    (home / "a.12345678.log").write_text("the log of an engine")
    assert [one.name for one in status_file.read_all(tmp_path, HIVE)] == ["b", "z"]
    assert status_file.read_all(tmp_path / "nowhere", HIVE) == []


def view() -> BeeView:
    return BeeView(
        hive=HIVE,
        hid="wbee_0",
        connected=False,
        connections=0,
        tones=0,
        merged=0,
        held_bytes=0,
        parked_calls=0,
        eggs=[],
    )


async def kept(file: StatusFile, path: Path) -> asyncio.Task[None]:
    """Runs `keep` until the file is there."""
    task = asyncio.create_task(file.keep())
    async with asyncio.timeout(WAIT):
        while not path.exists():  # noqa: ASYNC110 - the file is the event
            await asyncio.sleep(0.001)
    return task


async def test_a_file_is_whole_private_to_its_folder_and_goes_with_remove(tmp_path: Path) -> None:
    file = StatusFile(tmp_path, tag="t", name="n", view=view)
    home = status_file.folder(tmp_path, HIVE)
    task = await kept(file, home / "bee.t.json")
    (found,) = status_file.read_all(tmp_path, HIVE)
    assert (found.name, found.pid, found.alive) == ("n", os.getpid(), True)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    task.cancel()
    file.remove()
    await asyncio.wait({task})
    assert list(home.iterdir()) == []


async def test_nothing_is_written_after_remove(tmp_path: Path) -> None:
    file = StatusFile(tmp_path, tag="t", name=None, view=view)
    file.remove()
    task = asyncio.create_task(file.keep())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait({task})
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_can_not_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "hum").write_text("in the way")
    file = StatusFile(tmp_path, tag="t", name=None, view=view)
    task = asyncio.create_task(file.keep())
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    file.remove()
    await asyncio.wait({task})


async def shown(folder: Path, condition: Callable[[Any], Any]) -> Any:
    """The one bee that `status --json` shows, once its first egg is as the condition wants it."""
    async with asyncio.timeout(WAIT):
        while True:
            code, out, err = await worker(folder, "status", "--json")
            assert (code, err) == (0, "")
            bees = json.loads(out)
            if bees and condition(bees[0]["eggs"][0]):
                return bees[0]


async def test_status_shows_what_runs_and_what_died(short_dir: Path) -> None:
    code, out, err = await worker(short_dir, "status")
    assert (code, out, err) == (0, "no vllm-worker is running\n", "")
    path = egg(short_dir, bee='name = "one"')
    async with served(short_dir, path) as (humd, running, asker):
        sid = asker.prompt(text=fake(tokens=9999, rate=50), modelId="echo")
        found = await shown(
            short_dir, lambda egg: any(one["tokens_per_second"] > 20 for one in egg["cells"])
        )
        (spawned,) = running.events("worker.cell.spawned")
        assert found["eggs"][0]["running"] == 1
        assert found["pid"] == running.pid
        _, out, _ = await worker(short_dir, "status")
        row = out.splitlines()[1].split()
        assert row[:5] == ["one", "echo-1", "echo", "ready", str(spawned["pid"])]
        os.kill(int(running.events("worker.cell.ready")[0]["engine_pid"]), signal.SIGKILL)
        await asker.collect(sid, WAIT)
        found = await shown(short_dir, lambda egg: egg["last_death"])
        assert found["eggs"][0]["last_death"]["kind"] == "killed"
        running.process.send_signal(signal.SIGTERM)
        await running.process.wait()
        assert await worker(short_dir, "status", "--json") == (0, "[]\n", "")
        assert await worker(short_dir, "status") == (0, "no vllm-worker is running\n", "")


async def test_a_bee_that_was_killed_leaves_a_line(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, running, asker):
        (spawned,) = running.events("worker.cell.spawned")
        await shown(short_dir, lambda egg: egg["cells"])
        running.process.kill()
        await running.process.wait()
        await process_end(spawned["pid"])
        code, out, _ = await worker(short_dir, "status")
        lines = out.splitlines()
        assert (code, lines[0]) == (0, "no vllm-worker is running")
        assert f"(pid {running.pid}) was killed: it last wrote" in lines[1]


async def test_watch_draws_again_until_it_is_interrupted(short_dir: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hum_workers.vllm_worker", "status", "--watch"),
        env=environment(short_dir),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(WAIT):
        for _ in range(2):
            assert await process.stdout.readline() == b"no vllm-worker is running\n"
        process.send_signal(signal.SIGINT)
        assert await process.stdout.read() == b""
        assert await process.stderr.read() == b""
        assert await process.wait() == 0


async def test_status_takes_no_other_flag(short_dir: Path) -> None:
    code, _, err = await worker(short_dir, "status", "--egg", "x")
    assert code == 2
    assert "unrecognized arguments: --egg x" in err
