"""Progress is life: an engine that does not get on with its turns is found out and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hum_workers.frames import Frame, Mmm
from hum_workers.tender.progress import LONGEST_QUIET, Progress
from hum_workers.tender.upstream import Upstream
from tests.tenders import Tender, chat, spec, tender

SOON = 0.6


async def stalled(it: Tender, *turns: int) -> dict[str, Any]:
    for turn in turns:
        kind, data = await it.ended(turn)
        assert (kind, data["code"]) == (Mmm.ERROR, "stalled")
        assert f"no step of the engine for {SOON:g} s" in data["message"]
        assert [kind for kind, _ in it.events(turn) if kind >= Mmm.FINISH] == [Mmm.ERROR]
    gone = await it.gone()
    assert (gone["cause"], gone["asked"], gone["left"]) == ("stalled", False, [])
    return gone


@pytest.mark.parametrize("hang", ["before", "head", "mid_stream"])
async def test_a_turn_that_gets_nothing_more_ends_the_engine_prefill_included(
    hang: str, short_dir: Path
) -> None:
    async with tender(short_dir, spec(short_dir, stall_timeout=SOON)) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=9, hang=hang))
        it.send(Frame.FEED, 2, chat(tokens=9, hang=hang))
        await stalled(it, 1, 2)


async def test_an_engine_that_answers_no_question_about_itself_stalls_too(short_dir: Path) -> None:
    raised = spec(short_dir, {"hang_at": "metrics"}, stall_timeout=SOON)
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=9, hang="mid_stream"))
        await it.ended(1)
        assert (await it.gone())["cause"] == "stalled"


async def test_an_engine_whose_own_count_moves_is_not_ended(short_dir: Path) -> None:
    raised = spec(short_dir, stall_timeout=SOON)
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        other = Upstream(Path(raised.uds))
        done: list[int] = []
        stream = other.stream(
            raised.chat_path,
            chat(tokens=100, rate=50),
            lambda kind, data: done.append(kind) if kind == Mmm.FINISH else None,
        )
        it.send(Frame.FEED, 1, chat(tokens=9, hang="head"))
        await it.until(lambda: bool(done))
        assert it.of(Frame.GONE) == []
        assert it.events(1) == []
        stream.close()
        await other.close()
        await stalled(it, 1)


async def test_a_steady_stream_lasts_longer_than_the_timeout(short_dir: Path) -> None:
    async with tender(short_dir, spec(short_dir, stall_timeout=SOON)) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=30, rate=10))
        assert (await it.ended(1))[0] == Mmm.FINISH


async def test_the_stacks_go_to_the_engines_log_by_py_spy(short_dir: Path) -> None:
    tools = short_dir / "bin"
    tools.mkdir()
    script = tools / "py-spy"
    script.write_text('#!/bin/sh\necho "stacks of $*"; exec head -c 1000000 /dev/zero\n')
    script.chmod(0o755)
    log = short_dir / "engine.log"
    raised = spec(short_dir, {"children": 2}, stall_timeout=SOON, log_file=str(log))
    raised.env["PATH"] = f"{tools}:{raised.env['PATH']}"
    async with tender(short_dir, raised) as it:
        _, facts = await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=9, hang="head"))
        gone = await stalled(it, 1)
        assert gone["stacks"] == "by py-spy"
    text = log.read_text()
    assert f"stacks of dump --pid {facts['pid']}\n" in text
    assert text.count("stacks of dump --pid") == 3
    assert len(text) < 4 * 70_000


async def test_without_py_spy_a_python_writes_its_stacks_itself(short_dir: Path) -> None:
    log = short_dir / "engine.log"
    raised = spec(short_dir, stall_timeout=SOON, log_file=str(log))
    raised.env["PYTHONFAULTHANDLER"] = "1"
    async with tender(short_dir, raised) as it:
        await it.first(Frame.READY)
        it.send(Frame.FEED, 1, chat(tokens=9, hang="head"))
        gone = await stalled(it, 1)
    if gone["stacks"] == "by faulthandler":  # else py-spy is installed here
        assert "Fatal Python error: Aborted" in log.read_text()


def test_time_counts_only_with_work_and_from_the_last_sign() -> None:
    it = Progress(100, 0)
    assert it.quiet == LONGEST_QUIET
    it.beat(90, 0, busy=False)
    it.beat(189, 0, busy=True)
    assert not it.stalled(189)
    assert it.stalled(190)
    it.beat(190, 1, busy=True)
    assert not it.stalled(289)


def test_counters_are_read_only_after_a_while_without_events() -> None:
    it = Progress(8, 0)
    it.beat(0, 1, busy=True)
    assert not it.due(1.9)
    assert it.due(2)
    it.counters(2, {"steps": 5})
    assert not it.due(3.9)
    it.counters(4, {"steps": 5})
    assert it.stalled(8)
    it.counters(8, {"steps": 6})
    assert not it.stalled(15)
    it.counters(15, None)
    assert it.stalled(16)


def test_no_timeout_is_no_judgement() -> None:
    it = Progress(0, 0)
    assert not it.due(1e9)
    assert not it.stalled(1e9)
