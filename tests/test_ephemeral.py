"""Ephemeral cells: one turn each, at most max_procs of them, seen from hum and from the kernel."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hum_workers.fake_humd import Answer, Asker
from hum_workers.process import proc
from tests.leftovers import all_end, processes
from tests.rig import WAIT, Bee, egg, ended, fake, served

ENDLESS = fake(tokens=1_000_000, rate=200)


def ephemeral(folder: Path, *, raise_: str = "on-prompt", more: str = "", **egg_: Any) -> Path:
    """Writes an ephemeral egg."""
    return egg(folder, bee=f'propensity = "ephemeral"\nraise = "{raise_}"\n{more}', **egg_)


def cells_folder(folder: Path, lane: int = 0, name: str = "echo") -> Path:
    """Returns the folder of the cell that lives in a lane."""
    part = f"-{name}+{lane}~" if lane else f"-{name}~"
    (found,) = (path for path in (folder / "run" / "hum_workers").iterdir() if part in path.name)
    return found


def members(folder: Path, lane: int = 0) -> list[proc.Stat]:
    """Returns the engine's processes of the cell in a lane, known by where their files go."""
    return processes(cells_folder(folder, lane) / "tmp")


def nothing_left(folder: Path) -> bool:
    """Whether no process and no cell's folder is left of a bee that has stopped."""
    return not processes(folder) and not (folder / "run" / "hum_workers").exists()


def cell_of(answer: Answer) -> str:
    """Returns the id of the cell that answered."""
    (ready,) = (tone for tone in answer.tones if tone["chi"] == "session-ready")
    return str(ready["nestId"])


async def speaks(asker: Asker, sid: str) -> str:
    """Returns the cell of a turn when its first text has come."""
    cell = ""
    async for tone in asker.stream(sid):
        if tone["chi"] == "session-ready":
            cell = tone["nestId"]
        if tone.get("chunkType") == "text_delta":
            return cell
    raise AssertionError(f"{sid} ended without text")


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what the bee writes into its log, which tells nobody."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def peak(bee: Bee) -> int:
    """Returns how many cells lived at once, at most."""
    steps = {"worker.cell.spawned": 1, "worker.cell.emerged": -1}
    alive = most = 0
    for entry in bee.log():
        alive += steps.get(str(entry.get("event")), 0)
        most = max(most, alive)
    return most


def ready(bee: Bee) -> list[str]:
    """Returns the cells that were ready so far, in order."""
    return [entry["cell"] for entry in bee.events("worker.cell.ready")]


def emerged(bee: Bee) -> list[str]:
    """Returns the cells that have died so far, in order."""
    return [entry["cell"] for entry in bee.events("worker.cell.emerged")]


async def test_each_turn_has_a_cell_whose_whole_tree_dies_with_it(short_dir: Path) -> None:
    one = ephemeral(short_dir, fake={"children": 2, "double_fork": True})
    async with served(short_dir, one) as (humd, bee, asker):
        (manifest,) = humd.manifests
        assert manifest["propensity"]["statefulness"] == "ephemeral_per_call"
        sid = asker.prompt(modelId="echo", text=fake(tokens=200, rate=200))
        assert await speaks(asker, sid) == "echo-1"
        tree = members(short_dir)
        assert len(tree) >= 4
        first = await asker.collect(sid)
        assert ended(first)["chi"] == "finish"
        await all_end(tree)
        second = await asker.ask("hi", "echo")
        assert cell_of(second) == "echo-2"
        assert second.complete
        assert peak(bee) == 1
    assert nothing_left(short_dir)


async def test_at_most_max_procs_cells_live_and_the_others_wait_their_turn(short_dir: Path) -> None:
    async with served(short_dir, ephemeral(short_dir, more="max_procs = 2")) as (_, bee, asker):
        text = fake(tokens=40, rate=100)
        sids = [asker.prompt(modelId="echo", text=text) for _ in range(5)]
        answers = await asyncio.gather(*(asker.collect(sid, timeout=WAIT) for sid in sids))
        assert all(answer.complete for answer in answers)
        assert sorted(map(cell_of, answers)) == [f"echo-{n}" for n in range(1, 6)]
        assert peak(bee) == 2


async def test_cells_that_live_at_once_share_no_folder(short_dir: Path) -> None:
    async with served(short_dir, ephemeral(short_dir, more="max_procs = 2")) as (_, _, asker):
        sids = [asker.prompt(modelId="echo", text=ENDLESS) for _ in range(2)]
        assert [await speaks(asker, sid) for sid in sids] == ["echo-1", "echo-2"]
        trees = [{stat.pid for stat in members(short_dir, lane)} for lane in range(2)]
        assert all(trees)
        assert trees[0].isdisjoint(trees[1])
        logs = {path.name for path in (short_dir / "state").rglob("echo*.log")}
        assert len(logs) == 2
        for sid in sids:
            asker.cancel(sid)
        await asyncio.gather(*map(asker.collect, sids))


async def test_two_eggs_have_a_cell_each_and_share_the_rest(short_dir: Path) -> None:
    other = egg(short_dir, name="other")
    one = ephemeral(short_dir, more="max_procs = 3")
    async with served(short_dir, one, other) as (humd, bee, asker):
        await humd.until(lambda: humd.serves("other"))
        busy = [asker.prompt(modelId="echo", text=ENDLESS) for _ in range(3)]
        for sid in busy[:2]:
            await speaks(asker, sid)
        answer = await asker.ask("hi", "other")
        assert answer.complete
        assert ready(bee) == ["echo-1", "echo-2", "other-1"], "one of three waits for the other egg"
        for sid in busy:
            asker.cancel(sid)
        await asyncio.gather(*map(asker.collect, busy))
        assert peak(bee) <= 3


async def test_on_start_the_next_cell_is_raised_ahead(short_dir: Path) -> None:
    async with served(short_dir, ephemeral(short_dir, raise_="on-start")) as (_, bee, asker):
        assert ready(bee) == ["echo-1"]
        assert cell_of(await asker.ask("hi", "echo")) == "echo-1"
        await until(lambda: ready(bee) == ["echo-1", "echo-2"])
        assert emerged(bee) == ["echo-1"]
        assert cell_of(await asker.ask("hi", "echo")) == "echo-2"


async def test_on_start_with_two_cells_the_next_is_ready_while_the_first_is_busy(
    short_dir: Path,
) -> None:
    one = ephemeral(short_dir, raise_="on-start", more="max_procs = 2")
    async with served(short_dir, one) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text=ENDLESS)
        assert await speaks(asker, sid) == "echo-1"
        await until(lambda: ready(bee) == ["echo-1", "echo-2"])
        assert cell_of(await asker.ask("hi", "echo")) == "echo-2"
        asker.cancel(sid)
        await asker.collect(sid)


async def test_a_cancelled_turn_takes_its_cell_along_and_one_that_waits_needs_none(
    short_dir: Path,
) -> None:
    async with served(short_dir, ephemeral(short_dir)) as (_, bee, asker):
        running = asker.prompt(modelId="echo", text=ENDLESS)
        await speaks(asker, running)
        tree = members(short_dir)
        waiting = asker.prompt(modelId="echo", text="hi")
        asker.cancel(waiting)
        assert ended(await asker.collect(waiting))["finishReason"] == "cancelled"
        asker.cancel(running)
        assert ended(await asker.collect(running))["finishReason"] == "cancelled"
        await all_end(tree)
        assert cell_of(await asker.ask("hi", "echo")) == "echo-2"
        assert bee.events("worker.cell.restart") == []


async def test_a_cell_that_dies_under_its_turn_is_told_and_the_next_turn_has_another(
    short_dir: Path,
) -> None:
    async with served(short_dir, ephemeral(short_dir)) as (_, bee, asker):
        died = await asker.ask(fake(tokens=50, die="mid_stream", rate=500), "echo")
        assert ended(died)["code"] == "cell_died"
        answer = await asker.ask("hi", "echo")
        assert (cell_of(answer), answer.complete) == ("echo-2", True)
        assert len(bee.events("worker.cell.restart")) == 1


async def test_a_first_start_that_fails_withdraws_the_model(short_dir: Path) -> None:
    one = ephemeral(short_dir, fake={"failure": "bad_config"}, more="max_procs = 2")
    async with served(short_dir, one) as (humd, bee, asker):
        sids = [asker.prompt(modelId="echo", text="hi") for _ in range(3)]
        answers = await asyncio.gather(*map(asker.collect, sids))
        assert {ended(answer)["code"] for answer in answers} == {"cell_start_failed"}
        await humd.until(lambda: not humd.serves("echo"))
        assert len(bee.events("worker.cell.spawned")) == 1


async def test_a_later_start_that_fails_is_tried_again_while_the_turn_waits(
    short_dir: Path,
) -> None:
    async with served(short_dir, ephemeral(short_dir)) as (humd, bee, asker):
        sid = asker.prompt(modelId="echo", text=fake(tokens=50, rate=500))
        await speaks(asker, sid)
        folder = cells_folder(short_dir).parent
        await asker.collect(sid)
        await until(lambda: emerged(bee) == ["echo-1"])
        folder.rename(short_dir / "aside")
        folder.write_text("in the way")
        sid = asker.prompt(modelId="echo", text="hi")
        await until(lambda: len(bee.events("worker.cell.start_failed")) == 1)
        assert humd.serves("echo")
        folder.unlink()
        (short_dir / "aside").rename(folder)
        answer = await asker.collect(sid, timeout=WAIT)
        assert (cell_of(answer), answer.complete) == ("echo-3", True)


async def test_a_turn_waits_no_longer_than_it_may(short_dir: Path) -> None:
    one = ephemeral(short_dir, raise_="on-start", extra='[limits]\nwait_timeout = "300ms"')
    async with served(short_dir, one) as (_, _, asker):
        sid = asker.prompt(modelId="echo", text=ENDLESS)
        await speaks(asker, sid)
        late = ended(await asker.ask("hi", "echo"))
        assert late["code"] == "no_capacity"
        assert "[bee] max_procs" in late["message"]
        asker.cancel(sid)
        await asker.collect(sid)


async def test_a_stop_ends_who_runs_and_who_waits_and_leaves_nothing(short_dir: Path) -> None:
    one = ephemeral(
        short_dir, raise_="on-start", extra='[lifecycle]\ndrain_timeout = "0s"\nstop_grace = "2s"'
    )
    async with served(short_dir, one) as (_, bee, asker):
        sids = [asker.prompt(modelId="echo", text=ENDLESS) for _ in range(3)]
        await speaks(asker, sids[0])
        assert await bee.stop(signal.SIGTERM) == 0
        answers = await asyncio.gather(*map(asker.collect, sids))
        assert {ended(answer)["code"] for answer in answers} == {"shutting_down"}
    assert nothing_left(short_dir)


async def test_a_stop_while_a_cell_is_raised_for_a_turn_leaves_nothing(short_dir: Path) -> None:
    extra = '[lifecycle]\ndrain_timeout = "0s"'
    one = ephemeral(short_dir, fake={"ready_after": 30}, extra=extra)
    async with served(short_dir, one) as (_, bee, asker):
        sid = asker.prompt(modelId="echo", text="hi")
        await until(lambda: bool(bee.events("worker.cell.spawned")))
        assert await bee.stop(signal.SIGTERM) == 0
        assert ended(await asker.collect(sid))["code"] == "shutting_down"
    assert nothing_left(short_dir)
