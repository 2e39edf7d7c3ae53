"""Parked conversations: bounds in number, bytes and age, the oldest first; and the talk in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hum_workers.fake_humd.wire import Tone
from hum_workers.frames import Mmm
from hum_workers.tools.call_id import CallIds, Owner
from hum_workers.tools.parking import Parking, ParkingLimits
from hum_workers.tools.step import Pieces, Step
from hum_workers.tools.tool import Tool
from hum_workers.turns.prompt import Prompt
from hum_workers.turns.sampling import Choice, Sampling
from hum_workers.turns.talk import AUTO, Talk
from tests.rig import WAIT, egg, ended, served
from tests.tool_stage import PARSER, QUOTE, calls, last_call, script, shape, tool

MIB = 1024 * 1024


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def parking(clock: Callable[[], float], most: int = 256, size: int = 64 * MIB) -> Parking:
    return Parking(ParkingLimits(most=most, age=3600, bytes=size), clock)


def talk(size: int = 100) -> Talk:
    return Talk(prompt=Prompt(sid="s", messages=[]), size=size)


def test_a_conversation_is_taken_once(clock: Clock) -> None:
    lot = parking(clock)
    kept = talk()
    assert lot.park("a", "s1", kept) == 0
    taken = lot.take("a")
    assert taken is not None
    assert (taken.talk, taken.sid) == (kept, "s1")
    assert lot.take("a") is None
    assert (len(lot), lot.bytes) == (0, 0)


def test_of_1000_the_newest_256_stay(clock: Clock) -> None:
    lot = parking(clock)
    for n in range(1000):
        lot.park(f"c{n}", f"s{n}", talk())
        clock.now += 0.01
    assert (len(lot), lot.bytes) == (256, 25_600)
    assert lot.take("c743") is None
    assert lot.take("c744") is not None
    assert lot.take("c999") is not None


def test_no_more_than_64_mib_stay(clock: Clock) -> None:
    lot = parking(clock)
    for n in range(100):
        lot.park(f"c{n}", "s", talk(MIB))
    assert (len(lot), lot.bytes) == (64, 64 * MIB)
    assert lot.take("c35") is None
    assert lot.take("c36") is not None
    assert lot.park("huge", "s", talk(65 * MIB)) == 64
    assert (len(lot), lot.bytes) == (0, 0)


def test_what_waits_an_hour_goes(clock: Clock) -> None:
    lot = parking(clock)
    lot.park("a", "s", talk())
    clock.now += 1800
    lot.park("b", "s", talk())
    assert lot.due() == 1800
    clock.now += 1799
    assert lot.expire() == 0
    clock.now += 1
    assert lot.take("a") is None
    assert lot.due() == 1800
    clock.now += 1800
    assert lot.expire() == 1
    assert (len(lot), lot.due()) == (0, None)


def test_a_sid_forgets_its_own_and_no_others(clock: Clock) -> None:
    lot = parking(clock)
    for call_id, sid in (("a", "s1"), ("b", "s2"), ("c", "s1")):
        lot.park(call_id, sid, talk())
    lot.forget("s1")
    lot.forget("nobody")
    assert [lot.take(call_id) is None for call_id in "abc"] == [True, False, True]
    lot.park("d", "s", talk())
    lot.clear()
    assert (len(lot), lot.bytes, lot.take("d")) == (0, 0, None)


MOVES = st.one_of(
    st.tuples(st.just("park"), st.integers(0, 5), st.integers(0, 300)),
    st.tuples(st.just("take"), st.integers(0, 40), st.just(0)),
    st.tuples(st.just("forget"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 2000), st.just(0)),
)


@given(st.lists(MOVES, max_size=60))
def test_the_bounds_hold_whatever_happens(moves: list[tuple[str, int, int]]) -> None:
    clock = Clock()
    lot = parking(clock, most=5, size=1000)
    kept: dict[str, tuple[int, int, float]] = {}
    for n, (move, number, size) in enumerate(moves):
        if move == "park":
            lot.park(f"c{n}", f"s{number}", talk(size))
            kept[f"c{n}"] = (number, size, clock.now)
        elif move == "take":
            taken = lot.take(f"c{number}")
            assert taken is None or kept.pop(f"c{number}")[2] > clock.now - 3600
        elif move == "forget":
            lot.forget(f"s{number}")
            kept = {c: k for c, k in kept.items() if k[0] != number}
        else:
            clock.now += number
        lot.expire()
        left = [c for c in kept if kept[c][2] > clock.now - 3600]
        while len(left) > 5 or sum(kept[c][1] for c in left) > 1000:
            left.pop(0)
        kept = {c: kept[c] for c in left}
        assert len(lot) == len(kept)
        assert lot.bytes == sum(size for _, size, _ in kept.values())


def step(*arguments: str) -> Step:
    pieces = Pieces()
    for n, one in enumerate(arguments):
        pieces.add(Mmm.TOOL, {"index": n, "id": "", "name": "mine", "arguments": one})
    tools = {"mine": Tool("mine", "", {"type": "object"}, Owner.ASKER)}
    made = pieces.step("tool_calls", tools, CallIds(b"0" * 32))
    assert made is not None
    return made


def test_a_talk_goes_on_with_results_and_then_the_words() -> None:
    asked = [{"role": "user", "content": "u"}]
    sampling = Sampling(choice=Choice("required"))
    begun = Talk(prompt=Prompt(sid="s", messages=asked, sampling=sampling))
    held = begun.stepped(step("{}"), cell_id="c-1", request=500)
    assert held.size > 500
    assert held.step is not None
    (call,) = held.step.calls
    told = held.answered({call.call_id: "é" * 10}).told(
        [{"role": "system", "content": "no"}, {"role": "user", "content": "w"}]
    )
    assert told.size >= held.size + 20
    closed = told.closed()
    assert [m["role"] for m in closed.prompt.messages] == ["user", "assistant", "tool", "user"]
    assert closed.prompt.sampling.choice == AUTO
    assert (closed.step, closed.words, closed.closed()) == (None, (), closed)
    assert begun.prompt.messages == asked, "and what was asked is as it was"


def test_a_choice_stays_as_long_as_no_call_could_be_made() -> None:
    sampling = Sampling(choice=Choice("required"))
    begun = Talk(prompt=Prompt(sid="s", messages=[], sampling=sampling))
    wrong = begun.stepped(step("["), cell_id="c", request=0).closed()
    assert wrong.prompt.sampling.choice == Choice("required")


BOUNDS = '[tools]\nparked_max = 3\nparked_bytes = "200KB"\nparked_age = "5s"'


async def test_a_bee_keeps_the_bounds_of_its_egg(short_dir: Path) -> None:
    """Number, bytes and age, seen by who comes with a late result."""
    mine: dict[str, Any] = {"tools": [tool("mine")]}
    text = script(calls(("mine", {})), QUOTE)
    async with served(short_dir, egg(short_dir, model=PARSER, extra=BOUNDS)) as (_, bee, asker):

        async def park(**fields: Any) -> Tone:
            return last_call(await asker.ask(text, "echo", timeout=WAIT, **mine, **fields))

        async def late(call: Tone) -> list[str]:
            sid = call["sid"]
            result = {"chi": "tool-result", "sid": sid, "callId": call["callId"], "result": "x"}
            asker.send(result)
            return shape((await asker.collect(sid, WAIT)).tones)

        made = [await park() for _ in range(4)]
        assert await late(made[0]) == ["error tool_call_expired"]
        assert (await late(made[3]))[-1] == "finish stop"
        await park(systemPrompt="y" * 250_000)
        assert await late(made[2]) == ["error tool_call_expired"]
        again = await park()
        async with asyncio.timeout(WAIT):
            while not bee.events("worker.tool.parked_expired"):  # noqa: ASYNC110 - it is a file
                await asyncio.sleep(0.05)
        answer = await late(again)
    assert answer == ["error tool_call_expired"]
    dropped = bee.events("worker.tool.parked_dropped")
    assert [entry["count"] for entry in dropped] == [1, 3]


async def test_1000_parked_calls_leave_256_and_every_other_result_its_error(
    short_dir: Path,
) -> None:
    mine: dict[str, Any] = {"tools": [tool("mine")]}
    text = script(calls(("mine", {})), QUOTE)
    batch = 50  # what humd can hold for the bee beside the answers
    async with served(short_dir, egg(short_dir, model=PARSER)) as (_, bee, asker):
        made: list[Tone] = []
        for _ in range(0, 1000, batch):
            sids = [
                asker.prompt(modelId="echo", text=text, systemPrompt="y" * 8192, **mine)
                for _ in range(batch)
            ]
            made += [last_call(await asker.collect(sid, WAIT)) for sid in sids]
        endings: list[Tone] = []
        for at in range(0, 1000, batch):
            for call in made[at : at + batch]:
                result = {"chi": "tool-result", "sid": call["sid"], "callId": call["callId"]}
                asker.send({**result, "result": "x"})
            some = made[at : at + batch]
            endings += [ended(await asker.collect(call["sid"], WAIT)) for call in some]
    codes = [tone.get("code", "") for tone in endings]
    assert (codes.count("tool_call_expired"), codes.count("")) == (744, 256)
    # Within a batch, the turns ended in an order of their own.
    assert set(codes[:700]) == {"tool_call_expired"}
    assert set(codes[-250:]) == {""}
