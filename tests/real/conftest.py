"""One real vLLM on the CPU for all tests of this folder: started once, behind bee and fake humd."""

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
from hum_workers.tender.prometheus_text import gauges
from hum_workers.tender.upstream import Upstream
from tests.rig import ROOT, Bee, running_bee

MODEL = ROOT / ".cache" / "smollm2"
START = 300.0
"""Seconds for vLLM to become ready on a slow machine with two cores."""

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
GENERATED, PROMPTED = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"


@dataclass
class Real:
    """The running parts; `counts` asks the engine itself, past bee and tender."""

    humd: FakeHumd
    bee: Bee
    folder: Path
    upstream: Upstream

    @property
    def socket(self) -> Path:
        return self.folder / "thrum.sock"

    async def asker(self) -> Asker:
        return await Asker.connect(self.socket)

    async def counts(self) -> dict[str, float]:
        """Returns the engine's gauges and counters."""
        answer = await self.upstream.request("GET", "/metrics", timeout=30)
        return gauges(answer.body, (RUNNING, WAITING, GENERATED, PROMPTED))

    async def idle(self, timeout: float = 30.0) -> dict[str, float]:
        """Returns the counts once nothing runs or waits in the engine."""
        async with asyncio.timeout(timeout):
            while True:
                counts = await self.counts()
                if counts[RUNNING] == counts[WAITING] == 0:
                    return counts


def write_egg(folder: Path) -> Path:
    egg = folder / "smollm2.toml"
    egg.write_text(
        f"""[model]
path = {json.dumps(str(MODEL))}
served_name = "smollm2"
dtype = "bfloat16"
max_model_len = 2048
tool_call_parser = "hermes"
[kv]
size = "1GiB"
[batching]
max_num_seqs = 16
[engine]
args = ["--enforce-eager"]
""",
        "utf-8",
    )
    return egg


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real() -> AsyncIterator[Real]:
    """Yields a bee whose real engine answers; skips where engine or model are not installed."""
    if not (MODEL / "config.json").exists():
        pytest.fail(f"no model in {MODEL}: run the tests by `make test`, which brings it")
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        async with await FakeHumd.start(folder / "thrum.sock", folder / "state") as humd:
            async with running_bee(folder, write_egg(folder)) as bee:
                await humd.until(lambda: humd.serves("smollm2"), timeout=START)
                (uds,) = (folder / "run").glob("hum_workers/*/engine.sock")
                upstream = Upstream(uds)
                yield Real(humd, bee, folder, upstream)
                await upstream.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
