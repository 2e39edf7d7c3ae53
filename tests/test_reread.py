"""SIGHUP: the eggs are read again, and only what they change is restarted."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from hum_workers.egg import load_eggs
from hum_workers.egg.changes import changes
from hum_workers.fake_humd import Asker, FakeHumd
from hum_workers.vllm_worker.egg import VllmEgg
from tests.leftovers import assert_nothing_left
from tests.rig import WAIT, Bee, egg, ended, fake, running_bee, served
from tests.test_ephemeral import ephemeral, until

LONG = fake(tokens=150, rate=100)


async def reread(bee: Bee, event: str = "worker.eggs.reread") -> dict[str, object]:
    """Sends SIGHUP and returns what the bee logs of it."""
    before = len(bee.events(event))
    bee.process.send_signal(signal.SIGHUP)
    await until(lambda: len(bee.events(event)) > before)
    return bee.events(event)[-1]


def cells(bee: Bee) -> list[str]:
    return [entry["cell"] for entry in bee.events("worker.cell.ready")]


async def speaks(asker: Asker, sid: str) -> None:
    async for tone in asker.stream(sid):
        if tone.get("chunkType") == "text_delta":
            return


async def test_a_wrong_egg_changes_nothing_and_all_its_mistakes_are_logged(short_dir: Path) -> None:
    path = egg(short_dir)
    async with served(short_dir, path) as (humd, bee, asker):
        running = asker.prompt(modelId="echo", text=LONG)
        await speaks(asker, running)
        egg(short_dir, extra='[limits]\nmax_waiting = "no"\n[nonsense]')
        refused = await reread(bee, "worker.eggs.refused")
        assert refused["mistakes"] == 2
        told = [str(entry["about"]) for entry in bee.events("worker.eggs.mistake")]
        assert "limits.max_waiting" in told[0]
        assert "nonsense" in told[1]
        assert ended(await asker.collect(running, WAIT))["chi"] == "finish"
        assert humd.serves("echo")
        assert cells(bee) == ["echo-1"]
        path.unlink()
        await reread(bee, "worker.eggs.refused")
        assert (await asker.ask("hi", "echo")).complete


async def test_what_the_process_is_can_change_with_a_restart_only(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, asker):
        egg(short_dir, bee='name = "other"\npace = 100', extra="[limits]\nmax_waiting = 1")
        refused = await reread(bee, "worker.eggs.refused")
        assert refused["keys"] == ["bee.name", "bee.pace"]
        assert "restart of the bee" in str(refused["reason"])
        assert (await asker.ask("hi", "echo")).complete
        assert cells(bee) == ["echo-1"]


async def test_limits_and_further_names_change_in_place(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (humd, bee, asker):
        running = asker.prompt(modelId="echo", text=LONG)
        await speaks(asker, running)
        egg(
            short_dir,
            bee='models = ["alias"]',
            model="max_tokens = 2",
            extra='[limits]\nturn_timeout = "500ms"',
        )
        log = await reread(bee)
        assert log["others"] == {"echo": ["bee.models", "limits.turn_timeout", "model.max_tokens"]}
        await humd.until(lambda: humd.serves("alias"), WAIT)
        assert (await asker.ask(fake(tokens=9), "alias")).text == "w0 w1"
        slow = await asker.ask(fake(prefill=30), "echo", timeout=WAIT)
        assert ended(slow)["code"] == "turn_timeout"
        assert ended(await asker.collect(running, WAIT))["chi"] == "finish"
        assert cells(bee) == ["echo-1"]


async def test_a_changed_engine_replaces_its_cell_after_its_turns_and_no_other(
    short_dir: Path,
) -> None:
    one, two = egg(short_dir, name="one"), egg(short_dir, name="two")
    async with served(short_dir, one, two, model="two") as (humd, bee, asker):
        await humd.until(lambda: humd.serves("one"), WAIT)
        running = asker.prompt(modelId="one", text=LONG)
        await speaks(asker, running)
        egg(short_dir, name="one", model="max_model_len = 77")
        log = await reread(bee)
        assert log["cells"] == {"one": ["model.max_model_len"]}
        waiting = asker.prompt(modelId="one", text=fake(tokens=3))
        other = await asker.ask("hi", "two")
        assert other.complete
        assert ended(await asker.collect(running, WAIT))["chi"] == "finish"
        assert (await asker.collect(waiting, WAIT)).text == "w0 w1 w2"
        assert sorted(cells(bee)) == ["one-1", "one-2", "two-1"]
        assert humd.serves("one")
        (death,) = bee.events("worker.cell.emerged")
        assert (death["cell"], death["reason"]) == ("one-1", "its egg has changed")


async def test_a_changed_engine_is_not_waited_for_while_it_loads(short_dir: Path) -> None:
    stuck = egg(short_dir, fake={"hang_at": "load"})
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        async with running_bee(short_dir, stuck) as bee:
            await until(lambda: bool(bee.events("worker.cell.spawned")))
            egg(short_dir)
            await reread(bee)
            await humd.until(lambda: humd.serves("echo"), WAIT)
            assert cells(bee) == ["echo-2"]
            assert bee.events("worker.model.withdrawn") == []


@pytest.mark.parametrize("raise_", ["on-start", "on-prompt"])
async def test_a_model_withdrawn_for_good_is_raised_anew(short_dir: Path, raise_: str) -> None:
    bee_table = f'raise = "{raise_}"'
    path = egg(short_dir, bee=bee_table, fake={"failure": "bad_config"})
    async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
        async with running_bee(short_dir, path) as bee:
            async with await Asker.connect(humd.socket) as asker:
                if raise_ == "on-prompt":
                    await humd.until(lambda: humd.serves("echo"), WAIT)
                    failed = await asker.ask("hi", "echo", timeout=WAIT)
                    assert ended(failed)["code"] == "cell_start_failed"
                await until(lambda: bool(bee.events("worker.model.withdrawn")))
                egg(short_dir, bee=bee_table)
                await reread(bee)
                await humd.until(lambda: humd.serves("echo"), WAIT)
                assert (await asker.ask("hi", "echo", timeout=WAIT)).complete


async def test_eggs_come_and_go_with_the_folder(short_dir: Path) -> None:
    folder = short_dir / "eggs"
    folder.mkdir()
    egg(folder, name="a")
    egg(folder, name="b")
    async with served(short_dir, folder, model="b") as (humd, bee, asker):
        await humd.until(lambda: humd.serves("a"), WAIT)
        running = asker.prompt(modelId="a", text=LONG)
        await speaks(asker, running)
        (folder / "a.toml").unlink()
        egg(folder, name="c")
        log = await reread(bee)
        assert (log["new"], log["gone"]) == (["c"], ["a"])
        await humd.until(lambda: humd.serves("c") and not humd.serves("a"), WAIT)
        assert ended(await asker.collect(running, WAIT))["chi"] == "finish", "it may end"
        await until(lambda: bool(bee.events("worker.cell.emerged")))
        assert [e["reason"] for e in bee.events("worker.cell.emerged")] == ["its egg is gone"]
        for name in "bc":
            assert (await asker.ask("hi", name, timeout=WAIT)).complete
    assert_nothing_left(short_dir)


async def test_an_ephemeral_bee_takes_the_new_egg_for_the_next_turn(short_dir: Path) -> None:
    path = ephemeral(short_dir, raise_="on-start")
    async with served(short_dir, path) as (_, bee, asker):
        ephemeral(short_dir, raise_="on-start", fake={"request": {"text": ["new"]}})
        await reread(bee)
        answer = await asker.ask("hi", "echo", timeout=WAIT)
        assert answer.text == "new"
        assert "echo-1" not in [t["nestId"] for t in answer.tones if t["chi"] == "session-ready"]


async def test_a_stop_in_the_middle_of_it_leaves_nothing(short_dir: Path) -> None:
    path = egg(short_dir)
    async with served(short_dir, path) as (_, bee, asker):
        running = asker.prompt(modelId="echo", text=LONG)
        await speaks(asker, running)
        egg(short_dir, model="max_model_len = 77")
        await reread(bee)
        waiting = asker.prompt(modelId="echo", text="hi")
        bee.process.send_signal(signal.SIGHUP)
        stopping = asyncio.create_task(bee.stop())
        bee.process.send_signal(signal.SIGHUP)
        assert ended(await asker.collect(running, WAIT))["chi"] == "finish"
        assert ended(await asker.collect(waiting, WAIT))["code"] == "shutting_down"
        assert await stopping == 0
    assert_nothing_left(short_dir)


def test_each_key_is_told_as_what_it_changes(tmp_path: Path) -> None:
    path = egg(tmp_path)
    (before,) = load_eggs([path], VllmEgg)
    egg(tmp_path, extra='[limits]\nwait_timeout = "1s"\n[media]\nmax_count = 3')
    (now,) = load_eggs([path], VllmEgg)
    assert changes([before], [now]).others == {"echo": ["limits.wait_timeout", "media.max_count"]}
    egg(tmp_path, extra='[limits]\nmemory = "1GiB"\n[media]\nmax_count = 0')
    (now,) = load_eggs([path], VllmEgg)
    assert changes([before], [now]).cells == {"echo": ["limits.memory", "media.max_count"]}
    egg(tmp_path, bee="max_procs = 3\npace = 7", extra='[log]\nlevel = "debug"')
    (now,) = load_eggs([path], VllmEgg)
    found = changes([before], [now])
    assert found.process == ["bee.pace", "log.level"]
    assert (found.cells, found.others) == ({}, {})
