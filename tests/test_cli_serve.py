"""A bee that serves: its eggs, its log, its stops; nothing is left behind any of them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from hum_workers.process import proc
from tests.leftovers import all_end, assert_nothing_left, processes
from tests.rig import WAIT, Bee, egg, environment, fake, running_bee, served, worker
from tests.test_cli import without_vllm

WILD = {"double_fork": True, "ignore_sigterm": True, "children": 2}
LONG_GRACE = '[lifecycle]\nstop_grace = "10m"\ndrain_timeout = "10m"'


async def running_turn(asker: Asker, **script: Any) -> str:
    """Prompts, waits for the first text and returns the sid."""
    sid = asker.prompt(text=fake(**{"tokens": 10_000, "rate": 50, **script}), modelId="echo")
    async with asyncio.timeout(WAIT):
        async for tone in asker.stream(sid):
            if tone["chi"] == "chunk" and tone.get("chunkType") == "text_delta":
                break
    return sid


async def endings(asker: Asker, sid: str) -> list[dict[str, Any]]:
    """Returns the endings of a turn, once its bee has left and humd has passed on all it said."""
    answer = await asker.collect(sid, WAIT)
    assert answer.ending is not None
    late = asker._turn(sid).tones
    return [answer.ending, *(tone for _, tone in late if tone["chi"] in ("finish", "error"))]


async def until_logged(bee: Bee, event: str) -> dict[str, Any]:
    async with asyncio.timeout(WAIT):
        while not bee.events(event):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return bee.events(event)[0]


def clean(bee: Bee) -> None:
    """Holds the log to its form: events only. A busy machine makes the debug mode talk."""
    raw = [entry["raw"] for entry in bee.log() if "raw" in entry]
    assert [line for line in raw if not line.startswith("Executing <")] == []


async def test_each_egg_is_served_under_its_own_model(short_dir: Path) -> None:
    eggs = [egg(short_dir, name=name) for name in ("echo", "other")]
    async with served(short_dir, *eggs) as (humd, bee, asker):
        await humd.until(lambda: humd.serves("other"), timeout=WAIT)
        for model in ("echo", "other"):
            answer = await asker.ask(fake(echo=True), model)
            assert json.loads(answer.text)["model"] == model
        unknown = await asker.ask("hi", "third")
        assert unknown.ending is None or unknown.ending["chi"] == "error"
        assert await bee.stop() == 0
        clean(bee)
    assert_nothing_left(short_dir)


async def test_a_folder_of_eggs_is_all_its_eggs(short_dir: Path) -> None:
    for name in ("echo", "other"):
        egg(short_dir, name=name)
    async with served(short_dir, short_dir) as (humd, bee, _):
        await humd.until(lambda: humd.serves("other"), timeout=WAIT)
        assert await bee.stop() == 0


async def test_an_egg_given_twice_is_refused(short_dir: Path) -> None:
    path = egg(short_dir)
    code, _, err = await worker(short_dir, "--egg", path, "--egg", path)
    assert code == 2
    assert "echo" in err
    assert_nothing_left(short_dir)


@pytest.mark.parametrize("broken", ["engine", "interpreter"])
async def test_an_engine_that_can_not_start_leaves_the_bee_up_for_the_others(
    broken: str, short_dir: Path
) -> None:
    if broken == "engine":
        bad = egg(short_dir, name="bad", fake={"failure": "kv_too_big"})
    else:
        bad = without_vllm(short_dir).rename(short_dir / "bad.toml")
        bad.write_text(bad.read_text().replace('served_name = "echo"', 'served_name = "bad"'))
    good = egg(short_dir, name="echo")
    async with served(short_dir, bad, good) as (humd, bee, asker):
        withdrawn = await until_logged(bee, "worker.model.withdrawn")
        assert (withdrawn["level"], withdrawn["models"]) == ("error", ["bad"])
        assert len(bee.events("worker.model.withdrawn")) == 1
        assert ("vLLM" if broken == "interpreter" else "KV cache") in withdrawn["reason"]
        assert not humd.serves("bad")
        assert (await asker.ask(fake(tokens=2), "echo")).text == "w0 w1"
        assert await bee.stop() == 0
        clean(bee)
    assert_nothing_left(short_dir)


async def test_a_second_bee_with_the_same_key_is_told_which_key_to_set(short_dir: Path) -> None:
    path = egg(short_dir)
    async with served(short_dir, path) as (_, bee, asker):
        code, out, err = await worker(short_dir, "--egg", path)
        assert (code, out) == (2, "")
        assert "bee.name" in err
        assert err.count("\n") == 1
        assert (await asker.ask(fake(tokens=1), "echo")).text == "w0"
        assert await bee.stop() == 0


async def test_a_turn_that_fails_is_a_line_that_quotes_nothing(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        failed = await asker.ask(fake(error=400), "echo")
        refused = await asker.ask("", "echo", sampling="hot")
        whole = await asker.ask(fake(tokens=1), "echo")
        assert await bee.stop() == 0
        first, second = bee.events("worker.turn.failed")
    assert (first["sid"], first["level"], first["model"]) == (failed.sid, "info", "echo")
    assert [first["code"], second["code"]] == [
        failed.ending and failed.ending["code"],
        refused.ending and refused.ending["code"],
    ]
    assert set(first) == {"event", "level", "timestamp", "sid", "code", "model"}
    assert whole.complete


async def test_the_first_sigterm_lets_a_running_turn_finish(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, bee, asker):
        sid = await running_turn(asker, tokens=60, rate=100)
        bee.process.send_signal(signal.SIGTERM)
        await humd.until(lambda: not humd.serves("echo"), timeout=WAIT)
        [ending] = await endings(asker, sid)
        assert (ending["chi"], ending["finishReason"]) == ("finish", "stop")
        assert await bee.process.wait() == 0
        clean(bee)
    assert_nothing_left(short_dir)


async def test_a_drain_that_takes_too_long_ends_the_turns_with_a_word(short_dir: Path) -> None:
    path = egg(short_dir, extra='[lifecycle]\ndrain_timeout = "100ms"')
    async with served(short_dir, path) as (_, bee, asker):
        sid = await running_turn(asker)
        assert await bee.stop() == 0
        [ending] = await endings(asker, sid)
        assert (ending["chi"], ending["code"]) == ("error", "shutting_down")
        clean(bee)
    assert_nothing_left(short_dir)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_second_signal_kills_at_once_and_each_turn_still_has_one_ending(
    number: signal.Signals, code: int, short_dir: Path
) -> None:
    path = egg(short_dir, fake=WILD, extra=LONG_GRACE)
    async with served(short_dir, path) as (_, bee, asker):
        sids = [await running_turn(asker) for _ in range(3)]
        bee.process.send_signal(number)
        await until_logged(bee, "worker.stopping")
        assert await bee.stop(number, timeout=10) == code
        for sid in sids:
            [ending] = await endings(asker, sid)
            assert ending["chi"] == "error"
        clean(bee)
    assert_nothing_left(short_dir)


@pytest.mark.parametrize("how", ["namespace", "guard"])
async def test_a_stop_that_reaches_every_process_at_once_is_in_order(
    how: str, short_dir: Path
) -> None:
    path = egg(short_dir, fake={"children": 2}, extra=f'[limits]\nconfine = "{how}"')
    async with served(short_dir, path) as (_, bee, asker):
        sids = [await running_turn(asker, tokens=40, rate=100) for _ in range(2)]
        for stat in processes(short_dir):
            proc.send(stat, signal.SIGTERM)
        for sid in sids:
            [ending] = await endings(asker, sid)
            assert ending["chi"] in ("finish", "error")
            assert ending.get("message", "cell died").strip()
        assert await bee.process.wait() == 0
        assert bee.events("worker.cell.restart") == []
        clean(bee)
    assert_nothing_left(short_dir)


async def test_a_stop_while_the_engine_loads_does_not_wait_for_it(short_dir: Path) -> None:
    path = egg(short_dir, fake=WILD | {"hang_at": "load"}, extra=LONG_GRACE)
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state"):
        async with running_bee(short_dir, path) as bee:
            await until_logged(bee, "worker.cell.spawned")
            assert await bee.stop() == 0
            clean(bee)
    assert_nothing_left(short_dir)


async def test_a_stop_without_humd_does_not_wait_for_it(short_dir: Path) -> None:
    async with running_bee(short_dir, egg(short_dir)) as bee:
        await until_logged(bee, "worker.cell.ready")
        away = bee.events("worker.connecting")[0]
        assert (away["level"], away["socket"]) == ("info", str(short_dir / "thrum.sock"))
        assert away["reason"].startswith("humd is not there yet: no such socket")
        assert await bee.stop() == 0
        clean(bee)
    assert_nothing_left(short_dir)


async def test_sigkill_of_the_bee_takes_its_engines_along(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir, fake=WILD)) as (_, bee, asker):
        await running_turn(asker)
        tree = processes(short_dir)
        assert len(tree) >= 6
        bee.process.kill()
        async with asyncio.timeout(5):
            await all_end(tree)
    assert list(map(str, processes(short_dir))) == []
    assert list((short_dir / "run" / "hum_workers").iterdir()) == []


async def test_the_log_is_json_unless_a_person_reads_it(short_dir: Path) -> None:
    path = egg(short_dir)
    async with running_bee(short_dir, path) as bee:
        ready = await until_logged(bee, "worker.cell.ready")
        assert {"level", "timestamp", "cell", "pid", "seconds"} <= set(ready)
        assert await bee.stop() == 0
        clean(bee)
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hum_workers.vllm_worker", "--egg", str(path)),
        env=environment(short_dir) | {"TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    text = await asyncio.to_thread(_read_until, master, b"worker.cell.ready")
    process.send_signal(signal.SIGINT)
    await asyncio.to_thread(_read_until, master, b"worker.stopped")
    assert await process.wait() == 0
    os.close(master)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"^\d\d:\d\d:\d\d \[info +\] worker\.cell\.spawned +", plain, re.MULTILINE)
    assert '{"' not in plain.split("worker.cell.stage")[0]
    assert_nothing_left(short_dir)


def _read_until(fd: int, text: bytes) -> str:
    data = b""
    while text not in data:
        data += os.read(fd, 4096)
    return data.decode()


async def test_a_prompt_that_waits_too_long_for_an_engine_is_told_so(short_dir: Path) -> None:
    path = egg(
        short_dir,
        bee='raise = "on-prompt"',
        fake={"hang_at": "load"},
        extra='[limits]\nwait_timeout = "300ms"\nmax_waiting = 1',
    )
    async with served(short_dir, path) as (_, bee, asker):
        answer = await asker.ask("hi", "echo", timeout=WAIT)
        assert answer.ending is not None
        assert (answer.ending["chi"], answer.ending["code"]) == ("error", "no_capacity")
        assert "([limits] wait_timeout): its cell is not ready" in answer.ending["message"]
        assert await bee.stop() == 0
        clean(bee)
    assert_nothing_left(short_dir)
