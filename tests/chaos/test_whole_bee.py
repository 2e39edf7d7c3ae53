"""Whole bees under violence from outside: their folder removed, a signal twice, kills together."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from bench.chaos_cases import KILLS, WILD, WILD_MEMBERS, Case
from bench.chaos_run import below, targets
from hum_workers import lifecycle
from hum_workers.fake_humd import Asker, FakeHumd
from hum_workers.process import cgroup, orphans, proc
from tests.leftovers import all_end, assert_nothing_left, processes
from tests.liveness import Liveness, process_end
from tests.rig import WAIT, Bee, egg, ended, fake, running_bee, served
from tests.test_ephemeral import until

ENDLESS = fake(tokens=1_000_000, rate=100)
ALL_THREE = Case("bee, tender and guard", "bee + tender + guard")


async def speaks(asker: Asker, sid: str) -> None:
    async for tone in asker.stream(sid):
        if tone.get("chunkType") == "text_delta":
            return


def tender_of(bee: Bee) -> int:
    return int(bee.events("worker.cell.spawned")[-1]["pid"])


def cgroups_of(pid: int) -> list[Path]:
    parents = {p for own in cgroup.folders() if own is not None for p in (own, own.parent)}
    return [path for parent in parents for path in parent.glob(f"{cgroup.PREFIX}*-{pid}-*")]


@pytest.mark.parametrize("what", ["run/hum_workers", "run"])
async def test_a_bee_whose_run_folder_is_removed_goes_on(short_dir: Path, what: str) -> None:
    """Connections that are open still serve; the first new one finds that the cell is lost."""
    lifecycle.become_subreaper()
    path = egg(short_dir, extra='[lifecycle]\nstop_grace = "1s"')
    async with served(short_dir, path) as (_, bee, asker):
        held = asker.prompt(modelId="echo", text=fake(tokens=150, rate=100))
        await speaks(asker, held)
        tree = below(tender_of(bee))
        shutil.rmtree(short_dir / what)
        answers = await asyncio.gather(
            *(asker.ask(fake(tokens=3), "echo", timeout=WAIT) for _ in range(8))
        )
        whole = [answer for answer in answers if answer.complete]
        assert {ended(answer).get("code", "") for answer in answers} <= {"", "cell_died"}
        assert whole, "one that had no text yet is asked again"
        assert ended(await asker.collect(held, WAIT))["chi"] in ("finish", "error")
        await until(lambda: len(bee.events("worker.cell.ready")) == 2)
        await all_end(tree)
        [gone] = bee.events("worker.cell.emerged")
        assert "its socket is lost" in gone["reason"]
        again = await asker.ask(fake(tokens=3), "echo", timeout=WAIT)
        assert again.complete
        for folder in (short_dir / "run", short_dir / "run" / "hum_workers"):
            assert folder.stat().st_mode & 0o077 == 0
        assert await bee.stop() == 0
    assert_nothing_left(short_dir)
    async with served(short_dir, path) as (_, _, asker):
        assert (await asker.ask(fake(tokens=3), "echo", timeout=WAIT)).complete
    assert_nothing_left(short_dir)


async def test_an_idle_bee_without_its_run_folder_stops_in_order_too(short_dir: Path) -> None:
    async with served(short_dir, egg(short_dir)) as (_, bee, _):
        shutil.rmtree(short_dir / "run")
        (short_dir / "run").mkdir(mode=0o700)
        assert await bee.stop() == 0
        assert [line["death"] for line in bee.events("worker.cell.emerged")] == ["stopped"]
    assert_nothing_left(short_dir)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_second_signal_ends_a_bee_whose_tender_is_stopped(
    short_dir: Path, number: signal.Signals, code: int
) -> None:
    lifecycle.become_subreaper()
    path = egg(short_dir, fake=WILD, extra='[lifecycle]\ndrain_timeout = "60s"')
    async with served(short_dir, path) as (humd, bee, asker):
        sid = asker.prompt(modelId="echo", text=ENDLESS)
        await speaks(asker, sid)
        tree = below(tender_of(bee))
        assert len(tree) > WILD_MEMBERS
        os.kill(tender_of(bee), signal.SIGSTOP)
        bee.process.send_signal(number)
        await humd.until(lambda: not humd.serves("echo"), WAIT)
        assert await bee.stop(number) == code
        await asyncio.gather(*map(gone, tree))
        assert ended(await asker.collect(sid, WAIT))["chi"] == "error"
    assert_nothing_left(short_dir)


async def gone(stat: proc.Stat) -> None:
    """Returns when the process has ended, and reaps it if it came to us."""
    try:
        await process_end(stat.pid)
    except ProcessLookupError:
        return
    orphans.reap(orphans.strays(proc.scan()))


async def killed(case: Case, bee: Bee, alive: Liveness) -> list[proc.Stat]:
    """Kills whom the case names, together; returns the tree as it was."""
    tree = below(bee.pid)
    tree += [stat for life in alive.lives if (stat := proc.read_stat(life.pid)) is not None]
    for number, pid in targets(case, bee, tree, alive):
        os.kill(pid, number)
    await bee.process.wait()
    return tree


def wild(folder: Path, alive: Liveness, limits: str) -> Path:
    extra = f'[limits]\n{limits}\n[lifecycle]\nstop_grace = "1s"\ndrain_timeout = "1s"'
    return egg(folder, fake={**WILD, "alive": str(alive.path)}, extra=extra)


async def test_after_bee_and_tender_were_killed_together_the_next_bee_tidies_up_says_so_and_serves(
    short_dir: Path,
) -> None:
    lifecycle.become_subreaper()
    with Liveness(short_dir) as alive:
        path = wild(short_dir, alive, "")
        async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
            async with await Asker.connect(humd.socket) as asker:
                async with running_bee(short_dir, path) as bee:
                    await humd.until(lambda: humd.serves("echo"), WAIT)
                    await alive.appear(WILD_MEMBERS)
                    sid = asker.prompt(modelId="echo", text=ENDLESS)
                    await speaks(asker, sid)
                    tender = tender_of(bee)
                    tree = await killed(KILLS[6], bee, alive)
                    await alive.all_dead(5)
                    await asyncio.gather(*map(gone, tree))
                left = list((short_dir / "run" / "hum_workers").iterdir())
                assert len(left) == 1
                await humd.until(lambda: not humd.serves("echo"), WAIT)
                async with running_bee(short_dir, path) as bee:
                    cut = ended(await asker.collect(sid, WAIT))
                    assert cut["code"] == "bee_restarted"
                    await humd.until(lambda: humd.serves("echo"), WAIT)
                    assert (await asker.ask(fake(tokens=3), "echo", timeout=WAIT)).complete
                    said = bee.events("worker.leftover.folder")
                    assert [line["folder"] for line in said] == [str(left[0])]
                    # Any bee sweeps them, one of a test beside this one, too.
                    assert cgroups_of(tender) == []
                    assert not left[0].exists()
                    assert bee.events("worker.leftover.found") == []
    assert_nothing_left(short_dir)


async def test_what_lived_on_after_bee_tender_and_guard_is_ended_by_the_next_bee_before_it_serves(
    short_dir: Path,
) -> None:
    lifecycle.become_subreaper()
    with Liveness(short_dir) as alive:
        path = wild(short_dir, alive, 'confine = "guard"\ncgroup = "off"')
        async with await FakeHumd.start(short_dir / "thrum.sock", short_dir / "state") as humd:
            async with running_bee(short_dir, path) as bee:
                await humd.until(lambda: humd.serves("echo"), WAIT)
                await alive.appear(WILD_MEMBERS)
                await noted(short_dir, WILD_MEMBERS)
                await killed(ALL_THREE, bee, alive)
            survivors = [stat.pid for stat in processes(short_dir)]
            assert survivors, "the guard can't cover its own death together with the others'"
            await humd.until(lambda: not humd.serves("echo"), WAIT)
            async with running_bee(short_dir, path) as bee:
                await humd.until(lambda: humd.serves("echo"), WAIT)
                await alive.all_dead(5)
                [found] = bee.events("worker.leftover.found")
                assert found["cell"] == "echo-1"
                assert all(any(f"pid {pid}," in m for m in found["members"]) for pid in survivors)
                order = [line.get("event") for line in bee.log()]
                assert order.index("worker.leftover.found") < order.index("worker.cell.spawned")
            orphans.reap(orphans.strays(proc.scan()))
    assert_nothing_left(short_dir)


async def noted(folder: Path, members: int) -> None:
    """Returns when the bee's file has so many processes of the cell, and those that hold them."""
    file = next((folder / "state").rglob("cells.*.json"))

    def told() -> bool:
        return file.read_text().count("],[") >= members

    await until(told)
