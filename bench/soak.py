"""A soak: `python -m bench.soak [--prompts N] [--seed N] [--real]`.

Prompts through two eggs of the scripted engine (`--real`: through vLLM), with random cancels, kills
of engine, tender and bee, restarts of humd and askers that stop reading. Holds that every prompt
has one ending (one that is repeated after a death counts once), that text is complete or ended by
an error or a cancel, and that the bee grows in nothing from a third of the run to its end. Prints a
table and one line of JSON; exit code 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

from bench.soak_run import Soak, clock, left, soaked

MIB = 1024 * 1024
GROWTH = 8 * MIB
"""Bytes that the bee's memory may differ: pools and buffers of the allocator."""
FILES = 6
TASKS = 2
SHOWN = 20


def main() -> int:
    """Runs the bench and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--prompts", type=int, help="10,000, or 500 with --real")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--real", action="store_true", help="real vLLM with the small model")
    args = parser.parse_args()
    count = args.prompts or (500 if args.real else 10_000)
    print(f"seed {args.seed}, {count} prompts", flush=True)
    return asyncio.run(_bench(count, args.seed, real=args.real))


async def _bench(count: int, seed: int, *, real: bool) -> int:
    seconds = clock()
    async with soaked(seed=seed, count=count, real=real) as soak:
        took = seconds()
        faults = found(soak)
        figures = result(soak, faults) | {"seed": seed, "seconds": round(took, 1)}
    _show(soak, faults, took)
    print(json.dumps(figures))
    return 1 if faults else 0


def found(soak: Soak) -> list[str]:
    """Returns what does not hold."""
    faults = soak.audit.faults()
    before, after = soak.samples[0], soak.samples[-1]
    for name, allowed in (("rss", GROWTH), ("files", FILES), ("threads", 2), ("tasks", TASKS)):
        grown = getattr(after, name) - getattr(before, name)
        if grown > allowed:
            faults.append(f"{name}: {grown} more than at a third of the run")
    return faults + [f"left behind: {stat}" for stat in left(soak.folder)]


def result(soak: Soak, faults: list[str]) -> dict[str, Any]:
    """Returns the figures of a run."""
    before, after = soak.samples[0], soak.samples[-1]
    return {
        "bench": "soak",
        "prompts": len(soak.audit.turns),
        "endings": soak.audit.endings(),
        "acts": dict(Counter(soak.done)),
        "faults": len(faults),
        "rss_mib": [round(before.rss / MIB, 1), round(after.rss / MIB, 1)],
        "files": [before.files, after.files],
        "threads": [before.threads, after.threads],
        "tasks": [before.tasks, after.tasks],
    }


def _show(soak: Soak, faults: list[str], took: float) -> None:
    before, after = soak.samples[0], soak.samples[-1]
    print(f"{len(soak.audit.turns)} prompts in {took:.0f} s")
    print("\n| ending | turns |\n| --- | --- |")
    for name, count in soak.audit.endings().items():
        print(f"| {name} | {count} |")
    print("\n| act | times |\n| --- | --- |")
    for name, count in Counter(soak.done).items():
        print(f"| {name} | {count} |")
    print("\n| the bee, no turn open | at a third | at the end |\n| --- | --- | --- |")
    print(f"| memory, MiB | {before.rss / MIB:.1f} | {after.rss / MIB:.1f} |")
    for name in ("files", "threads", "tasks"):
        print(f"| {name} | {getattr(before, name)} | {getattr(after, name)} |")
    for fault in faults[:SHOWN]:
        print(f"FAULT {fault}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
