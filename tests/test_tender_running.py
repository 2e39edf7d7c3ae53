"""A running engine behind its tender: cancels proven by gauges, vitals, the memory limit."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from pathlib import Path
from typing import Any

from hum_workers.frames import Frame, Mmm
from hum_workers.process import confine
from tests.tenders import Tender, chat, spec, tender

HOG = "x = bytearray({size}); import time; time.sleep(60)"


async def cancelled(it: Tender, turn: int) -> list[object]:
    await it.until(lambda: any(frame[1] == turn for frame in it.of(Frame.CANCELLED)))
    return next(frame for frame in it.of(Frame.CANCELLED) if frame[1] == turn)


async def test_a_cancel_ends_the_turn_with_its_usage_and_the_gauges_prove_it(
    short_dir: Path,
) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=10_000, rate=100))
        it.send(Frame.FEED, 2, chat(tokens=60, rate=100))
        await it.until(lambda: len(it.text(1).split()) > 3)
        it.send(Frame.CANCEL, 1)
        it.send(Frame.CANCEL, 1)
        kind, data = await it.ended(1)
        assert (kind, data["reason"]) == (Mmm.FINISH, "cancelled")
        assert data["usage"]["output"] >= len(it.text(1).split())
        _, turn, confirmed, seconds = await cancelled(it, 1)
        assert (turn, confirmed) == (1, True)
        assert isinstance(seconds, float)
        assert (await it.ended(2))[1]["reason"] == "stop"
        assert len(it.text(2).split()) == 60
        assert len(it.of(Frame.CANCELLED)) == 1
        assert [kind for kind, _ in it.events(1) if kind >= Mmm.FINISH] == [Mmm.FINISH]


async def test_a_turn_that_has_no_event_yet_is_cancelled_all_the_same(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        scripts: list[dict[str, Any]] = [{"hang": "before"}, {"hang": "head"}, {"prefill": 60}]
        for turn, script in enumerate(scripts, 1):
            it.send(Frame.FEED, turn, chat(tokens=5, **script))
            it.send(Frame.CANCEL, turn)
            kind, data = await it.ended(turn)
            assert (kind, data["reason"]) == (Mmm.FINISH, "cancelled")
            assert (await cancelled(it, turn))[2] is True


async def test_many_cancels_at_once_are_all_confirmed(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        for turn in range(1, 101):
            it.send(Frame.FEED, turn, chat(tokens=10_000, rate=20))
        await it.until(lambda: all(it.text(turn) for turn in range(1, 101)))
        for turn in range(1, 101):
            it.send(Frame.CANCEL, turn)
        await it.until(lambda: len(it.of(Frame.CANCELLED)) == 100)
        assert all(frame[2] for frame in it.of(Frame.CANCELLED))


async def test_an_engine_that_works_on_is_found_out(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir, cancel_confirm=0.3)) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=10_000, rate=100, keep=True))
        await it.until(lambda: bool(it.text(1)))
        it.send(Frame.CANCEL, 1)
        assert (await it.ended(1))[1]["reason"] == "cancelled"
        _, turn, confirmed, seconds = await cancelled(it, 1)
        assert (turn, confirmed) == (1, False)
        assert isinstance(seconds, float)
        assert seconds > 0.3


async def test_a_cancel_may_take_the_steps_that_the_spec_gives_it(short_dir: Path) -> None:
    steps = ["vllm:iteration_tokens_total_count"]
    raised = spec(short_dir, cancel_confirm=0.0, cancel_steps=20, progress_counters=steps)
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=10_000, rate=50, keep=True))
        it.send(Frame.FEED, 2, chat(tokens=10_000, rate=50))
        await it.until(lambda: bool(it.text(1)) and bool(it.text(2)))
        it.send(Frame.CANCEL, 1)
        _, _, confirmed, seconds = await cancelled(it, 1)
        assert confirmed is False
        assert isinstance(seconds, float)
        assert seconds > 0.3  # 20 steps at 50 a second


async def test_an_engine_that_keeps_a_cancelled_turn_is_ended_where_the_spec_says_so(
    short_dir: Path,
) -> None:
    raised = spec(short_dir, cancel_confirm=0.1, cancel_recycles=True)
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=10_000, rate=100, keep=True))
        it.send(Frame.FEED, 2, chat(tokens=10_000, rate=100))
        await it.until(lambda: bool(it.text(1)) and bool(it.text(2)))
        it.send(Frame.CANCEL, 1)
        kind, data = await it.ended(2)
        assert (kind, data["code"]) == (Mmm.ERROR, "cell_died")  # asked again if it has no text
        _, gone = await it.first(Frame.GONE)
        assert gone["cause"] == "cancel"
        assert "kept a cancelled turn" in gone["reason"]


async def test_an_engine_without_a_step_since_a_cancel_is_ended_once_a_reload_had_been_over(
    short_dir: Path,
) -> None:
    raised = spec(
        short_dir,
        cancel_confirm=0.1,
        cancel_steps=4,
        cancel_recycles=True,
        progress_counters=["vllm:num_requests_waiting"],  # one that never moves
        stall_timeout=60.0,
    )
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=10_000, rate=100, keep=True))
        await it.until(lambda: bool(it.text(1)))
        it.send(Frame.CANCEL, 1)
        assert (await cancelled(it, 1))[2] is False
        _, gone = await it.first(Frame.GONE)
        assert gone["cause"] == "cancel"
        assert "kept a cancelled turn" in gone["reason"]


async def test_gauges_that_can_not_be_read_prove_nothing(short_dir: Path) -> None:
    raised = spec(short_dir, cancel_confirm=0.2, metrics_path="/nothing")
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=10_000, rate=100))
        await it.until(lambda: bool(it.text(1)))
        it.send(Frame.CANCEL, 1)
        assert (await cancelled(it, 1))[2] is False


async def test_a_cancel_after_the_end_says_nothing(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=2))
        await it.ended(1)
        it.send(Frame.CANCEL, 1)
        it.send(Frame.FEED, 2, chat(tokens=2))
        await it.ended(2)
        assert it.of(Frame.CANCELLED) == []
        assert [kind for kind, _ in it.events(1) if kind >= Mmm.FINISH] == [Mmm.FINISH]


async def test_vitals_count_the_whole_tree(short_dir: Path) -> None:
    raised = spec(short_dir, {"children": 3, "double_fork": True})
    async with tender(short_dir, raised) as it:
        _, facts = await it.first(Frame.READY)
        await it.until(lambda: bool(it.of(Frame.VITALS)) and it.vitals()["processes"] == 5)
        vitals = it.vitals()
        assert vitals["pid"] == facts["pid"]
        assert vitals["rss_bytes"] > 20 << 20
        assert vitals["peak_rss_bytes"] >= vitals["rss_bytes"]
        assert vitals["fd_count"] > 10
        assert vitals["cpu_ms"] > 0
        count = len(it.of(Frame.VITALS))
        await it.until(lambda: len(it.of(Frame.VITALS)) > count)
        assert it.vitals()["sampled_at_ms"] > vitals["sampled_at_ms"]
        assert it.vitals()["cpu_ms"] >= vitals["cpu_ms"]


def hog(size: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", HOG.format(size=size)]


async def test_memory_over_the_limit_is_watched_where_no_cgroup_holds_it(short_dir: Path) -> None:
    raised = spec(short_dir, argv=hog(200 << 20), memory=100 << 20, cgroup="off")
    async with tender(short_dir, raised) as it:
        gone = await it.gone()
        assert (gone["signal"], gone["asked"], gone["oom_kills"]) == (9, False, 0)
        assert f"over the {100 << 20} of [limits] memory" in gone["reason"]
        assert "the tender's own watch" in it.of(Frame.STAGE)[0][2]


async def test_memory_over_the_limit_of_a_cgroup_is_the_kernels_kill(short_dir: Path) -> None:
    raised = spec(short_dir, argv=hog(200 << 20), memory=100 << 20)
    watched = confine.plan(confine.survey(), memory=100 << 20).memory_watched
    async with tender(short_dir, raised) as it:
        gone = await it.gone()
        assert gone["signal"] == 9
        assert (gone["oom_kills"] > 0) is not watched


async def test_a_bee_that_does_not_read_loses_nothing(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir)) as it:
        await it.first(Frame.READY)
        assert it.process.stdout is not None
        pipe = it.process.stdout._transport  # type: ignore[attr-defined]
        pipe.pause_reading()
        for turn in (1, 2):
            it.send(Frame.FEED, turn, chat(tokens=100, event_bytes=100_000))
        async with asyncio.timeout(10):
            while waiting(pipe.get_extra_info("pipe").fileno()) < 1 << 15:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        pipe.resume_reading()
        for turn in (1, 2):
            await it.ended(turn)
            assert len(it.text(turn)) == 100 * 100_000


def waiting(fd: int) -> int:
    """Returns the bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
