"""One model over two slices: a rehearsal humd, two slice bees, a coordinator, and an answer.

Everything runs on this machine, each bee with a key of its own; prints the map of the route, the
answer as it comes, and what it cost. Ctrl-C at any moment stops everything.

    python -m scripts.demo_llama [--prompt TEXT] [--slices N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from scripts.demo import PROMPT, Run, Stop, ask, finished, interrupted, measure, table
from scripts.llama_cpp import HOME
from scripts.progress import Progress
from scripts.rehearsal import Rehearsal, RehearsalError
from scripts.smollm2 import GGUF

WORKER = "hum_workers.llama_rpc_worker"
MODEL = "smollm2"
SLICE = """[bee]
name = "slice-{number}"
[cell]
role = "slice"
[engine]
bin = {bin}
[rpc]
memory = "{memory}MiB"
"""
COORDINATOR = """[bee]
name = "coordinator"
[cell]
role = "coordinator"
[engine]
bin = {bin}
[model]
path = {model}
served_name = "{name}"
ctx = 2048
[[slices]]
discover = true
[split]
policy = "by-memory"
"""
START = 300.0
"""Seconds for slices and coordinator."""


def eggs(folder: Path, slices: int) -> tuple[list[Path], Path]:
    """Writes the eggs of the slices and of the coordinator, and returns where."""
    bin_ = json.dumps(str(HOME / "current" / "bin"))
    found = []
    # A little more than each must hold: a route takes as few slices as it can.
    memory = 40 + 140 // slices
    for number in range(1, slices + 1):
        path = folder / f"slice-{number}.toml"
        path.write_text(SLICE.format(number=number, bin=bin_, memory=memory))
        found.append(path)
    front = folder / "coordinator.toml"
    model = json.dumps(str(HOME / "model" / Path(GGUF).name))
    front.write_text(COORDINATOR.format(bin=bin_, model=model, name=MODEL))
    return found, front


async def start(rehearsal: Rehearsal, slices: int, run: Run) -> None:
    """Brings up humd, the slices and the coordinator, and tells of it."""
    began = monotonic()
    with Progress() as progress:
        progress.stage("starting a rehearsal humd")
        await rehearsal.start_humd()
        rehearsal.on_event = partial(tell, progress)
        lending, front = eggs(rehearsal.folder, slices)
        for egg in lending:
            progress.stage(f"starting llama-rpc-worker --egg {egg.name}")
            await rehearsal.start_bee(egg, module=WORKER)
        progress.stage(f"starting llama-rpc-worker --egg {front.name}")
        await rehearsal.start_bee(front, module=WORKER)
        await rehearsal.serves(MODEL, START)
        rehearsal.on_event = None
        run.ready = monotonic() - began


def tell(progress: Progress, event: dict[str, Any]) -> None:
    """Shows what a line of a bee's log means for the start."""
    match event:
        case {"event": "worker.slice.door", "port": port}:
            progress.say(f"a slice opened its door at port {port}")
        case {"event": "worker.slice.leased", "egg": egg, "layers": layers}:
            progress.say(f"{egg} is leased for layers {layers}")
        case {"event": "worker.route", "lines": lines}:
            for line in lines:
                progress.say(f"  {line}")
        case {"event": "worker.route.incomplete", "reason": reason}:
            progress.say(f"route: {reason}")
        case {"event": "worker.cell.stage", "stage": stage}:
            progress.stage(f"engine: {stage}")


async def play(text: str, slices: int, stop: Stop) -> int:
    """Returns the exit code: 0 when an answer came and nothing is left."""
    run, failed, began = Run(), "", monotonic()
    rehearsal = Rehearsal()
    stop.hurry = rehearsal.hurry
    try:
        async with rehearsal:
            try:
                await start(rehearsal, slices, run)
                await ask(rehearsal, text, MODEL, run)
                measure(rehearsal, run)
                table(run)
            except (RehearsalError, OSError) as error:
                failed = str(error) or type(error).__name__
            finally:
                stop.stopping()
                print("stopping bees and engines …", flush=True)
                began = monotonic()
        took = monotonic() - began
    finally:
        for line in rehearsal.left:
            print(f"left behind: {line}", file=sys.stderr)
    return finished("demo-llama", failed, rehearsal, took, stop)


def main() -> int:
    """Runs the demo and returns its exit code."""
    parser = argparse.ArgumentParser(prog="demo-llama", description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT")
    parser.add_argument("--slices", type=int, default=2, metavar="N", choices=range(1, 9))
    options = parser.parse_args()

    async def run() -> int:
        stop = Stop()
        try:
            return await play(options.prompt, options.slices, stop)
        except asyncio.CancelledError:
            return interrupted("demo-llama", stop)

    try:
        return asyncio.run(run())
    except OSError as error:
        print(f"demo-llama: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
