"""Figures: counts of turns and cells under a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from hum_workers.cells.blame import Diagnosis
from hum_workers.cells.emerged import Emerged, verdict
from hum_workers.errors import ErrorCode, TurnError
from hum_workers.figures.counts import LATENCY, Death, EggFigures, Histogram, LastDeath
from hum_workers.frames import Mmm
from hum_workers.thrum.pacer import Pacer
from hum_workers.turns.reply import Reply


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def egg(clock: Clock) -> EggFigures:
    return EggFigures(now=clock)


def filled(histogram: Histogram) -> dict[float, int]:
    """The buckets that are not empty, by upper bound."""
    bounds = (*histogram.bounds, float("inf"))
    return {bound: n for bound, n in zip(bounds, histogram.counts, strict=True) if n}


def test_a_value_on_a_bound_is_below_it_and_one_above_all_has_a_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert filled(histogram) == {1.0: 1, 2.0: 2, float("inf"): 1}
    assert (histogram.count, histogram.sum) == (4, 103.5)


def test_the_first_piece_is_time_to_first_token_the_others_are_between(
    egg: EggFigures, clock: Clock
) -> None:
    turn = egg.turn()
    clock.wait(0.4)
    turn.admitted()
    tick = turn.ticker()
    clock.wait(0.4)
    tick()
    for _ in range(3):
        clock.wait(0.02)
        tick()
    assert filled(egg.queue) == {0.5: 1}
    assert filled(egg.first_token) == {1.0: 1}
    assert filled(egg.between_tokens) == {0.025: 3}
    assert egg.first_token.sum == pytest.approx(0.8)
    assert egg.between_tokens.sum == pytest.approx(0.06)


def test_a_stream_that_goes_on_after_a_tool_counts_the_tool_as_neither(
    egg: EggFigures, clock: Clock
) -> None:
    turn = egg.turn()
    turn.ticker()()
    clock.wait(20)
    tick = turn.ticker(resumed=True)
    tick()
    clock.wait(0.02)
    tick()
    assert egg.first_token.count == 1
    assert filled(egg.between_tokens) == {0.025: 1}


def test_a_turn_counts_once_under_its_ending(egg: EggFigures, clock: Clock) -> None:
    turn = egg.turn()
    other = egg.turn()
    assert egg.open_turns == 2
    clock.wait(3)
    turn.ended("length", {"input": 5, "cached": 7, "output": 11})
    turn.ended("cell_died", {"input": 5, "cached": 7, "output": 11})
    other.ended("bad_prompt", None)
    assert egg.turns == {"length": 1, "bad_prompt": 1}
    assert egg.open_turns == 0
    assert (egg.input_tokens, egg.cached_tokens, egg.output_tokens) == (5, 7, 11)
    assert filled(egg.turn_seconds) == {5.0: 2}


def test_a_usage_without_cached_tokens_counts(egg: EggFigures) -> None:
    egg.turn().ended("stop", {"input": 1, "output": 2, "cached": None})
    egg.turn().ended("stop", {"input": 1, "output": 2})
    assert (egg.input_tokens, egg.cached_tokens, egg.output_tokens) == (2, 0, 4)


def test_a_cancel_counts_by_whether_it_was_proven(egg: EggFigures) -> None:
    egg.cancelled(True, 0.2)
    egg.cancelled(False, 10.0)
    assert (egg.cancel_confirm.count, egg.cancels_unconfirmed) == (1, 1)


def test_the_last_death_is_one_that_nobody_asked_for(egg: EggFigures) -> None:
    died = LastDeath(cell="a-1", death=Death.KILLED, reason="killed", at=1.0)
    egg.died(died, 9)
    egg.died(LastDeath(cell="a-2", death=Death.STOPPED, reason="as asked", at=2.0), 15)
    egg.evicted("idle")
    assert egg.deaths == {Death.KILLED: 1, Death.STOPPED: 1}
    assert (egg.kills, egg.last_death, egg.evictions) == (1, died, {"idle": 1})


def gone(**facts: object) -> dict[str, object]:
    """The last frame of a tender."""
    return {
        **{"code": None, "signal": None, "reason": "", "asked": False, "left": []},
        **{"lines": [], "oom_kills": 0, "seconds": 1.0, "cause": "", "stacks": "", "swept": []},
        **{"fallen": None, "host_ooms": 0, "peak_rss_bytes": 0},
        **facts,
    }


@pytest.mark.parametrize(
    ("frame", "was_ready", "death"),
    [
        (gone(code=0, asked=True), True, Death.STOPPED),
        (gone(code=1), False, Death.START_FAILED),
        (gone(code=0), True, Death.EXIT),
        (gone(signal=9), True, Death.KILLED),
        (gone(signal=11), True, Death.SIGNAL),
        (gone(signal=9, oom_kills=1), True, Death.MEMORY),
        (gone(signal=9, reason="over", cause="memory"), True, Death.MEMORY),
        (gone(reason="the tender failed", cause="tender"), True, Death.TENDER),
        (None, True, Death.TENDER),
        (None, False, Death.TENDER),
    ],
)
def test_each_end_of_a_cell_has_a_class(
    frame: dict[str, object] | None, was_ready: bool, death: Death
) -> None:
    emerged = verdict(
        frame,
        tender_status=-9,
        orphans=[],
        asked=False,
        killed=False,
        was_ready=was_ready,
        diagnose=lambda lines: Diagnosis(""),
    )
    assert emerged.death is death


def test_an_end_that_was_asked_for_is_a_stop_whatever_it_looks_like() -> None:
    assert Emerged(asked=True, signal=9).death is Death.STOPPED


def test_a_reply_tells_its_one_ending_and_no_pulse_after_it() -> None:
    pacer = Pacer(0, 1, lambda: 0.0, "test")
    endings: list[tuple[str, object]] = []
    reply = Reply("s", pacer.outbox("s", lambda: None))
    reply.on_end = lambda ending, usage: endings.append((ending, usage))
    reply.pulse("cell-ready", "a-1", 7)
    reply.write(Mmm.TEXT, "hi")
    reply.write(Mmm.TEXT, " you")
    usage = {"input": 1, "output": 2, "cached": 0}
    reply.finish("tool_calls", usage)
    reply.fail(TurnError(ErrorCode.CELL_DIED, "too late"))
    reply.pulse("cell-died", "a-1", 7)
    lines = pacer.take().splitlines()
    assert endings == [("tool_use", usage)]
    assert lines[0] == (b'{"chi":"pulse","sid":"s","kind":"cell-ready","cellId":"a-1","pid":7}')
    assert b"finish" in lines[-1]
    assert (pacer.sent, pacer.merged) == (len(lines), 1)


def test_a_finish_that_hum_does_not_know_counts_as_the_error_it_becomes() -> None:
    endings: list[str] = []
    reply = Reply("s", Pacer(0, 1, lambda: 0.0, "test").outbox("s", lambda: None))
    reply.on_end = lambda ending, usage: endings.append(ending)
    reply.finish("weird", None)
    assert endings == ["engine_error"]


def test_buckets_rise() -> None:
    assert list(LATENCY) == sorted(set(LATENCY))


async def test_a_tick_needs_no_loop_and_no_lock() -> None:
    egg = EggFigures()
    tick = egg.turn().ticker()
    tick()
    await asyncio.sleep(0)
    tick()
    assert (egg.first_token.count, egg.between_tokens.count) == (1, 1)
