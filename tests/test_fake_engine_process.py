"""The scripted engine as a process: its start, its output, its stop, what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hum_workers.tender.upstream import Upstream
from hum_workers.vllm_worker import failure
from tests.fakes.contract import ask
from tests.fakes.running import COMMAND, Running, end, environment, running, start
from tests.test_fake_engine import connect, fake, words
from tests.upstream.script import Turn

MARKS = [
    "non-default args",
    "Resolved architecture",
    "Initializing a V1 LLM engine",
    "Starting to load model",
    "Loading weights took",
    "KV cache size",
    "init engine",
    "Starting vLLM server on",
    "Application startup complete.",
]


def vllm(*args: str, **wishes: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        env=environment(wishes),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@asynccontextmanager
async def starting(folder: Path, wishes: Any = None, **config: Any) -> AsyncIterator[Running]:
    engine = start(folder, wishes, **config)
    try:
        yield engine
    finally:
        end(engine)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def below(folder: Path) -> Iterator[int]:
    """Every live process that was started with this folder in its environment or arguments."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in text:
            yield int(entry.name)


def test_an_unknown_flag_is_a_usage_error() -> None:
    done = vllm("serve", "--model", "/m", "--bogus", "3")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "-c: error: unrecognized arguments: --bogus 3"
    long = vllm("serve", "/m", "--bogus", long_usage=True)
    assert len(long.stderr.splitlines()) > 290


def test_a_bad_value_is_a_usage_error() -> None:
    done = vllm("serve", "/m", "--dtype", "bogus")
    assert (done.returncode, "argument --dtype: invalid choice" in done.stderr) == (2, True)


def test_help_names_every_flag_of_the_real_one() -> None:
    text = vllm("serve", "--help=all").stdout
    flags = set(re.findall(r"^ +(--[a-z][a-z0-9-]+)", text, re.MULTILINE))
    assert {"--uds", "--max-model-len", "--enable-prompt-tokens-details", "--seed"} <= flags
    assert len(flags) > 300
    assert "--uds" not in vllm("serve", "--help").stdout
    assert "--max-model-len" in vllm("serve", "--help=max_model_len").stdout


@pytest.mark.parametrize("name", ["cell.yaml", "cell.conf"])
def test_a_config_that_cannot_be_read_ends_it(tmp_path: Path, name: str) -> None:
    done = vllm("serve", "--config", str(tmp_path / name))
    assert done.returncode == 1
    assert "Error" in done.stderr.splitlines()[-1]


async def test_it_prints_the_marks_of_a_start_in_order(short_dir: Path) -> None:
    async with running(short_dir) as engine:
        text = engine.text()
        places = [text.find(mark) for mark in MARKS]
        assert -1 not in places
        assert places == sorted(places)
        assert f"(APIServer pid={engine.process.pid}) INFO" in text
        assert "secret" not in text


async def test_the_socket_is_bound_and_refuses_while_it_loads(short_dir: Path) -> None:
    async with starting(short_dir, {"hang_at": "load"}) as engine:
        await until(engine.target.uds.exists)
        upstream = Upstream(engine.target.uds)
        with pytest.raises(ConnectionRefusedError):
            await upstream.request("GET", "/health")


async def test_a_stale_socket_ends_the_start(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(short_dir / "engine.sock"))
    async with starting(short_dir) as engine:
        assert await engine.gone() == 1
        assert "OSError: [Errno 98] Address already in use" in engine.text()


async def test_it_leaves_at_the_stage_and_with_the_line_it_is_told(short_dir: Path) -> None:
    leave = {"stage": "kv", "code": 7, "line": "the last words"}
    async with starting(short_dir, {"exit_at": leave}) as engine:
        assert await engine.gone() == 7
        assert engine.text().splitlines()[-1] == "the last words"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing_repo", "Repo id must be in the form"),
        ("bad_config", "User-specified max_model_len (99999) is greater than"),
        ("truncated_weights", "incomplete metadata, file not fully covered"),
        ("kv_too_big", "larger than the available KV cache memory"),
        ("worker_killed", "died without a word"),
    ],
)
async def test_its_failures_read_like_those_of_the_real_one(
    short_dir: Path, name: str, words: str
) -> None:
    async with starting(short_dir, {"failure": name}) as engine:
        assert await engine.gone() == 1
        assert words in failure.reason(engine.text().splitlines())


async def test_output_may_flood_and_have_a_long_line(short_dir: Path) -> None:
    async with running(short_dir, {"flood": 300_000, "long_line": 2_000_000}) as engine:
        lines = engine.text().splitlines()
        assert max(map(len, lines)) == 2_000_000
        assert sum("flood" in line for line in lines) > 290


async def test_a_slow_start_shows_progress(short_dir: Path) -> None:
    async with running(short_dir, {"ready_after": 0.2}) as engine:
        assert engine.text().count("% Completed") == 10


async def test_sigterm_ends_an_idle_engine_with_0(short_dir: Path) -> None:
    async with running(short_dir) as engine:
        upstream = connect(engine)
        await upstream.request("GET", "/health")
        engine.process.terminate()
        assert await engine.gone() == 0
        assert engine.target.uds.exists()  # as the real one, it leaves its socket behind
        await upstream.close()


async def test_sigterm_with_an_open_stream_waits_for_the_client(short_dir: Path) -> None:
    async with running(short_dir) as engine:
        upstream, got = connect(engine), Turn()
        stream = upstream.stream("/v1/chat/completions", fake(tokens=1000, rate=100), got)
        await got.text(1)
        engine.process.terminate()
        await until(lambda: "Shutting down" in engine.text())
        before = len(got.events)
        engine.process.terminate()
        await asyncio.sleep(0.1)
        assert engine.process.poll() is None
        assert len(got.events) - before < 3
        stream.close()
        assert await engine.gone() == 0
        await upstream.close()


async def test_a_drain_lets_streams_finish_and_refuses_new_ones(short_dir: Path) -> None:
    async with running(short_dir, shutdown_timeout=10) as engine:
        upstream, got = connect(engine), Turn()
        upstream.stream("/v1/chat/completions", fake(tokens=50, rate=100), got)
        await upstream.request("GET", "/health")
        await got.text(1)
        engine.process.terminate()
        await got.ended.wait()
        assert got.so_far() == words(50)
        assert await engine.gone() == 0
        await upstream.close()


async def test_the_first_sigterm_is_lost_while_it_loads(short_dir: Path) -> None:
    async with starting(short_dir, {"hang_at": "load"}) as engine:
        await until(lambda: "Initializing" in engine.text())
        engine.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            engine.process.wait(0.1)
        engine.process.terminate()
        assert await engine.gone() == 1


async def test_it_may_ignore_sigterm(short_dir: Path) -> None:
    async with running(short_dir, {"ignore_sigterm": True}) as engine:
        engine.process.terminate()
        engine.process.send_signal(signal.SIGINT)
        assert (await ask(engine.target, "GET", "/health")).status == 200


async def test_its_children_outlive_a_sigkill_of_the_server(short_dir: Path) -> None:
    async with running(short_dir, {"children": 3}) as engine:
        group = engine.process.pid
        await until(lambda: workers(group) == 3)
        engine.process.kill()
        await engine.gone()
        assert sorted(names(group)) == ["VLLM::EngineCor", "VLLM::Worker", "VLLM::Worker"]


async def test_the_death_of_its_engine_core_ends_it_with_0(short_dir: Path) -> None:
    async with running(short_dir, {"children": 2, "health_after_death": 1}) as engine:
        group = engine.process.pid
        await until(lambda: workers(group) == 2)
        upstream, got = connect(engine), Turn()
        upstream.stream("/v1/chat/completions", fake(tokens=1000, rate=100), got)
        await got.text(1)
        os.kill(next(pid for pid in members(group) if name(pid) == "VLLM::EngineCor"), 9)
        await got.ended.wait()
        assert "EngineCore encountered an issue" in got.error()[1]
        assert (await ask(engine.target, "GET", "/health")).status == 503
        assert await engine.gone() == 0
        await until(lambda: not names(group))
        await upstream.close()


async def test_it_may_have_a_process_that_nothing_polite_reaches(short_dir: Path) -> None:
    async with running(short_dir, {"double_fork": True}) as engine:
        await until(lambda: any(name(pid) == "elsewhere" for pid in below(short_dir)))
        pid = next(pid for pid in below(short_dir) if name(pid) == "elsewhere")
        try:
            assert os.getsid(pid) != engine.process.pid
            os.kill(pid, signal.SIGTERM)
            engine.process.terminate()
            assert await engine.gone() == 0
            assert name(pid) == "elsewhere"
        finally:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: name(pid) == "")


@pytest.mark.parametrize("route", ["health", "models", "chat", "metrics"])
async def test_a_route_may_hang(short_dir: Path, route: str) -> None:
    paths = {"chat": "/v1/chat/completions", "models": "/v1/models"}
    async with running(short_dir, {"hang_at": route}) as engine:
        upstream = connect(engine)
        with pytest.raises(TimeoutError):
            await upstream.request("GET", paths.get(route, f"/{route}"), timeout=0.1)
        assert (await upstream.request("GET", "/version")).status == 200
        await upstream.close()


def members(group: int) -> list[int]:
    """Live processes of a group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(entry.parent.name))
    return found


def name(pid: int) -> str:
    """A process's name; empty when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state = stat.rpartition(")")[2].split()[0]
    return "" if state in "ZX" else stat[stat.index("(") + 1 : stat.rindex(")")]


def names(group: int) -> list[str]:
    return [found for pid in members(group) if (found := name(pid))]


def workers(group: int) -> int:
    """How many of a group have taken their own name."""
    return sum(found.startswith("VLLM::") for found in names(group))
