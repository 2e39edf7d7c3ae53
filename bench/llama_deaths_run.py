"""One run of the matrix of deaths: two slices and a coordinator with real llama.cpp, one act of
violence, and the times of what follows; afterwards nothing of the run is left on the machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.llama_seats import LOOK, WAIT, Seat, until
from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from hum_workers.process import orphans, proc, shm
from hum_workers.process.proc import Stat
from tests.leftovers import processes
from tests.real_llama.route_stage import NAME, front_egg, slice_egg

LOADS = ("loading weights", "slices", "reading the model")
"""Stages of a start in which llama-server talks to its slices."""
AGAIN = 1.0
"""Seconds after which a bee that was killed is started again."""
PATIENCE = 4
"""Seconds of `stall_timeout`: how long a frozen slice may hold a turn."""
START_PATIENCE = 10
CANARY = 2
STORY = {"maxTokens": 1800, "ignoreEos": True, "temperature": 0}
SHORT = {"maxTokens": 4, "temperature": 0}


class DeathError(Exception):
    """A run that could not be made; the message says why."""


@dataclass(frozen=True)
class Case:
    """One scenario: `act` (kill or freeze) to `whom` of which bee, at a `moment`."""

    seat: str
    """`front`, `slice-1` or `slice-2`."""
    whom: str
    """`engine`, `tender` or `bee`."""
    moment: str
    """`loading`, `idle` or `streaming`."""
    freeze: bool = False
    away: bool = False
    """The bee is started again only when its leases are over by their time."""

    @property
    def victim(self) -> str:
        """Whom it hits, for people."""
        owner = "coordinator" if self.seat == "front" else self.seat
        engine = "llama-server" if self.seat == "front" else "rpc-server"
        act = "SIGSTOP" if self.freeze else "SIGKILL"
        whom = engine if self.whom == "engine" else self.whom
        return f"{act} of {owner}'s {whom}{', away for 20 s' if self.away else ''}"

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.victim}, {self.moment}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run showed. Times in seconds since the act; None: there was nothing to see."""

    tone: float | None = None
    """To the ending of the turn in flight."""
    code: str = ""
    message: str = ""
    endings: int = 0
    """Endings that the turn got."""
    dead: float = 0.0
    """To no live member of the tree that was hit; of a frozen one, that it was replaced by."""
    front_dead: float = 0.0
    """To no live member of the coordinator's cell."""
    recycled: float = 0.0
    """To a new rpc-server behind every door."""
    serves: float = 0.0
    """To the end of the answer to the next prompt."""
    away: tuple[float, float] | None = None
    """From when to when humd did not know the model."""
    reasons: tuple[str, ...] = ()
    """Why the coordinator says that its cell ended, and its model was withdrawn."""
    left: tuple[str, ...] = ()
    """What was still there at the end; nothing is right."""


@dataclass
class Stage:
    """All that runs in one run."""

    humd: FakeHumd
    asker: Asker
    stack: AsyncExitStack
    front: Seat
    slices: list[Seat]
    began: float = 0.0
    mapped: set[str] = field(default_factory=set)

    def seat(self, name: str) -> Seat:
        """Returns one bee."""
        return next(seat for seat in (self.front, *self.slices) if seat.name == name)

    def since(self) -> float:
        """Returns the seconds since the act."""
        return time.perf_counter() - self.began


async def run(case: Case) -> Outcome:
    """Makes one run.

    Raises:
        DeathError: something did not come; what the coordinator said last is in the message.
    """
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        canary = f'canary = "{CANARY}s"\n' if case.freeze and case.moment == "idle" else ""
        async with staged(folder, canary) as stage:
            try:
                outcome = await _act(case, stage)
            except (TimeoutError, LookupError) as error:
                said = [line.fields for line in stage.front.read()[-8:]]
                raise DeathError(f"{case.name}: {error!r}; {said}") from error
        await _reaped(folder)
        return replace(outcome, left=tuple(_left(folder, stage.mapped)))
    finally:
        for stat in processes(folder):
            proc.send(stat, signal.SIGKILL)
        if not os.environ.get("KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def staged(folder: Path, split: str = "") -> AsyncIterator[Stage]:
    """Yields two slices and a coordinator that were started; `split` is TOML of that table."""
    async with AsyncExitStack() as stack:
        humd = await FakeHumd.start(folder / "thrum.sock", folder / "state")
        await stack.enter_async_context(humd)
        slices = [
            Seat(f"slice-{number}", folder, slice_egg(folder, number), stack) for number in (1, 2)
        ]
        egg = front_egg(
            folder,
            lifecycle='[lifecycle]\nstop_grace = "1s"\ndrain_timeout = "300ms"\n'
            f'stall_timeout = "{PATIENCE}s"\nstart_timeout = "{START_PATIENCE}s"\n',
            more=f"[split]\n{split}",
        )
        front = Seat("front", folder, egg, stack)
        for seat in (*slices, front):
            await seat.start()
        asker = await stack.enter_async_context(await Asker.connect(folder / "thrum.sock"))
        yield Stage(humd, asker, stack, front, slices)


async def _act(case: Case, stage: Stage) -> Outcome:
    turn = await _moment(case, stage)
    seat = stage.seat(case.seat)
    tree = seat.tree("bee" if case.whom == "bee" else "tender")
    whom = {"bee": "bee", "tender": "tender"}.get(case.whom, _engine(case))
    pid = seat.tree(whom)[0].pid
    front_tree = stage.front.tree()
    stage.mapped.update(shm.mapped([stat.pid for stat in (*tree, *front_tree)]))
    before = [seat.ready() for seat in stage.slices]
    known = stage.front.ready() | {_cell(stage.front)}
    stage.began = time.perf_counter()
    os.kill(pid, signal.SIGSTOP if case.freeze else signal.SIGKILL)
    watch = asyncio.create_task(_away(stage))
    endings: list[dict[str, Any]] = []
    tasks = [watch] if turn is None else [watch, asyncio.create_task(_turn(stage, turn, endings))]
    try:
        dead, front_dead, recycled, serves, *_ = await asyncio.gather(
            _at(stage, _all_ended(tree)),
            _at(stage, _all_ended(front_tree)),
            _at(stage, _recycled(stage, before)),
            _at(stage, _served(stage, known)),
            _again(case, stage, before),
        )
        if turn is not None:
            await until(lambda: endings)
    finally:
        for task in tasks:
            task.cancel()
        away, *_ = await asyncio.gather(*tasks, return_exceptions=True)
    outcome = Outcome(dead=dead, front_dead=front_dead, recycled=recycled, serves=serves)
    return replace(
        outcome,
        away=away if isinstance(away, tuple) else None,
        reasons=_reasons(stage),
        endings=len(endings),
        **(endings[0] if endings else {}),
    )


def _engine(case: Case) -> str:
    return "server" if case.seat == "front" else "engine"


def _cell(seat: Seat) -> tuple[int, str]:
    return list(seat.events("worker.cell.spawned"))[-1].cell


async def _moment(case: Case, stage: Stage) -> str | None:
    """Returns when the act is due, with the sid of the turn in flight, if there is one."""
    if case.moment == "loading":
        await until(
            lambda: any(
                line.fields.get("stage") in LOADS
                for line in stage.front.events("worker.cell.stage")
            )
        )
        return None
    await until(stage.front.ready)
    await stage.humd.until(lambda: stage.humd.serves(NAME), timeout=WAIT)
    if case.moment == "idle":
        return None
    sid = stage.asker.prompt(modelId=NAME, text="Tell a long story.", sampling=STORY)
    async with asyncio.timeout(WAIT):
        async for tone in stage.asker.stream(sid):
            if tone["chi"] == "chunk":
                return sid
    raise LookupError("the turn ended before the act")


async def _again(case: Case, stage: Stage, before: list[set[tuple[int, str]]]) -> None:
    seat = stage.seat(case.seat)
    if case.whom == "bee":
        await seat.bee.process.wait()
        await asyncio.sleep(AGAIN)
        if case.away:
            await _recycled(stage, before)
        await seat.start()


async def _at(stage: Stage, what: Awaitable[object]) -> float:
    await what
    return stage.since()


async def _all_ended(stats: list[Stat]) -> None:
    def ended() -> bool:
        now = [proc.read_stat(stat.pid) for stat in stats]
        return not any(
            stat is not None and stat.alive and stat.identity == was.identity
            for stat, was in zip(now, stats, strict=True)
        )

    await until(ended)


async def _recycled(stage: Stage, before: list[set[tuple[int, str]]]) -> None:
    await until(
        lambda: all(seat.ready() - was for seat, was in zip(stage.slices, before, strict=True))
    )


async def _served(stage: Stage, known: set[tuple[int, str]]) -> None:
    """Asks nothing before another cell is ready: the death is to be found without a prompt."""
    await until(lambda: stage.front.ready() - known)
    await stage.humd.until(lambda: stage.humd.serves(NAME), timeout=WAIT)
    answer = await stage.asker.ask("Say hi.", NAME, timeout=WAIT, sampling=SHORT)
    if not answer.complete:
        raise LookupError(f"the next prompt was not answered: {answer.ending}")


async def _turn(stage: Stage, sid: str, endings: list[dict[str, Any]]) -> None:
    """Notes each ending of a turn; a second one would be a fault."""
    while not stage.asker.closed.is_set():
        async for tone in stage.asker.stream(sid):
            if tone["chi"] in ("finish", "error"):
                code = str(tone.get("code") or tone.get("finishReason"))
                message = str(tone.get("message", ""))
                endings.append({"tone": stage.since(), "code": code, "message": message})


async def _away(stage: Stage) -> tuple[float, float] | None:
    """Returns from when to when humd did not know the model; cancelled, it returns None."""
    if not stage.humd.serves(NAME):
        return None
    await stage.humd.until(lambda: not stage.humd.serves(NAME), timeout=WAIT)
    gone = stage.since()
    await stage.humd.until(lambda: stage.humd.serves(NAME), timeout=WAIT)
    return gone, stage.since()


def _reasons(stage: Stage) -> tuple[str, ...]:
    wanted = ("worker.cell.emerged", "worker.cell.stopping", "worker.route.withdrawn")
    return tuple(
        f"{line.event.rpartition('.')[2]}: {line.fields.get('reason')}"
        for line in stage.front.read()
        if line.event in wanted
    )


def _left(folder: Path, mapped: set[str]) -> list[str]:
    left = [str(stat) for stat in processes(folder)]
    left += [f"socket {path}" for path in (folder / "run").rglob("*") if path.is_socket()]
    left += [f"folder {path}" for path in (folder / "run").glob("hum_workers/*")]
    left += [f"/dev/shm/{name}" for name in mapped & set(os.listdir("/dev/shm"))]
    return left


async def _reaped(folder: Path) -> None:
    """Collects what came to us as orphans; a dead process that nobody reaps stays in the table."""
    for _ in range(100):
        orphans.reap(orphans.strays(proc.scan()))
        if not processes(folder):
            return
        await asyncio.sleep(LOOK)
