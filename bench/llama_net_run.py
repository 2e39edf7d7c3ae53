"""What is done to three machines, and what became of it: links cut and mended, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from bench.llama_net_stage import (
    MODEL,
    SLICES,
    STRANGER,
    WIRE,
    WORKER,
    Machine,
    Stage,
    coordinator_egg,
    once,
)
from hum_workers.fake_humd.wire import Tone
from scripts.rehearsal import RehearsalError

STORY = "Tell me a long story about a bee that travels around the world."
LEASE, DEAD = 20.0, 10.0
"""Seconds after which an unrenewed lease and a silent connection are over."""
RIDDEN_OUT = 6.0
"""Seconds that a stream outlasts on any kernel."""
PATIENCE = 60.0
DONE = 5.0
"""Seconds in which the door is done with any stranger."""


class Reader:
    """Reads one stream of the front machine and notes when each piece came."""

    def __init__(self, stage: Stage, tokens: int) -> None:
        sampling = {"maxTokens": tokens, "temperature": 0, "ignoreEos": True}
        self.sid = stage.asker.prompt(text=STORY, modelId=MODEL, sampling=sampling)
        self.ending: Tone | None = None
        self.endings = 0
        self.times = [monotonic()]
        self.begun = asyncio.Event()
        self._stage = stage
        self._task = asyncio.create_task(self._read(), name="reader")

    @property
    def over(self) -> bool:
        """Whether it has its ending."""
        return self.ending is not None

    def gap(self, since: float) -> float:
        """Returns the longest silence that ended after `since`."""
        times = [at for at in self.times if at >= since]
        before = max((at for at in self.times if at < since), default=since)
        return max((b - a for a, b in zip([before, *times], times, strict=False)), default=0.0)

    async def end(self, timeout: float) -> Tone:
        """Returns the ending.

        Raises:
            RehearsalError: it does not come.
        """
        done, _ = await asyncio.wait({self._task}, timeout=timeout)
        if not done or self.ending is None:
            raise RehearsalError(f"the stream had no ending after {timeout:g} s")
        return self.ending

    async def cancel(self) -> None:
        """Ends it."""
        if not self.over:
            self._stage.asker.cancel(self.sid)
            await self.end(PATIENCE)

    async def _read(self) -> None:
        async for tone in self._stage.asker.stream(self.sid):
            self.times.append(monotonic())
            if tone["chi"] == "chunk":
                self.begun.set()
            elif tone["chi"] in ("finish", "error"):
                self.ending = tone
                self.begun.set()


@dataclass(kw_only=True)
class Cut:
    """A link that was away. Seconds from the cut, if not said otherwise; None: did not happen."""

    seconds: float
    ending: str = ""
    """`finish`, or the message of the error."""
    gap: float = 0.0
    """The longest silence of the stream."""
    error: float | None = None
    withdrawn: float | None = None
    lease_over: float | None = None
    recycled: float | None = None
    serving: float | None = None
    """From the link's return to the end of the next answer, short as it is."""
    faults: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Knock:
    """One stranger, as it was treated and told of."""

    name: str
    how: str
    seconds: float
    line: str
    """What the slice's bee said of it."""


@dataclass(kw_only=True)
class Strangers:
    """All of them, and the stream beside which they came."""

    knocks: list[Knock]
    gap: float
    tokens: int
    faults: list[str]


async def cut(stage: Stage, seconds: float, reference: str) -> Cut:
    """Cuts the first slice's link in mid-stream for so long; `reference` is the answer to expect.

    At least until the slice is free again, where the lease does not outlast the cut.
    """
    reader = Reader(stage, 400)
    await asyncio.wait_for(reader.begun.wait(), PATIENCE)
    await asyncio.sleep(0.5)
    found, began = Cut(seconds=seconds), monotonic()
    stage.net.cut(SLICES[0])
    try:
        if seconds < DEAD:
            await asyncio.sleep(seconds)
        else:
            await _away(stage, reader, found, began)
    finally:
        stage.net.mend(SLICES[0])
    back = monotonic()
    if seconds >= DEAD:
        await _comes_back(stage, back)
    ending = await reader.end(PATIENCE)
    found.gap = reader.gap(began)
    found.ending = ending["message"] if ending["chi"] == "error" else ending["chi"]
    answer = await stage.ask()
    if seconds >= DEAD:
        found.serving = monotonic() - back
    found.faults += _faults(stage, found)
    if answer.text != reference:
        found.faults.append(f"the next answer is another one: {answer.text!r}, {answer.ending}")
    return found


async def _away(stage: Stage, reader: Reader, found: Cut, began: float) -> None:
    """Follows what happens while the link stays away."""
    one = stage.slices[0]
    await reader.end(began + PATIENCE - monotonic())
    found.error = reader.times[-1] - began
    withdrawn, _ = await stage.front.until("worker.route.withdrawn", began, PATIENCE)
    over, event = await one.until("worker.slice.lease_over", began, PATIENCE)
    recycled, _ = await one.until("worker.slice.recycled", began, PATIENCE)
    found.withdrawn, found.lease_over = withdrawn - began, over - began
    found.recycled = recycled - began
    if "not renewed" not in event["reason"]:
        found.faults.append(f"the lease ended otherwise: {event['reason']}")
    await asyncio.sleep(max(0.0, began + found.seconds - monotonic()))


async def _comes_back(stage: Stage, back: float) -> None:
    """Returns when humd knows of the model again."""
    front = stage.front
    await front.until("worker.hello.sent", back, PATIENCE, lambda event: MODEL in event["models"])
    await front.at.serves(MODEL, PATIENCE)


def _faults(stage: Stage, found: Cut) -> list[str]:
    """Returns what broke a promise."""
    if found.seconds < DEAD and found.ending == "finish":
        return []
    faults = []
    if found.seconds < RIDDEN_OUT:
        faults.append(f"the stream broke: {found.ending}")
    if "{}:{}".format(*stage.door(0)) not in found.ending:
        faults.append(f"the stream's end does not name the slice: {found.ending}")
    if found.seconds < DEAD:
        return faults
    if found.error is None or found.error > DEAD + 5:
        faults.append(f"the error came after {found.error} s")
    if found.lease_over is None or not LEASE - 6 <= found.lease_over <= LEASE + 3:
        faults.append(f"the lease was over after {found.lease_over} s")
    return faults


async def greeting(stage: Stage) -> Path:
    """Returns a file with what the coordinator's bee really says at a door, recorded on the way.

    Raises:
        RehearsalError: it did not get through.
    """
    file = stage.front.at.folder / "greeting"
    address = stage.net.address(STRANGER)
    record = ["--record", str(file), "--port", str(WIRE)]
    async with _stranger(stage, *record) as wire:
        assert wire.stdout is not None
        await asyncio.wait_for(wire.stdout.readline(), PATIENCE)
        doors = [(address, WIRE, stage.slices[0].hid)]
        egg = coordinator_egg(stage.front.at.folder, doors, "wire")
        worker = [sys.executable, "-m", WORKER, "--egg", str(egg), "--route"]
        shown = await once(stage.front, *stage.net.within("front"), *worker)
        await asyncio.wait_for(wire.wait(), PATIENCE)
    if f"{address}:{WIRE}" not in shown:
        raise RehearsalError(f"no greeting could be recorded: {shown}")
    return file


async def strangers(stage: Stage) -> Strangers:
    """Has them all knock at the first slice's door beside a stream."""
    file = await greeting(stage)
    reader = Reader(stage, 1500)
    await asyncio.wait_for(reader.begun.wait(), PATIENCE)
    began, one = monotonic(), stage.slices[0]
    knocks: list[Knock] = []
    faults: list[str] = []
    beside = 0
    async with _stranger(stage, "--greeting", str(file)) as process:
        assert process.stdout is not None
        while line := await asyncio.wait_for(process.stdout.readline(), PATIENCE):
            told = json.loads(line)
            beside += not reader.over
            if reader.over:  # a slow machine's stream outlasts them, a fast one's is asked anew
                reader = Reader(stage, 1500)
            knock = Knock(
                name=told["stranger"],
                how=told["how"],
                seconds=told["seconds"],
                line=await _line_of(one, began, len(knocks)),
            )
            knocks.append(knock)
            faults += _improper(knock)
    gap, tokens = reader.gap(began), len(reader.times)
    if reader.over and reader.ending is not None and reader.ending["chi"] == "error":
        faults.append(f"the stream broke: {reader.ending['message']}")
    await reader.cancel()
    if one.seen("worker.slice.lease_over", began):
        faults.append("the lease ended")
    if not knocks or beside < len(knocks) - 2:
        faults.append(f"{len(knocks)} strangers, {beside} of them beside a stream")
    return Strangers(knocks=knocks, gap=gap, tokens=tokens, faults=faults)


async def _line_of(machine: Machine, since: float, number: int) -> str:
    """Returns what the bee said of the stranger with this number."""
    assert machine.at.bee is not None
    with contextlib.suppress(RehearsalError):
        lines = "worker.door.refused"
        await machine.at.bee.until(lambda: len(machine.seen(lines, since)) > number, 5)
        return str(machine.seen(lines, since)[number][1]["reason"])
    return ""


def _improper(knock: Knock) -> list[str]:
    """Returns what was wrong with how a stranger was treated."""
    faults = []
    if re.search("LET IN|NO END|not reached", knock.how):
        faults.append(f"a stranger {knock.name}: {knock.how}")
    if knock.seconds > DONE + 1:
        faults.append(f"a stranger {knock.name} stayed {knock.seconds:.1f} s")
    if not knock.line:
        faults.append(f"a stranger {knock.name} left no line in the log")
    return faults


@contextlib.asynccontextmanager
async def _stranger(stage: Stage, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs `bench.strangers` on the fourth machine against the first slice's door."""
    host, port = stage.door(0)
    process = await asyncio.create_subprocess_exec(
        *stage.net.within(STRANGER),
        *(sys.executable, "-m", "bench.strangers", host, str(port), *options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def bytes_a_token(stage: Stage, tokens: int = 96) -> dict[str, tuple[float, float]]:
    """Returns the bytes on each slice's cable for one token, to the slice and from it.

    Between the second piece of a stream and its end; headers, keepalives and encryption included.
    """
    reader = Reader(stage, tokens)
    await asyncio.wait_for(reader.begun.wait(), PATIENCE)
    before = [stage.net.carried(name) for name in SLICES]
    seen = len(reader.times)
    await reader.end(PATIENCE)
    count = len(reader.times) - seen
    after = [stage.net.carried(name) for name in SLICES]
    return {
        name: ((there - was_there) / count, (back - was_back) / count)
        for name, (was_there, was_back), (there, back) in zip(SLICES, before, after, strict=True)
    }
