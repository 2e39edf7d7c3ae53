"""What the scripted engine itself says about its work, by its /metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hum_workers.tender.prometheus_text import gauges
from hum_workers.tender.upstream import Upstream
from tests.rig import WAIT

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
GENERATED = "vllm:generation_tokens_total"


class EngineView:
    """Looks at the engine of one egg; `folder` is that of the bee's environment."""

    def __init__(self, folder: Path, egg: str = "echo") -> None:
        self._cells = folder / "run" / "hum_workers"
        self._egg = egg

    async def counts(self) -> dict[str, float]:
        """Returns running, waiting and generated as the engine counts them now."""
        (socket,) = self._cells.glob(f"*-{self._egg}~*/engine.sock")
        upstream = Upstream(socket)
        try:
            answer = await upstream.request("GET", "/metrics")
        finally:
            await upstream.close()
        return gauges(answer.body, (RUNNING, WAITING, GENERATED))

    async def works_on(self, requests: int) -> dict[str, float]:
        """Returns the counts once so many requests run or wait.

        Polls: an engine tells of its gauges only when asked.
        """
        async with asyncio.timeout(WAIT):
            while True:
                counts = await self.counts()
                if counts[RUNNING] + counts[WAITING] == requests:
                    return counts
                await asyncio.sleep(0.02)
