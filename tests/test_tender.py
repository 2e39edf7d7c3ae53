"""The tender as a program: from `raise` to `gone`, and every way in which it may be left alone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from hum_workers.frames import Frame, Mmm, pack
from hum_workers.process import proc
from tests.leftovers import all_end, processes
from tests.tenders import chat, spec, tender

WAYS = [("namespace", "auto"), ("guard", "off")]
WILD = {"double_fork": True, "ignore_sigterm": True, "children": 3}


async def test_an_engine_is_raised_fed_and_silenced(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        _, facts = await it.first(Frame.READY)
        assert facts["models"] == ["echo"]
        assert facts["max_model_len"] == 1_000_000
        assert 0 < facts["seconds"] < 20
        assert "serve" in (proc.read_bytes(f"/proc/{facts['pid']}/cmdline") or b"").decode()
        stages = [stage for _, stage, _ in it.of(Frame.STAGE)]
        assert stages[0] == "spawned"
        assert stages[-3:] == ["listening", "canary 1 of 2", "canary 2 of 2"]
        assert "loading weights" in stages
        it.send(Frame.FEED, 1, chat(tokens=3))
        kind, data = await it.ended(1)
        assert it.text(1) == "w0 w1 w2"
        assert (kind, data["reason"], data["usage"]["output"]) == (Mmm.FINISH, "stop", 3)
        it.send(Frame.SILENCE, 5.0, "enough")
        gone = await it.gone()
        assert (gone["code"], gone["signal"], gone["asked"]) == (0, None, True)
        assert (gone["reason"], gone["left"], gone["oom_kills"]) == ("enough", [], 0)
        assert any("Application startup complete" in line for line in gone["lines"])
    assert not (short_dir / "cell").exists()


async def test_turns_run_side_by_side_and_each_has_one_ending(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        for turn in range(1, 21):
            it.send(Frame.FEED, turn, chat(tokens=50, rate=500))
        for turn in range(1, 21):
            await it.ended(turn)
            assert it.text(turn).split() == [f"w{n}" for n in range(50)]
            assert [kind for kind, _ in it.events(turn) if kind >= Mmm.FINISH] == [Mmm.FINISH]


@pytest.mark.parametrize(("how", "cgroup"), WAYS)
@pytest.mark.parametrize("moment", ["loading", "ready"])
async def test_the_end_of_its_input_kills_everything_at_once(
    how: str, cgroup: str, moment: str, short_dir: Path
) -> None:
    wishes = WILD | ({"hang_at": "load"} if moment == "loading" else {})
    async with tender(short_dir, spec(short_dir, wishes, confine=how, cgroup=cgroup)) as it:
        if moment == "loading":
            await it.stage("engine")
        else:
            await it.first(Frame.READY)
            it.send(Frame.FEED, 1, chat(tokens=10_000, rate=50))
            await it.until(lambda: bool(it.text(1)))
        await it.until(lambda: bool(it.of(Frame.VITALS)) and it.vitals()["processes"] == 5)
        it.leave()
        async with asyncio.timeout(5):
            assert await it.process.wait() == 0
        assert processes(short_dir) == []
    assert not (short_dir / "cell").exists()


@pytest.mark.parametrize(("how", "cgroup"), WAYS)
async def test_sigkill_of_the_tender_takes_the_tree_along(
    how: str, cgroup: str, short_dir: Path
) -> None:
    async with tender(short_dir, spec(short_dir, WILD, confine=how, cgroup=cgroup)) as it:
        await it.first(Frame.READY)
        tree = processes(short_dir)
        assert len(tree) >= 5
        it.process.kill()
        await all_end(tree)


async def test_polite_signals_to_the_tender_alone_change_nothing(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.stage("spawned")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            it.process.send_signal(number)
        await it.first(Frame.READY)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.killpg(it.process.pid, number)
        it.send(Frame.FEED, 1, chat(tokens=2))
        assert (await it.ended(1))[0] == Mmm.FINISH


async def test_rubbish_on_its_input_is_the_end(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        it.write(b"\xc1 this is no frame")
        async with asyncio.timeout(10):
            assert await it.process.wait() == 0
        assert processes(short_dir) == []


async def test_frames_that_it_does_not_know_are_ignored(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        for frame in (["dance"], [Frame.FEED, "one", b""], [Frame.CANCEL], [17], [Frame.CANCEL, 9]):
            it.send(*frame)
        it.send(Frame.RAISE, spec(short_dir).to_wire())
        it.send(Frame.FEED, 1, chat(tokens=2))
        assert (await it.ended(1))[0] == Mmm.FINISH
        assert it.stderr().count("frame ignored") == 5


async def test_a_feed_before_the_engine_is_ready_ends_with_one_error(short_dir: Path) -> None:
    async with tender(short_dir) as it:
        it.send(Frame.FEED, 1, chat(tokens=2))
        kind, data = await it.ended(1)
        assert (kind, data["code"]) == (Mmm.ERROR, "cell_died")
        it.send(Frame.RAISE, spec(short_dir, {"hang_at": "load"}).to_wire())
        await it.stage("engine")
        it.send(Frame.FEED, 2, chat(tokens=2))
        kind, data = await it.ended(2)
        assert (kind, data["code"]) == (Mmm.ERROR, "engine_error")
        it.send(Frame.SILENCE, 0, "enough")
        assert (await it.gone())["asked"]


async def test_silence_before_it_knows_what_to_raise_ends_it(short_dir: Path) -> None:
    async with tender(short_dir) as it:
        it.send(Frame.SILENCE, 5, "changed its mind")
        gone = await it.gone()
        assert gone["code"] is None
        assert "changed its mind" in gone["reason"]


async def test_a_spec_of_another_version_is_refused_by_name(short_dir: Path) -> None:
    async with tender(short_dir) as it:
        it.send(Frame.RAISE, spec(short_dir).to_wire() | {"warmth": 37})
        assert "unknown fields in the cell's spec: warmth" in (await it.gone())["reason"]
    async with tender(short_dir) as it:
        it.write(pack(Frame.RAISE, {"cell_id": "x"}))
        assert "incomplete cell spec" in (await it.gone())["reason"]


async def test_silence_while_it_loads_kills_without_grace(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir, WILD | {"hang_at": "load"})) as it:
        await it.stage("engine")
        it.send(Frame.SILENCE, 3600.0, "no longer wanted")
        gone = await it.gone()
        assert (gone["asked"], gone["reason"]) == (True, "no longer wanted")
        assert (gone["signal"], gone["left"]) == (signal.SIGKILL, [])


async def test_silence_closes_streams_first_so_that_the_engine_can_stop(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir, {"children": 2})) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=1, hang="head"))
        it.send(Frame.FEED, 2, chat(tokens=10_000, rate=50))
        await it.until(lambda: bool(it.text(2)))
        it.send(Frame.SILENCE, 3600.0, "enough")
        gone = await it.gone()
        assert (gone["code"], gone["asked"]) == (0, True)


async def test_an_engine_deaf_to_sigterm_is_killed_after_the_grace(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir, WILD)) as it:
        await it.first(Frame.READY)
        it.send(Frame.SILENCE, 0.2, "enough")
        it.send(Frame.SILENCE, 3600.0, "again")
        gone = await it.gone()
        assert (gone["signal"], gone["reason"]) == (signal.SIGKILL, "enough")


async def test_the_engines_death_is_told_with_its_last_lines(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=9, die="mid_stream"))
        gone = await it.gone()
        assert (gone["code"], gone["signal"], gone["asked"]) == (None, signal.SIGKILL, False)
        assert [kind for kind, _ in it.events(1) if kind >= Mmm.FINISH] == []


async def test_last_lines_longer_than_a_pipe_arrive_whole(short_dir: Path) -> None:
    wishes = {"flood": 1 << 20, "exit_at": {"stage": "engine", "code": 7, "line": "Oops: it broke"}}
    async with tender(short_dir, spec(short_dir, wishes)) as it:
        gone = await it.gone()
        assert gone["code"] == 7
        assert gone["lines"][-1] == "Oops: it broke"
        assert sum(map(len, gone["lines"])) > 200_000
