"""A tender as a child of the test, frames on its pipes; and the spec of a scripted engine."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hum_workers.frames import Frame, FrameReader, pack
from hum_workers.spec import CellSpec
from hum_workers.vllm_worker import signs
from hum_workers.vllm_worker.command import MAIN, canaries
from tests.leftovers import all_end, processes
from tests.rig import SITE, WAIT


def spec(folder: Path, fake: Mapping[str, Any] | None = None, **changes: Any) -> CellSpec:
    """Returns what raises the scripted engine in `folder`; `fake` is its FAKE_ENGINE."""
    private = folder / "cell"
    uds = str(private / "engine.sock")
    fields: dict[str, Any] = {
        "cell_id": "echo-1",
        "hive": "vllm-worker",
        "argv": [
            *(sys.executable, "-c", MAIN, "serve", "/models/echo"),
            *("--uds", uds, "--served-model-name", "echo", "--shutdown-timeout", "10"),
        ],
        "env": {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SITE),
            "FAKE_ENGINE": json.dumps(dict(fake or {})),
            "TMPDIR": str(private / "tmp"),
        },
        "cwd": str(folder),
        "private": str(private),
        "uds": uds,
        "model": "echo",
        "running_gauge": "vllm:num_requests_running",
        "waiting_gauge": "vllm:num_requests_waiting",
        "canaries": canaries("echo"),
        "progress_counters": signs.PROGRESS,
        "needed": signs.NEEDED,
        "marks": signs.MARKS,
        "start_timeout": 20.0,
        "sample_interval": 0.05,
        "cancel_confirm": 5.0,
    }
    return CellSpec(**{**fields, **changes})


def chat(**script: Any) -> bytes:
    """Returns a chat request that scripts its answer."""
    return json.dumps(
        {
            "model": "echo",
            "messages": [{"role": "user", "content": json.dumps({"fake": script})}],
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    ).encode()


class Tender:
    """A tender, what it has said so far, and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: Path) -> None:
        self.process = process
        self.frames: list[list[Any]] = []
        self._stderr = stderr
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    def send(self, *frame: Any) -> None:
        """Sends one frame."""
        self.write(pack(*frame))

    def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def leave(self) -> None:
        """Ends its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def of(self, name: Frame) -> list[list[Any]]:
        """Returns the frames of one name so far."""
        return [frame for frame in self.frames if frame[0] == name]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until what it has said fulfils a condition."""
        async with asyncio.timeout(WAIT):
            while not condition():
                assert not self._reading.done(), (self.frames, self.stderr())
                self._news.clear()
                await self._news.wait()

    async def first(self, name: Frame) -> list[Any]:
        """Waits for the first frame of one name and returns it."""
        await self.until(lambda: bool(self.of(name)))
        return self.of(name)[0]

    async def stage(self, name: str) -> None:
        """Waits until the start got to a stage."""
        await self.until(lambda: any(frame[1] == name for frame in self.of(Frame.STAGE)))

    def vitals(self) -> dict[str, int]:
        """Returns the last vitals."""
        fields: dict[str, int] = self.of(Frame.VITALS)[-1][1]
        return fields

    def events(self, turn: int) -> list[tuple[int, Any]]:
        """Returns one turn's engine events so far."""
        return [
            (kind, data)
            for _, events in self.of(Frame.MMM)
            for number, kind, data in events
            if number == turn
        ]

    def text(self, turn: int) -> str:
        """Returns one turn's text so far."""
        return "".join(data for kind, data in self.events(turn) if kind == 0)

    async def ended(self, turn: int) -> tuple[int, Any]:
        """Waits for one turn's FINISH or ERROR."""
        await self.until(lambda: any(kind >= 3 for kind, _ in self.events(turn)))
        return self.events(turn)[-1]

    async def gone(self) -> dict[str, Any]:
        """Waits for its last frame and its end, and returns that frame's data."""
        async with asyncio.timeout(WAIT):
            await self._reading
            assert await self.process.wait() == 0
        assert self.frames, self.stderr()
        name, data = self.frames[-1]
        assert name == Frame.GONE
        fields: dict[str, Any] = data
        return fields

    def stderr(self) -> str:
        """Returns what it wrote beside the frames."""
        return self._stderr.read_text()

    async def close(self) -> None:
        """Ends it by force, if it has not ended."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await asyncio.wait({self._reading}, timeout=WAIT)
        self.leave()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        reader = FrameReader()
        while data := await self.process.stdout.read(1 << 16):
            self.frames += reader.feed(data)
            self._news.set()
        self._news.set()


@asynccontextmanager
async def tender(folder: Path, raised: CellSpec | None = None) -> AsyncIterator[Tender]:
    """Starts a tender, tells it what to raise, and proves at the end that nothing is left of it."""
    log = folder / "tender.err"
    with log.open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "hum_workers.tender"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=err,
            cwd="/",
            start_new_session=True,
        )
    it = Tender(process, log)
    try:
        if raised is not None:
            it.send(Frame.RAISE, raised.to_wire())
        yield it
    finally:
        await it.close()
    assert "Traceback" not in it.stderr()
    async with asyncio.timeout(5):
        await all_end(processes(folder))
    assert list(map(str, processes(folder))) == []
