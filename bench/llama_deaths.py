"""What happens to a model over slices when something dies: real llama.cpp, two slices, fake humd.

    python -m bench.llama_deaths [--short] [--case WORDS]

Each run raises two slices and a coordinator, kills or freezes one process while the coordinator
loads, while it is idle or in mid-stream, and measures in seconds since the act: until the turn has
its ending, until nobody of the cell that was hit is alive and nobody of the coordinator's, until a
new rpc-server stands behind every door, until the next prompt is answered. A bee that was killed
is started again after 1 s. Prints a table and, last, one JSON line. Exit code 1 where a promise was
broken.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

from bench.llama_deaths_run import Case, DeathError, Outcome, run
from hum_workers import lifecycle

MOMENTS = ("loading", "idle", "streaming")
WHOM = (
    ("slice-1", "engine"),
    ("slice-2", "engine"),
    ("slice-1", "tender"),
    ("slice-1", "bee"),
    ("front", "engine"),
    ("front", "tender"),
    ("front", "bee"),
)
ALL = (
    *(Case(seat, whom, moment) for seat, whom in WHOM for moment in MOMENTS),
    Case("front", "bee", "streaming", away=True),
    *(Case("slice-2", "engine", moment, freeze=True) for moment in MOMENTS),
)
SHORT = (
    Case("slice-1", "engine", "streaming"),
    Case("front", "bee", "streaming"),
    Case("slice-2", "engine", "streaming", freeze=True),
)
LIMIT = 5.0
"""Seconds that a death may take to be everybody's death, a slice to be recycled."""
FROZEN = 20.0
"""The same for a slice that says nothing: it is found by its silence."""
PROMPT = 10.0
"""Seconds for a bee that is started again to take its leases back."""
LEASE = 20.0
"""Seconds that the lease of a coordinator's bee runs on when it does not come back."""
Row = tuple[Case, Outcome]


def flaws(case: Case, outcome: Outcome) -> Iterator[str]:
    """Yields the promises that a run has broken."""
    if outcome.left:
        yield f"left: {', '.join(outcome.left)}"
    if max(outcome.dead, outcome.front_dead) > (FROZEN if case.freeze else LIMIT):
        yield "members live on"
    if outcome.recycled > (FROZEN if case.freeze else LEASE if case.away else PROMPT) + LIMIT:
        yield "a slice was recycled late"
    if case.moment != "streaming":
        return
    if outcome.endings != 1:
        yield f"the turn had {outcome.endings} endings"
    if outcome.code == "finish":
        yield "the turn ended well"
    bee = (case.seat, case.whom) == ("front", "bee")
    if bee != (outcome.code == "bee_restarted"):
        yield f"the turn ended with {outcome.code}"
    if case.seat != "front" and f"slice {case.seat} at " not in outcome.message:
        yield f"the turn's error does not name the slice: {outcome.message}"


async def matrix(cases: Sequence[Case]) -> list[Row]:
    """Makes all runs, one after the other."""
    lifecycle.become_subreaper()
    rows: list[Row] = []
    for case in cases:
        outcome = await run(case)
        rows.append((case, outcome))
        for line in (*flaws(case, outcome), outcome.message, *outcome.reasons):
            if line:
                print(f"    {line}", file=sys.stderr)
        print(f"{case.name}: {_cells(outcome)}", file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Returns the table of seconds, in Markdown."""
    heads = ("who", "when", "turn's ending", "its dead", "coordinator's dead", "recycled")
    lines = [f"| {' | '.join(heads)} | serves again | unknown to humd |"]
    lines.append("| --- | --- |" + " ---: |" * (len(heads)))
    lines += [f"| {case.victim} | {case.moment} | {_cells(outcome)} |" for case, outcome in rows]
    return "\n".join(lines)


def _cells(outcome: Outcome) -> str:
    tone = "–" if outcome.tone is None else f"{outcome.tone:.2f} {outcome.code}"
    away = "–" if outcome.away is None else f"{outcome.away[0]:.1f} to {outcome.away[1]:.1f}"
    times = (outcome.dead, outcome.front_dead, outcome.recycled, outcome.serves)
    return " | ".join((tone, *(f"{seconds:.2f}" for seconds in times), away))


def as_json(rows: Sequence[Row]) -> str:
    """Returns the one line for a machine."""
    runs = [
        {
            "case": case.name,
            **dataclasses.asdict(outcome),
            "broken": list(flaws(case, outcome)),
        }
        for case, outcome in rows
    ]
    broken = sum(bool(one["broken"]) for one in runs)
    return json.dumps({"bench": "llama_deaths", "broken": broken, "runs": runs})


def main() -> int:
    """Prints the figures and returns the exit code."""
    parser = argparse.ArgumentParser(prog="llama_deaths", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few cases")
    parser.add_argument("--case", help="only cases with these words in their names")
    options = parser.parse_args()
    cases = [
        case for case in (SHORT if options.short else ALL) if (options.case or "") in case.name
    ]
    try:
        rows = asyncio.run(matrix(cases))
    except DeathError as error:
        print(f"llama_deaths: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not rows:
        print("llama_deaths: no such case", file=sys.stderr)
        return 2
    print(table(rows))
    print(as_json(rows))
    return int(any([*flaws(case, outcome)] for case, outcome in rows))


if __name__ == "__main__":
    sys.exit(main())
