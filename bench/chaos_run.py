"""One run of one case: a bee in front of an engine, an act of violence, and the time to the last
death; afterwards nothing of the run is left on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex

from bench.chaos_cases import LIMIT, Case
from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from hum_workers.process import cgroup, orphans, proc, shm
from hum_workers.process.proc import Stat
from tests.leftovers import processes
from tests.liveness import Liveness
from tests.rig import Bee, egg, fake, running_bee

WAIT = 60.0
LATE = 0.2
"""Seconds in which a member may still show up that was started before the death of the others."""
START = 300.0
SETTLED = 0.5
"""Seconds after which the tender knows the members of an engine that loads."""
TITLES = {"EngineCore": "VLLM::EngineCor", "worker": "VLLM::Worker"}


class ChaosError(Exception):
    """A run that could not be made; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """What one run showed. Times in seconds since the act."""

    dead: float
    """To no live member of the tree; infinity where some lived on."""
    ending: float | None
    """To the ending of the turn that was in flight; None: there was none, or its bee was killed."""
    code: str
    """That ending's code or reason."""
    left: tuple[str, ...]
    """What was still there at the end; nothing is right."""
    held: tuple[str, ...] = ()
    """Names in /dev/shm that the tree had mapped."""


async def run(case: Case, way: tuple[str, str], *, model: Path | None = None) -> Outcome:
    """Makes one run; `model`: with real vLLM.

    Raises:
        ChaosError: it did not get to the act.
    """
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    # A name of its own: others may run the same on this machine.
    name = f"c{token_hex(4)}"
    try:
        with Liveness(folder) as alive:
            outcome = await _act(case, way, folder, name, alive, model)
        await _reaped(folder, name)
        left = [str(stat) for stat in processes(folder)]
        left += [f"socket {path}" for path in _sockets(folder)]
        left += [f"cgroup {path.name}" for path in _cgroups(name)]
        left += [f"/dev/shm/{held}" for held in set(os.listdir("/dev/shm")) & {*outcome.held}]
        return replace(outcome, left=tuple(left))
    finally:
        for stat in processes(folder):
            proc.send(stat, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


async def _act(
    case: Case,
    way: tuple[str, str],
    folder: Path,
    name: str,
    alive: Liveness,
    model: Path | None,
) -> Outcome:
    path = _egg(case, way, folder / f"{name}.toml", alive, model)
    humd_socket = folder / "thrum.sock"
    async with await FakeHumd.start(humd_socket, folder / "state") as humd:
        async with running_bee(folder, path, dev=False) as bee:
            try:
                if case.moment != "loading":
                    await humd.until(lambda: humd.serves(name), timeout=START)
                if model is None:
                    await alive.appear(case.members)
                async with _turn(case, name, humd_socket) as turn:
                    proof = alive if model is None else None
                    outcome = await _hit(case, way, bee, proof, turn)
            except TimeoutError as error:
                raise ChaosError(f"{case.name}, {way}: {bee.log()[-3:]}") from error
        if "bee +" in case.act and outcome.dead < LIMIT:
            # Nobody of ours lived to tidy up: the next bee's start does.
            async with running_bee(folder, path, dev=False) as bee:
                await _next(model is None and case.moment != "loading", humd, name, bee)
    return outcome


async def _next(whole: bool, humd: FakeHumd, name: str, bee: Bee) -> None:
    """Returns when the next cell is ready, or, unless `whole`, has been spawned."""
    if whole:
        await humd.until(lambda: humd.serves(name), timeout=START)
    else:
        async with asyncio.timeout(WAIT):
            while not bee.events("worker.cell.stage"):  # noqa: ASYNC110 - another process logs
                await asyncio.sleep(0.05)


@asynccontextmanager
async def _turn(case: Case, name: str, socket: Path) -> AsyncIterator[asyncio.Task[str] | None]:
    """Yields a turn that is being answered, if the case wants one: its ending in a word."""
    if case.moment != "streaming":
        yield None
        return
    async with await Asker.connect(socket) as asker:
        speaks = asyncio.Event()

        async def ask() -> str:
            sid = asker.prompt(modelId=name, text=fake(**case.prompt))
            async for tone in asker.stream(sid):
                if tone["chi"] == "chunk":
                    speaks.set()
                if tone["chi"] in ("finish", "error"):
                    return str(tone.get("code") or tone.get("finishReason"))
            return "nothing"

        task = asyncio.create_task(ask())
        async with asyncio.timeout(WAIT):
            await speaks.wait()
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


async def _hit(
    case: Case,
    way: tuple[str, str],
    bee: Bee,
    alive: Liveness | None,
    turn: asyncio.Task[str] | None,
) -> Outcome:
    loop = asyncio.get_running_loop()
    tree = below(bee.pid)
    tree += [stat for life in (alive.lives if alive else ()) if (stat := proc.read_stat(life.pid))]
    if case.moment == "loading" and case.act != "itself":
        await asyncio.sleep(SETTLED)
    held = shm.mapped([stat.pid for stat in tree]) if alive is None else {}
    began = loop.time()
    ended: list[float] = []
    if turn is not None:
        turn.add_done_callback(lambda _: ended.append(loop.time() - began))
    if case.act == "itself":
        assert alive is not None
        await _main_ended(alive)
        began = loop.time()
    for number, pid in targets(case, bee, tree, alive):
        os.kill(pid, number)
    # Tender and guard are waited for where they die with the tree.
    if alive is not None:
        patience = WAIT if way[0] in case.covered else LIMIT
        dead = await _all_dead(alive, patience) - began
    else:
        await _ended([stat for stat in tree if stat.pid != bee.pid])
        dead = loop.time() - began
    code = ""
    if turn is not None and not case.act.startswith("bee"):
        await asyncio.wait({turn}, timeout=WAIT)
        code = turn.result() if turn.done() else "no ending"
    await bee.stop(timeout=WAIT)
    return Outcome(dead, ended[0] if ended and code else None, code, (), tuple(held))


def targets(
    case: Case, bee: Bee, tree: Sequence[Stat], alive: Liveness | None
) -> list[tuple[int, int]]:
    """Returns which signal goes to which pid."""
    if case.act == "stop":
        return [(signal.SIGTERM, bee.pid)]
    if case.act == "itself":
        return []
    return [(signal.SIGKILL, _pid(who, bee, tree, alive)) for who in case.act.split(" + ")]


def _pid(who: str, bee: Bee, tree: Sequence[Stat], alive: Liveness | None) -> int:
    if who == "bee":
        return bee.pid
    if who in TITLES:
        return next(stat.pid for stat in tree if _has(stat, TITLES[who]))
    if who == "API server" and alive is not None:
        return alive.role("main").pid
    marks = {"tender": "hum_workers.tender", "guard": "guard.py", "API server": "serve"}
    found = [stat.pid for stat in tree if marks[who] in _line(stat)]
    # unshare runs the guard's command line before the guard has it.
    return found[-1] if who == "guard" else found[0]


def _has(stat: Stat, title: str) -> bool:
    return title in stat.name or _line(stat).startswith(title)


def _line(stat: Stat) -> str:
    return (proc.read_bytes(f"/proc/{stat.pid}/cmdline") or b"").decode("utf-8", "replace")


def below(pid: int) -> list[Stat]:
    """Returns a process and all below it, the nearest first."""
    table = proc.scan()
    return [table[found] for found in (pid, *proc.descendants(table, [pid])) if found in table]


async def _ended(stats: Sequence[Stat]) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT):
        for stat in stats:
            try:
                fd = os.pidfd_open(stat.pid)
            except OSError:
                continue
            over = asyncio.Event()
            loop.add_reader(fd, over.set)
            try:
                now = proc.read_stat(stat.pid)
                if now is not None and now.identity == stat.identity:
                    await over.wait()
            finally:
                loop.remove_reader(fd)
                os.close(fd)


async def _all_dead(alive: Liveness, patience: float) -> float:
    """Returns when all were dead, those that only came up meanwhile too; never: infinity."""
    known, when = 0, 0.0
    while known < len(alive.lives):
        known = len(alive.lives)
        try:
            await alive.all_dead(patience)
        except TimeoutError:
            return math.inf
        when = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE):
                await alive.appear(known + 1)
    return when


async def _main_ended(alive: Liveness) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT):
        try:
            while await loop.sock_recv(alive.role("main").link, 64):
                pass
        except ConnectionResetError:
            pass


def _egg(case: Case, way: tuple[str, str], path: Path, alive: Liveness, model: Path | None) -> Path:
    limits = (
        f'[limits]\nconfine = "{way[0]}"\ncgroup = "{way[1]}"\n'
        '[lifecycle]\ndrain_timeout = "0s"\nstop_grace = "1s"\n'
    )
    if model is None:
        script = {**case.fake, "alive": str(alive.path)}
        return egg(path.parent, name=path.stem, fake=script, extra=limits)
    path.write_text(
        f'[model]\npath = "{model}"\nserved_name = "{path.stem}"\ndtype = "bfloat16"\n'
        'max_model_len = 2048\n[kv]\nsize = "1GiB"\n[batching]\nmax_num_seqs = 16\n'
        f'[engine]\nargs = ["--enforce-eager"]\n{limits}',
        "utf-8",
    )
    return path


async def _reaped(folder: Path, name: str) -> None:
    """Collects what came to us as orphans; a dead process that nobody reaps stays in the table."""
    for _ in range(40):
        orphans.reap(orphans.strays(proc.scan()))
        if not processes(folder) and not _cgroups(name):
            return
        await asyncio.sleep(0.05)


def _sockets(folder: Path) -> list[Path]:
    own = {"alive", "thrum.sock"}
    return [path for path in folder.rglob("*") if path.is_socket() and path.name not in own]


def _cgroups(name: str) -> list[Path]:
    """Returns the cgroups of the egg's cells."""
    found: set[Path] = set()
    for own in cgroup.folders():
        found.update(own.glob(f"{cgroup.PREFIX}{name}_*") if own is not None else ())
    return sorted(found)
