"""One soak: humd and askers here, the bee as a process, prompts side by side, acts between them."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import urlopen

from bench.soak_audit import Audit, Turn
from bench.soak_plan import MODELS, Act, Ask, acts, asks
from bench.stand import real_egg
from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from hum_workers.fake_humd.wire import Tone
from hum_workers.process import proc
from hum_workers.process.proc import Stat
from hum_workers.program.journal import open_turns
from tests.leftovers import processes
from tests.rig import Bee, egg, running_bee

CLIENTS = 4
AT_ONCE = 32
LONGEST = 180.0
"""Seconds after which a prompt without an ending is a fault."""
QUIET = 4.0
"""Seconds without a word and without an entry in the journal: the bee never had the prompt."""
START = 300.0
SLOW = 0.3
"""Seconds that a slow asker stops reading; the pace of the bee is made for that."""
EXTRA = """[limits]
wait_timeout = "150s"
turn_timeout = "150s"
max_waiting = 4096
[metrics]
interval = "1s"
"""
OPEN = re.compile(rb"^hum_worker_turns_(?:running|waiting|held)\{.*\} ([0-9.]+)$", re.M)


@dataclass(frozen=True)
class Sample:
    """What the bee uses while no turn is open."""

    rss: int
    files: int
    threads: int
    tasks: int


class Soak:
    """Owns humd, the bee and the askers of one run."""

    def __init__(self, folder: Path, *, seed: int, count: int, real: bool) -> None:
        self.folder = folder
        self.real = real
        self.audit = Audit()
        self.samples: list[Sample] = []
        self.done: list[str] = []
        """Acts, in their order."""
        self._asks = asks(seed, count, CLIENTS, real=real)
        self._acts = acts(seed, count, real=real)
        self._third = count // 3
        self._dice = random.Random(seed + 2)
        self._loop = asyncio.get_running_loop()
        self._stack = AsyncExitStack()
        self._bee: Bee | None = None
        self._askers: list[Asker] = []
        self._humd = FakeHumd(folder / "thrum.sock", folder / "state")
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._models = MODELS[:1] if real else MODELS

    async def run(self) -> None:
        """Sends all prompts and returns when each has ended."""
        self._humd.listen()
        self._humd.tap = self._tapped
        try:
            await self._raise_bee()
            await self._connect()
            running: set[asyncio.Task[None]] = set()
            for number, ask in enumerate(self._asks):
                for act in [act for act in self._acts if act.at == number]:
                    await self._act(act)
                if number == self._third:
                    await self._settle(running)
                await self._gate.acquire()
                task = asyncio.create_task(self._one(ask))
                running.add(task)
                task.add_done_callback(running.discard)
            await self._settle(running)
        finally:
            await self._stack.aclose()
            for asker in self._askers:
                asker.abort()
            self._humd.kill()

    def _tapped(self, hive: str, tone: Tone) -> None:
        if hive == "vllm-worker":  # humd reads the askers' tones as well
            self.audit.hear(self._loop.time(), tone)

    async def _raise_bee(self) -> None:
        if self.real:
            path = real_egg(self.folder)
            text = path.read_text().replace('"bench"', f'"{MODELS[0]}"')
            path.write_text(text + EXTRA)
            paths = [path]
        else:
            paths = [egg(self.folder, name=name, extra=EXTRA) for name in self._models]
        listen = '[metrics]\nlisten = "127.0.0.1:0"'
        paths[0].write_text(paths[0].read_text().replace("[metrics]", listen))
        self._bee = await self._stack.enter_async_context(
            running_bee(self.folder, *paths, dev=False)
        )
        await self._served()

    async def _served(self) -> None:
        await self._humd.until(lambda: all(self._humd.serves(m) for m in self._models), START)

    async def _connect(self) -> None:
        for asker in self._askers:
            asker.abort()
        self._askers = [await Asker.connect(self._humd.socket) for _ in range(CLIENTS)]

    async def _one(self, ask: Ask) -> None:
        """Asks, and again under another sid when the prompt was lost on its way."""
        try:
            while (await self._ask(ask)).lost:
                ask = replace(ask, sid=ask.sid + "+")
        finally:
            self._gate.release()

    async def _ask(self, ask: Ask) -> Turn:
        while not self._open(ask):  # noqa: ASYNC110 - humd or the bee is away
            await asyncio.sleep(0.05)
        turn = self.audit.turns[ask.sid] = Turn(ask, self._loop.time())
        asker = self._askers[ask.client]
        sampling = {"maxTokens": ask.tokens} if self.real else {}
        asker.prompt(sid=ask.sid, modelId=ask.model, text=ask.text, sampling=sampling)
        if ask.cancel_after is not None:
            self._loop.call_later(ask.cancel_after, _cancel, asker, ask.sid)
        await self._follow(turn, asker)
        return turn

    def _open(self, ask: Ask) -> bool:
        return self._humd.serves(ask.model) and not self._askers[ask.client].closed.is_set()

    async def _follow(self, turn: Turn, asker: Asker) -> None:
        """Returns when the turn has ended, for its asker too if that can be."""
        hearing = asyncio.create_task(asker.collect(turn.ask.sid, LONGEST))
        try:
            while not hearing.done():
                await asyncio.wait({hearing}, timeout=0.5)
                if asker.closed.is_set() and (turn.endings or self._lost(turn)):
                    return
                if self._loop.time() - turn.sent > LONGEST or self._lost(turn):
                    return
            turn.answered = hearing.result()
            while turn.answered.ending is None and not (turn.endings or self._lost(turn)):
                if self._loop.time() - turn.sent > LONGEST:
                    return
                await asyncio.sleep(0.2)
        except TimeoutError:
            return
        finally:
            hearing.cancel()
            await asyncio.wait({hearing})

    def _lost(self, turn: Turn) -> bool:
        """Whether a death took the prompt before the bee had read it."""
        quiet = self._loop.time() - max(turn.sent, *self.audit.bee_kills, *self.audit.humd_kills, 0)
        if turn.seen or turn.endings or quiet < QUIET or not self.audit.disturbed(turn.sent):
            return False
        if turn.ask.sid in self._journal():
            turn.seen = True
            return False
        turn.lost = "sent to a humd or a bee that was killed"
        return True

    def _journal(self) -> set[str]:
        found = (self.folder / "state" / "hum" / "workers").rglob("open.*.journal")
        return {sid for path in found for _, sid in open_turns(path.read_bytes())}

    async def _act(self, act: Act) -> None:
        assert self._bee is not None
        self.done.append(act.kind)
        await asyncio.sleep(self._dice.uniform(0, 0.3))
        match act.kind:
            case "slow":
                asker = self._dice.choice(self._askers)
                asker.pause_reading()
                self._loop.call_later(SLOW, asker.resume_reading)
            case "humd":
                self.audit.humd_kills.append(self._loop.time())
                await self._humd.restart(down_for=self._dice.choice((0.0, 0.5)))
                await self._connect()
                await self._served()
            case "bee":
                await self._bee.stop(signal.SIGKILL)
                self.audit.bee_kills.append(self._loop.time())
                for sid in self._journal() & set(self.audit.turns):
                    self.audit.turns[sid].seen = True
                await self._raise_bee()
            case kind:
                if pid := self._pid(act.model, "engine_pid" if kind == "engine" else "pid"):
                    os.kill(pid, signal.SIGKILL)

    def _pid(self, model: str, which: str) -> int:
        """Returns the pid of a model's engine or tender that is ready, 0 if none is."""
        assert self._bee is not None
        dead = {entry["cell"] for entry in self._bee.events("worker.cell.emerged")}
        pids = [
            int(entry[which])
            for entry in self._bee.events("worker.cell.ready")
            if entry["cell"].startswith(f"{self._egg(model)}-") and entry["cell"] not in dead
        ]
        return pids[-1] if pids and proc.read_stat(pids[-1]) is not None else 0

    def _egg(self, model: str) -> str:
        return "real" if self.real else model

    async def _settle(self, running: set[asyncio.Task[None]]) -> None:
        """Waits until no turn is open, and looks at what the bee uses then."""
        while running:
            await asyncio.wait(set(running))
        page = await self._page()
        async with asyncio.timeout(30):
            while any(float(count) for count in OPEN.findall(page)):
                await asyncio.sleep(0.2)
                page = await self._page()
        assert self._bee is not None
        status = proc.read_bytes(f"/proc/{self._bee.pid}/status") or b""
        numbers = dict(re.findall(rb"^(VmRSS|Threads):\s+(\d+)", status, re.M))
        tasks = re.search(rb"^hum_worker_tasks ([0-9.]+)$", page, re.M)
        self.samples.append(
            Sample(
                rss=int(numbers[b"VmRSS"]) * 1024,
                files=proc.fd_count(self._bee.pid),
                threads=int(numbers[b"Threads"]),
                tasks=int(float(tasks[1])) if tasks else 0,
            )
        )

    async def _page(self) -> bytes:
        assert self._bee is not None
        where = self._bee.events("worker.metrics.listening")[-1]
        return await asyncio.to_thread(_fetch, f"http://{where['host']}:{where['port']}/metrics")


@asynccontextmanager
async def soaked(*, seed: int, count: int, real: bool = False) -> AsyncIterator[Soak]:
    """Yields a soak that has been run; afterwards its folder is gone."""
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        soak = Soak(folder, seed=seed, count=count, real=real)
        await soak.run()
        yield soak
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def left(folder: Path) -> list[Stat]:
    """Returns the processes of a run that are still there."""
    return processes(folder)


def _cancel(asker: Asker, sid: str) -> None:
    if not asker.closed.is_set():
        asker.cancel(sid)


def _fetch(url: str) -> bytes:
    with urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
        return body


def clock() -> Callable[[], float]:
    """Returns what tells the seconds since now."""
    began = time.monotonic()
    return lambda: time.monotonic() - began
