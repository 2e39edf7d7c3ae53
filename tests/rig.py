"""A bee in front of the scripted engine, under the fake humd: what most tests of actors need.

`egg` writes an egg whose engine is the scripted one, `running_bee` starts `vllm-worker` as the
operator does. Everything lies in one short temporary folder, the user's own state is not touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hum_workers.fake_humd.asker import Answer, Asker
from hum_workers.fake_humd.server import FakeHumd

ROOT = Path(__file__).parent.parent
SITE = ROOT / "tests" / "fakes" / "site"
VLLM, LLAMA = "hum_workers.vllm_worker", "hum_workers.llama_rpc_worker"
"""The workers as modules."""
WAIT = 20.0
"""Seconds a test waits for an event before it fails; a loaded machine may need some of them."""


def egg(
    folder: Path,
    *,
    name: str = "echo",
    fake: Mapping[str, Any] | None = None,
    extra: str = "",
    bee: str = "",
    model: str = "",
) -> Path:
    """Writes an egg for the scripted engine and returns its path. `extra` is TOML after `[model]`.

    `fake` scripts the process (FAKE_ENGINE), `bee` and `model` are lines of those tables.
    """
    (folder / "model").mkdir(exist_ok=True)
    path = folder / f"{name}.toml"
    script = json.dumps(json.dumps(dict(fake or {})))
    path.write_text(
        f"""[bee]
{bee}
[model]
path = "./model"
served_name = "{name}"
{model}
[engine]
python = {json.dumps(sys.executable)}
env = {{ PYTHONPATH = {json.dumps(str(SITE))}, FAKE_ENGINE = {script} }}
{extra}
""",
        "utf-8",
    )
    return path


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a bee that keeps everything below `folder`."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("HUM_", "XDG_"))},
        "HUM_THRUM_SOCK": str(folder / "thrum.sock"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


class Bee:
    """A running `vllm-worker`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._log = log

    def log(self) -> list[dict[str, Any]]:
        """Returns what it logged so far; lines that are no JSON as `{"raw": line}`."""
        lines = self._log.read_text("utf-8", "replace").split("\n")
        return [_parsed(line) for line in lines if line.strip()]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Returns the logged events of one name."""
        return [entry for entry in self.log() if entry.get("event") == name]

    async def stop(self, number: int = signal.SIGTERM, timeout: float = WAIT) -> int:
        """Signals it and returns its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(timeout):
            return await self.process.wait()


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {"raw": line}
    return value if isinstance(value, dict) else {"raw": line}


async def worker(
    folder: Path, *args: str | Path, stdin: bytes = b"", program: str = VLLM
) -> tuple[int, str, str]:
    """Runs a worker to its end and returns exit code, output and error output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", program, *map(str, args)),
        env=environment(folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT):
            out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out.decode(), err.decode()


@asynccontextmanager
async def running_bee(
    folder: Path, *eggs: Path, dev: bool = True, program: str = VLLM
) -> AsyncIterator[Bee]:
    """Starts a worker with the eggs; afterwards it is stopped, by force if need be.

    `dev`: with Python's own checks, which cost time and memory.
    """
    log = folder / f"bee-{len(list(folder.glob('bee-*.log')))}.log"
    flags = [part for path in eggs for part in ("--egg", str(path))]
    with log.open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *(("-X", "dev") if dev else ())),
            *("-m", program, *flags),
            env=environment(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=err,
            stderr=err,
        )
    bee = Bee(process, log)
    try:
        yield bee
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(WAIT):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
                raise


@asynccontextmanager
async def served(
    folder: Path, *eggs: Path, model: str = "echo", dev: bool = True
) -> AsyncIterator[tuple[FakeHumd, Bee, Asker]]:
    """Yields a fake humd, a bee that advertises `model` there, and an asker."""
    async with await FakeHumd.start(folder / "thrum.sock", folder / "state") as humd:
        async with running_bee(folder, *eggs, dev=dev) as bee:
            await humd.until(lambda: humd.serves(model), timeout=WAIT)
            async with await Asker.connect(folder / "thrum.sock") as asker:
                yield humd, bee, asker


def fake(**script: Any) -> str:
    """Returns a prompt that scripts one answer of the scripted engine."""
    return json.dumps({"fake": script})


def ended(answer: Answer) -> dict[str, Any]:
    """Returns the ending of an answer; fails when it has none."""
    assert answer.ending is not None, f"no ending on {answer.sid}"
    return answer.ending
