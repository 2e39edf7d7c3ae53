"""Cells that go for want of turns, or to make room, as askers and the log see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hum_workers.fake_humd import Asker, FakeHumd
from hum_workers.fake_humd.wire import Tone
from tests.leftovers import processes
from tests.rig import WAIT, Bee, egg, ended, fake, served
from tests.test_ephemeral import until

ENDLESS = fake(tokens=1_000_000, rate=100)
IDLE = '[lifecycle]\nidle_timeout = "{}"'
QUICK = '[lifecycle]\ndrain_timeout = "0s"'
MANY = 'raise = "on-prompt"\nmax_procs = 1'


def gone(bee: Bee) -> list[str]:
    """Cells that emerged, in order."""
    return [entry["cell"] for entry in bee.events("worker.cell.emerged")]


def named(name: str, event: str, bee: Bee) -> list[dict[str, Any]]:
    return [entry for entry in bee.events(event) if entry.get("egg") == name]


def trio(folder: Path, names: str = "abc", **more: Any) -> list[Path]:
    """Writes eggs that share one place."""
    return [egg(folder, name=n, bee=MANY if n == names[0] else "", **more) for n in names]


async def speaks(asker: Asker, sid: str) -> None:
    async for tone in asker.stream(sid):
        if tone.get("chunkType") == "text_delta":
            return


async def test_an_idle_cell_goes_and_the_next_prompt_raises_another(short_dir: Path) -> None:
    path = egg(short_dir, extra=IDLE.format("300ms"), fake={"double_fork": True})
    async with served(short_dir, path) as (humd, bee, asker):
        first = await asker.ask(fake(tokens=3), "echo", sid="s")
        assert first.complete
        pulses = asker.stream("s")
        async with asyncio.timeout(WAIT):
            pulse = await anext(pulses)
        assert (pulse["chi"], pulse["kind"], pulse["cellId"]) == ("pulse", "cell-idle", "echo-1")
        await until(lambda: gone(bee) == ["echo-1"])
        (killed,) = bee.events("worker.cell.idle.kill")
        assert killed["cell"] == "echo-1"
        assert processes(short_dir / "run" / "hum_workers") == []
        assert humd.serves("echo"), "the model stays advertised"
        second = await asker.ask(fake(tokens=3), "echo", timeout=WAIT)
        assert second.complete
        kinds = [tone["kind"] for tone in second.tones if tone["chi"] == "pulse"]
        assert kinds[-2:] == ["cell-spawned", "cell-ready"]


async def test_a_turn_that_runs_longer_than_the_timeout_keeps_its_cell(short_dir: Path) -> None:
    path = egg(short_dir, extra=IDLE.format("200ms"))
    async with served(short_dir, path) as (_, bee, asker):
        answer = await asker.ask(fake(tokens=60, rate=40), "echo", timeout=WAIT)
        assert answer.complete
        assert gone(bee) == []
        await until(lambda: gone(bee) == ["echo-1"])


async def test_a_prompt_on_a_cell_that_is_going_waits_for_the_next(short_dir: Path) -> None:
    stubborn = {"ignore_sigterm": True}
    extra = IDLE.format("200ms") + '\nstop_grace = "1s"'
    async with served(short_dir, egg(short_dir, extra=extra, fake=stubborn)) as (_, bee, asker):
        await until(lambda: bool(bee.events("worker.cell.idle.kill")))
        answer = await asker.ask(fake(tokens=3), "echo", timeout=WAIT)
        assert answer.complete
        assert gone(bee)[0] == "echo-1"


async def test_the_least_recently_used_cell_makes_room_and_all_models_stay(
    short_dir: Path,
) -> None:
    eggs = trio(short_dir)
    bee_table = 'raise = "on-prompt"\nmax_procs = 2'
    egg(short_dir, name="a", bee=bee_table)
    async with served(short_dir, *eggs, model="a") as (humd, bee, asker):
        for name in "aba":
            assert (await asker.ask("hi", name, sid=f"s-{name}", timeout=WAIT)).complete
        assert gone(bee) == []
        third = await asker.ask("hi", "c", timeout=WAIT)
        assert third.complete
        assert gone(bee) == ["b-1"]
        assert [e["egg"] for e in bee.events("worker.cell.evict.lru")] == ["b"]
        kinds = [(t["kind"], t["cellId"]) for t in third.tones if t["chi"] == "pulse"]
        assert kinds == [("cell-evicted", "b-1"), ("cell-spawned", "c-1"), ("cell-ready", "c-1")]
        async with asyncio.timeout(WAIT):
            touched = await anext(asker.stream("s-b"))
        assert (touched["kind"], touched["cellId"]) == ("cell-evicted", "b-1")
        assert all(humd.serves(name) for name in "abc")


async def test_prompts_for_busy_cells_wait_and_none_is_cut(short_dir: Path) -> None:
    eggs = trio(short_dir)
    async with served(short_dir, *eggs, model="a") as (_, bee, asker):
        long = asker.prompt(modelId="a", text=fake(tokens=100, rate=100))
        await speaks(asker, long)
        sids = [asker.prompt(modelId=n, text=fake(tokens=3)) for n in "bcabc"]
        answers = await asyncio.gather(*(asker.collect(sid, WAIT) for sid in [long, *sids]))
        assert all(ended(answer)["chi"] == "finish" for answer in answers)
        spawned = [entry["cell"] for entry in bee.events("worker.cell.spawned")]
        assert [cell[0] for cell in spawned] == ["a", "b", "c"], "its own prompt keeps a's cell"


async def test_a_full_line_and_a_wait_that_is_too_long_say_how_many_wait_and_why(
    short_dir: Path,
) -> None:
    limits = '[limits]\nmax_waiting = 2\nwait_timeout = "1s"\n'
    eggs = [
        egg(short_dir, name="a", bee=MANY, extra=QUICK),
        egg(short_dir, name="b", extra=limits + QUICK),
    ]
    async with served(short_dir, *eggs, model="a") as (_, _, asker):
        long = asker.prompt(modelId="a", text=ENDLESS)
        await speaks(asker, long)
        waiting = [asker.prompt(modelId="b", text="hi") for _ in range(2)]
        slots = 256 + 64
        await asker.ask("hi", "b", sampling={"n": 2})  # refused behind those two
        more = [asker.prompt(modelId="b", text="hi") for _ in range(slots + 3)]
        answers = await asyncio.gather(*(asker.collect(sid, WAIT) for sid in [*waiting, *more]))
        errors = [ended(answer) for answer in answers]
        assert {error["code"] for error in errors} == {"no_capacity"}
        why = "all cells of [bee] max_procs = 1 are in use (a: 1 prompts run and 0 wait)"
        assert {e["message"] for e in errors if why not in e["message"]} == set()
        assert any("prompts wait for b already" in error["message"] for error in errors)
        assert any("waited 1 s for a slot of 'b'" in error["message"] for error in errors)


async def test_a_cell_that_loads_is_not_evicted_and_a_prompt_that_gave_up_evicts_nothing(
    short_dir: Path,
) -> None:
    eggs = trio(short_dir, "ab", fake={"ready_after": 1.0})
    async with served(short_dir, *eggs, model="a") as (_, bee, asker):
        first = asker.prompt(modelId="a", text="hi")
        await until(lambda: bool(bee.events("worker.cell.spawned")))
        asker.cancel(first)
        assert ended(await asker.collect(first, WAIT))["finishReason"] == "cancelled"
        second = asker.prompt(modelId="b", text="hi")
        assert (await asker.collect(second, WAIT)).complete
        ready = [entry["cell"] for entry in bee.events("worker.cell.ready")]
        assert ready == ["a-1", "b-1"]
        third = asker.prompt(modelId="b", text=fake(tokens=200, rate=100))
        await speaks(asker, third)
        gave_up = asker.prompt(modelId="a", text="hi")
        asker.cancel(gave_up)
        assert ended(await asker.collect(gave_up, WAIT))["finishReason"] == "cancelled"
        assert (await asker.ask("hi", "b", timeout=WAIT)).complete
        asker.cancel(third)
        await asker.collect(third, WAIT)
        assert gone(bee) == ["a-1"]


async def test_a_drain_ends_prompts_that_wait_for_room_at_once(short_dir: Path) -> None:
    heard: list[Tone] = []
    eggs = trio(short_dir, "ab")
    async with served(short_dir, *eggs, model="a") as (humd, bee, asker):
        assert isinstance(humd, FakeHumd)
        long = asker.prompt(modelId="a", text=fake(tokens=150, rate=100))
        await speaks(asker, long)
        waiting = asker.prompt(modelId="b", text="hi")
        humd.tap = lambda hive, tone: heard.append(tone)
        await asker.ask("", "a", sid="order", timeout=WAIT)  # b's prompt has been read
        stopping = asyncio.create_task(bee.stop())
        assert ended(await asker.collect(waiting, WAIT))["code"] == "shutting_down"
        assert ended(await asker.collect(long, WAIT))["chi"] == "finish"
        assert await stopping == 0
        assert [cell[0] for cell in gone(bee)] == ["a"]
