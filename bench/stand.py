"""The stand: engine, tender, bee and, if wanted, a fake humd, with a client at each end.

Owns all of them; leaving the context means that they are gone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psutil

from bench.clients import LONGEST, Direct, Tones
from scripts.rehearsal import Rehearsal, RehearsalError

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "tests" / "fakes" / "site"
MODEL = ROOT / ".cache" / "smollm2"
START = 300.0
HELLO = 20.0


@dataclass
class Stand:
    """Both clients speak to the same engine."""

    direct: Direct
    relayed: Tones
    bee: int
    """pid"""
    tender: int
    hello: float
    """Milliseconds from the bee's start to its first hello; 0 through humd."""


def scripted_egg(folder: Path, *, pace: int = 10_000) -> Path:
    """Writes an egg for the scripted engine, with room for 1,024 turns."""
    (folder / "model").mkdir()
    path = folder / "scripted.toml"
    path.write_text(
        f"""[bee]
pace = {pace}
[model]
path = "./model"
served_name = "bench"
max_model_len = {2 * LONGEST}
[batching]
max_num_seqs = 1024
[engine]
python = {json.dumps(sys.executable)}
env = {{ PYTHONPATH = {json.dumps(str(SITE))} }}
"""
    )
    return path


def real_egg(folder: Path) -> Path:
    """Writes an egg for vLLM with the small model."""
    path = folder / "real.toml"
    path.write_text(
        f"""[model]
path = {json.dumps(str(MODEL))}
served_name = "bench"
dtype = "bfloat16"
max_model_len = 2048
[kv]
size = "1GiB"
[batching]
max_num_seqs = 32
prefix_caching = false
[engine]
args = ["--enforce-eager"]
env = {{ VLLM_CPU_OMP_THREADS_BIND = "0-1" }}
"""
    )
    return path


@asynccontextmanager
async def stand(*, humd: bool, real: bool = False) -> AsyncIterator[Stand]:
    """Yields a stand whose engine is ready. Without `humd` the client takes its place."""
    async with Rehearsal() as rehearsal:
        egg = (real_egg if real else scripted_egg)(rehearsal.folder)
        server: asyncio.Server | None = None
        if humd:
            await rehearsal.start_humd()
        else:
            relayed, server = await Tones.listen(rehearsal.socket, "bench")
        began = perf_counter()
        await rehearsal.start_bee(egg)
        hello = 0.0
        if humd:
            await rehearsal.serves("bench", START)
            relayed = await Tones.connect(rehearsal.socket, "bench")
        else:
            async with asyncio.timeout(HELLO):
                await relayed.hello.wait()
            hello = (perf_counter() - began) * 1000
            await _serving(rehearsal, relayed)
        direct = _direct(rehearsal.folder)
        try:
            bee = rehearsal.processes()[0]
            yield Stand(direct, relayed, bee.pid, _tender(bee), hello)
        finally:
            await direct.close()
            await relayed.close()
            if server is not None:
                server.close()
    if rehearsal.left:
        raise RehearsalError(f"left behind: {'; '.join(rehearsal.left)}")


async def _serving(rehearsal: Rehearsal, client: Tones) -> None:
    """Returns when the bee's hello named the model; fails when its engine does."""
    assert rehearsal.bee is not None
    await rehearsal.bee.until(lambda: client.serves.is_set() or bool(rehearsal.failed), START)
    if rehearsal.failed:
        raise RehearsalError(f"the engine can't be started: {rehearsal.failed}")


def _direct(folder: Path) -> Direct:
    (uds,) = (folder / "run").glob("hum_workers/*/engine.sock")
    key = json.loads((uds.parent / "cell.yaml").read_text())["api-key"][0]
    return Direct(uds, {"Authorization": f"Bearer {key}"}, "bench")


def _tender(bee: psutil.Process) -> int:
    (pid,) = (c.pid for c in bee.children() if "hum_workers.tender" in c.cmdline())
    return int(pid)


def cpu_us(pid: int) -> float:
    """Returns the CPU time of a process so far in µs, all its threads; finer than clock ticks."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def peak_mib(pid: int) -> float:
    """Returns the greatest resident size that a process ever had, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
