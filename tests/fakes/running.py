"""Starts the scripted engine for a test, the way the real one is started, and ends it for sure."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.contract import Target

SITE = Path(__file__).parent / "site"
"""Goes on PYTHONPATH: then `vllm` is the scripted engine."""

COMMAND = (sys.executable, "-c", "from vllm.entrypoints.cli.main import main; main()")
"""The command line of either engine, before `serve`."""

_START = 20.0


@dataclass
class Running:
    """A started engine, ready or not."""

    process: subprocess.Popen[bytes]
    target: Target
    output: Path
    """What it has written on both outputs."""

    def text(self) -> str:
        """Returns the output so far."""
        return self.output.read_text(errors="replace")

    async def ready(self) -> None:
        """Waits until it listens.

        Raises:
            AssertionError: it left instead.
        """
        async with asyncio.timeout(_START):
            while True:
                assert self.process.poll() is None, self.text()[-2000:]
                try:
                    _, writer = await asyncio.open_unix_connection(str(self.target.uds))
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                await writer.wait_closed()
                return

    async def gone(self) -> int:
        """Waits for its end and returns the exit code."""
        async with asyncio.timeout(_START):
            return await asyncio.to_thread(self.process.wait)


def environment(fake: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Returns the environment that makes `vllm` the scripted engine with these faults."""
    return {**os.environ, "PYTHONPATH": str(SITE), "FAKE_ENGINE": json.dumps(fake or {})}


def start(folder: Path, fake: Mapping[str, Any] | None = None, **config: Any) -> Running:
    """Starts it on a socket in `folder`; keys of `config` are flags without their dashes."""
    uds = folder / "engine.sock"
    settings: dict[str, Any] = {
        "model": "/models/scripted",
        "served-model-name": ["scripted"],
        "api-key": ["secret"],
        "uds": str(uds),
    }
    settings.update({key.replace("_", "-"): value for key, value in config.items()})
    (folder / "engine.yaml").write_text(json.dumps(settings))
    output = folder / "engine.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--config", str(folder / "engine.yaml")],
            env=environment(fake),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Running(process, Target(uds, settings["served-model-name"][0], "secret"), output)


@asynccontextmanager
async def running(
    folder: Path, fake: Mapping[str, Any] | None = None, **config: Any
) -> AsyncIterator[Running]:
    """A ready engine; its whole group is killed at the end."""
    engine = start(folder, fake, **config)
    try:
        await engine.ready()
        yield engine
    finally:
        end(engine)


def end(engine: Running) -> None:
    """Kills what is left of the engine's process group and reaps its first process."""
    try:
        os.killpg(engine.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    engine.process.wait()
