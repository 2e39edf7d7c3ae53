"""One prompt through everything: a rehearsal humd, the bee, its tender, a real vLLM, and back.

Shows the stages of the engine's start, streams the answer, prints what it cost, stops everything
and looks whether anything is left. Ctrl-C at any moment does the same stop; a second one skips its
grace periods.

    python -m scripts.demo [--prompt TEXT] [--egg FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tomllib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from hum_workers.fake_humd.asker import ENDINGS, Asker, spoken
from scripts.progress import Progress
from scripts.rehearsal import Rehearsal, RehearsalError

ROOT = Path(__file__).resolve().parent.parent
EGG = ROOT / "examples" / "smollm2.toml"
PROMPT = "Write four sentences about bees."
START = 900.0
"""Seconds for the engine's start: the bee gives up long before, unless there is progress."""
ANSWER = 300.0


@dataclass
class Run:
    """What the table at the end tells."""

    ready: float = 0.0
    first: float | None = None
    took: float = 0.0
    tokens: int = 0
    ending: dict[str, Any] | None = None
    memory: list[tuple[str, int, int]] = field(default_factory=list)
    """Name, pid, bytes of each process."""

    @property
    def answered(self) -> bool:
        return self.ending is not None and self.ending["chi"] == "finish" and self.first is not None


async def start(rehearsal: Rehearsal, egg: Path, model: str, run: Run) -> None:
    """Brings up humd, bee and engine, and tells of it."""
    began = monotonic()
    with Progress() as progress:
        progress.stage("starting a rehearsal humd")
        await rehearsal.start_humd()
        progress.stage(f"starting vllm-worker --egg {egg}")
        rehearsal.on_event = partial(tell, progress)
        await rehearsal.start_bee(egg)
        await rehearsal.serves(model, START)
        rehearsal.on_event = None
        run.ready = monotonic() - began


def tell(progress: Progress, event: dict[str, Any]) -> None:
    """Shows what a line of the bee's log means for the start."""
    match event:
        case {"event": "worker.cell.stage", "stage": stage}:
            detail = event.get("detail", "")[:60]
            progress.stage(" — ".join(filter(None, (f"engine: {stage}", detail))))
        case {"event": "worker.cell.restart"}:
            progress.say("the engine failed; it is started again")
        case {"event": "worker.hello.sent", "models": models}:
            progress.say(f"the bee said hello with {', '.join(models) or 'no model yet'}")


async def ask(rehearsal: Rehearsal, text: str, model: str, run: Run) -> None:
    """Sends the prompt and writes the answer as it comes."""
    print(f"\n> {text}\n")
    async with await Asker.connect(rehearsal.socket) as asker, asyncio.timeout(ANSWER):
        began = monotonic()
        sid = asker.prompt(text=text, modelId=model, sampling={"temperature": 0, "maxTokens": 160})
        async for tone in asker.stream(sid):
            _, delta = spoken(tone)
            if delta:
                run.first = run.first or monotonic() - began
                sys.stdout.write(delta)
                sys.stdout.flush()
            if tone["chi"] in ENDINGS:
                run.ending = tone
        run.took = monotonic() - began
    print("\n")
    ending = run.ending or {"message": "humd closed the connection"}
    run.tokens = int((ending.get("usage") or {}).get("output_tokens", 0))
    if not run.answered:
        raise RehearsalError(f"no answer: {ending.get('message', ending.get('finishReason'))}")


def measure(rehearsal: Rehearsal, run: Run) -> None:
    """Notes the memory of bee, tender and engine."""
    for process in rehearsal.processes():
        try:
            memory = process.memory_info().rss
            run.memory.append((title(process), process.pid, memory))
        except psutil.Error:
            continue


def title(process: psutil.Process) -> str:
    """Returns what a process is to a person."""
    words = process.cmdline()
    line = " ".join(words)
    for part, name in (
        ("hum_workers.vllm_worker", "bee"),
        ("hum_workers.llama_rpc_worker", "bee"),
        ("hum_workers.tender", "tender"),
        ("unshare", "namespace"),
        ("guard.py", "guard"),
        ("llama-server", "engine: llama-server"),
        ("rpc-server", "engine: rpc-server"),
        ("resource_tracker", "engine: resource tracker"),
        ("VLLM::", f"engine: {words[0].removeprefix('VLLM::') if words else ''}"),
        ("vllm.entrypoints", "engine: API server"),
    ):
        if part in line:
            return name
    return str(process.name())


def table(run: Run) -> None:
    """Prints what it took."""
    assert run.first is not None
    pace = (run.tokens - 1) / (run.took - run.first) if run.took > run.first else 0.0
    rows = [
        ("time to ready", f"{run.ready:.1f} s"),
        ("time to first token", f"{run.first * 1000:.0f} ms"),
        ("answer", f"{run.tokens} tokens in {run.took:.1f} s"),
        ("speed", f"{pace:.1f} tokens/s"),
        *(
            (f"memory of {name} (pid {pid})", f"{rss / 2**20:.0f} MiB")
            for name, pid, rss in run.memory
        ),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {value:>24}" for name, value in rows))
    print()


async def play(egg: Path, text: str, model: str, stop: Stop) -> int:
    """Returns the exit code: 0 when an answer came and nothing is left."""
    run, failed = Run(), ""
    rehearsal = Rehearsal()
    stop.hurry = rehearsal.hurry
    try:
        async with rehearsal:
            try:
                await start(rehearsal, egg, model, run)
                await ask(rehearsal, text, model, run)
                measure(rehearsal, run)
                table(run)
            except (RehearsalError, OSError) as error:
                failed = str(error) or type(error).__name__
            finally:
                stop.stopping()
                print("stopping bee and engine …", flush=True)
                began = monotonic()
        stopped = monotonic() - began
    finally:
        for line in rehearsal.left:
            print(f"left behind: {line}", file=sys.stderr)
    return finished("demo", failed, rehearsal, stopped, stop)


def finished(name: str, failed: str, rehearsal: Rehearsal, stopped: float, stop: Stop) -> int:
    """Says how it ended, and returns the exit code."""
    if failed:
        print(f"{name}: {failed}", file=sys.stderr)
        return 1
    if rehearsal.left:
        return 1
    print(f"all processes, sockets and folders are gone, after {stopped:.1f} s")
    return stop.code


def interrupted(name: str, stop: Stop) -> int:
    """Says which signal ended it, and returns the exit code."""
    print(f"{name}: interrupted by {signal.Signals(stop.code - 128).name}", file=sys.stderr)
    return stop.code


class Stop:
    """Signals: the first cancels the play, which then stops in order; the second hurries it."""

    def __init__(self) -> None:
        self.code = 0
        self.hurry: asyncio.Event | None = None
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signal, number)

    def _signal(self, number: signal.Signals) -> None:
        self.code = self.code or 128 + number
        if self._task is not None:
            self._task.cancel()
            self._task = None
        elif self.hurry is not None:
            self.hurry.set()

    def stopping(self) -> None:
        """From here on the play stops by itself: the next signal hurries it."""
        self._task = None


def served_name(egg: Path) -> str:
    """Returns the model that the egg serves."""
    model = tomllib.loads(egg.read_text())["model"]
    return str(model.get("served_name") or Path(model["path"]).name)


async def amain(options: argparse.Namespace) -> int:
    """Returns the exit code, also of a run that was interrupted."""
    stop = Stop()
    try:
        return await play(options.egg, options.prompt, served_name(options.egg), stop)
    except asyncio.CancelledError:
        return interrupted("demo", stop)


def main() -> int:
    """Runs the demo and returns its exit code."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT")
    parser.add_argument("--egg", type=Path, default=EGG, metavar="FILE")
    options = parser.parse_args()
    try:
        return asyncio.run(amain(options))
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
