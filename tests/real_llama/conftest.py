"""One real llama-server for all tests of this folder: started once, behind bee and fake humd."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from hum_workers.fake_humd.asker import Asker
from hum_workers.fake_humd.server import FakeHumd
from hum_workers.llama_rpc_worker.signs import RUNNING, WAITING
from hum_workers.tender.prometheus_text import gauges
from hum_workers.tender.upstream import Upstream
from tests.rig import LLAMA, ROOT, Bee, running_bee

HOME = ROOT / ".cache" / "llama.cpp"
MODEL = HOME / "model" / "SmolLM2-135M-Instruct.Q4_1.gguf"
START = 120.0
"""Seconds for llama-server to become ready on a slow machine with two cores."""
GENERATED, PROMPTED = "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total"
CACHED = "llamacpp:prompt_tokens_cached_total"


@dataclass
class Real:
    """The running parts; `counts` asks the engine itself, past bee and tender."""

    humd: FakeHumd
    bee: Bee
    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "thrum.sock"

    async def asker(self) -> Asker:
        return await Asker.connect(self.socket)

    async def counts(self) -> dict[str, float]:
        """Returns the engine's gauges and counters."""
        (uds,) = (self.folder / "run").glob("hum_workers/*/engine.sock")
        headers = {"Authorization": f"Bearer {(uds.parent / 'key').read_text().strip()}"}
        upstream = Upstream(uds, headers)
        try:
            answer = await upstream.request("GET", "/metrics", timeout=30)
        finally:
            await upstream.close()
        return gauges(answer.body, (RUNNING, WAITING, GENERATED, PROMPTED, CACHED))

    async def idle(self, timeout: float = 60.0) -> dict[str, float]:
        """Returns the counts once nothing runs or waits in the engine."""
        async with asyncio.timeout(timeout):
            while True:
                counts = await self.counts()
                if counts[RUNNING] == counts[WAITING] == 0:
                    return counts
                await asyncio.sleep(0.1)

    def cells(self) -> int:
        """Returns how many cells were ready so far."""
        return len(self.bee.events("worker.cell.ready"))


def write_egg(folder: Path, *, extra: str = "") -> Path:
    egg = folder / "smollm2.toml"
    egg.write_text(
        f"""[cell]
role = "coordinator"
[model]
path = {json.dumps(str(MODEL))}
served_name = "smollm2"
ctx = 2048
parallel = 2
{extra}
""",
        "utf-8",
    )
    return egg


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real() -> AsyncIterator[Real]:
    """Yields a bee whose real engine answers; fails where engine or model are not there."""
    if not MODEL.exists() or not (HOME / "current" / "bin" / "llama-server").exists():
        pytest.fail(f"no llama.cpp in {HOME}: run the tests by `make test`, which brings it")
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        async with await FakeHumd.start(folder / "thrum.sock", folder / "state") as humd:
            async with running_bee(folder, write_egg(folder), program=LLAMA) as bee:
                await humd.until(lambda: humd.serves("smollm2"), timeout=START)
                yield Real(humd, bee, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
