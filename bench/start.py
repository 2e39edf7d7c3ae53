"""How soon `vllm-worker` is there: `--help`, and from its start to its hello on the thrum.

    python -m bench.start [--short]

The thrum's other end is this program, so that nothing but the bee is measured. Prints a table and,
last, one JSON line. Exit code 0 whatever the figures are, 1 when they could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import uvloop

from bench.figures import Figure, as_json, p50_p99, table
from bench.stand import stand
from scripts.rehearsal import RehearsalError

COMMAND = Path(sys.executable).with_name("vllm-worker")


def run(*command: str | Path) -> float:
    """Returns the milliseconds that a command takes."""
    began = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return (perf_counter() - began) * 1000


async def hello() -> float:
    """Returns the milliseconds from the start of a bee to its hello."""
    async with stand(humd=False) as at:
        return at.hello


async def measure(runs: int) -> list[Figure]:
    """Returns both figures; the median is held to the budget, the 99th percentile shown."""
    await asyncio.to_thread(run, COMMAND, "--help")  # the first one may compile
    bare, helps = [], []
    for _ in range(runs):
        bare.append(await asyncio.to_thread(run, sys.executable, "-c", "pass"))
        helps.append(await asyncio.to_thread(run, COMMAND, "--help"))
    hellos = [await hello() for _ in range(runs)]
    load = f"{runs} runs; a bare interpreter {p50_p99(bare)[0]:.0f} ms"
    return [
        Figure("vllm-worker --help, p50 / p99", p50_p99(helps), "ms", (100.0, None), load=load),
        Figure("start to hello, p50 / p99", p50_p99(hellos), "ms", (300.0, None), load=load),
    ]


def main() -> int:
    """Prints the figures and returns the exit code."""
    parser = argparse.ArgumentParser(prog="start", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="one run, figures mean little")
    options = parser.parse_args()
    try:
        figures = uvloop.run(measure(1 if options.short else 10))
    except (RehearsalError, OSError, subprocess.CalledProcessError) as error:
        print(f"start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(table(figures))
    print(as_json("start", figures, short=options.short))
    return 0


if __name__ == "__main__":
    sys.exit(main())
