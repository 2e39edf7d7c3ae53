"""Who is left when something dies: every case in every kind of confinement.

    python -m bench.chaos [--short | --real] [--case WORDS] [--model FOLDER]

Each run is a bee under a fake humd in front of the scripted engine (`--real`: vLLM), one act of
violence, and the seconds until no member of the engine's tree is alive; the scripted engine's
members each hold a connection, whose end is the proof. Prints a table and, last, one JSON line.
Exit code 1 if anything was left or took longer than 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.chaos_cases import ALL, LIMIT, REAL, SHORT, WAYS, Case
from bench.chaos_run import ChaosError, Outcome, run
from hum_workers import lifecycle
from hum_workers.process import confine

MODEL = Path(__file__).resolve().parent.parent / ".cache" / "smollm2"
Row = tuple[Case, dict[tuple[str, str], Outcome]]


def ways() -> list[tuple[str, str]]:
    """Returns the kinds of confinement that this host allows."""
    allows = confine.survey()
    return [
        (how, cgroup)
        for how, cgroup in WAYS
        if (how == "guard" or allows.namespace) and (cgroup == "off" or allows.unified)
    ]


async def matrix(cases: Sequence[Case], model: Path | None) -> list[Row]:
    """Makes all runs, one after the other."""
    lifecycle.become_subreaper()
    rows: list[Row] = []
    for case in cases:
        row: dict[tuple[str, str], Outcome] = {}
        for way in ways() if model is None else ways()[:1] + ways()[-1:]:
            row[way] = outcome = await run(case, way, model=model)
            mark = "" if sound(case, way, outcome) else "  <-- " + "; ".join(outcome.left)
            print(f"{case.name}, {'/'.join(way)}: {outcome.dead:.2f} s{mark}", file=sys.stderr)
        rows.append((case, row))
    return rows


def sound(case: Case, way: tuple[str, str], outcome: Outcome) -> bool:
    """Returns whether a run kept its promise; one that nobody gave can't be broken."""
    return way[0] not in case.covered or (outcome.dead <= LIMIT and not outcome.left)


def table(rows: Sequence[Row]) -> str:
    """Returns the table of seconds to no live member, in Markdown."""
    columns = list(rows[0][1])
    lines = ["| what happens | " + " | ".join("/".join(way) for way in columns) + " | the turn |"]
    lines.append("| --- |" + " ---: |" * len(columns) + " --- |")
    for case, row in rows:
        cells = [_cell(case, way, row[way]) for way in columns]
        endings = sorted({outcome.code for outcome in row.values() if outcome.code})
        lines.append(f"| {case.name} | {' | '.join(cells)} | {', '.join(endings) or '–'} |")
    return "\n".join(lines)


def _cell(case: Case, way: tuple[str, str], outcome: Outcome) -> str:
    text = f"{outcome.dead:.2f}" if outcome.dead < math.inf else "live on"
    text += " left" if outcome.left and outcome.dead < math.inf else ""
    return text if way[0] in case.covered else f"({text})"


def as_json(rows: Sequence[Row]) -> str:
    """Returns the one line for a machine."""
    runs = [
        {
            "case": case.name,
            "confine": way[0],
            "cgroup": way[1],
            "dead_s": round(outcome.dead, 3) if outcome.dead < math.inf else None,
            "ending_s": None if outcome.ending is None else round(outcome.ending, 3),
            "ending": outcome.code,
            "left": list(outcome.left),
            "covered": way[0] in case.covered,
            "ok": sound(case, way, outcome),
        }
        for case, row in rows
        for way, outcome in row.items()
    ]
    return json.dumps({"bench": "chaos", "broken": sum(not r["ok"] for r in runs), "runs": runs})


def main() -> int:
    """Prints the figures and returns the exit code."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few cases")
    parser.add_argument("--real", action="store_true", help="kills of real vLLM, a minute each")
    parser.add_argument("--case", help="only cases with these words in their names")
    parser.add_argument("--model", type=Path, default=MODEL, help="for --real")
    options = parser.parse_args()
    cases = SHORT if options.short else REAL if options.real else ALL
    if options.case:
        cases = tuple(case for case in cases if options.case in case.name)
    try:
        rows = asyncio.run(matrix(cases, options.model if options.real else None))
    except ChaosError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not rows:
        print("chaos: no such case", file=sys.stderr)
        return 2
    print(table(rows))
    print(as_json(rows))
    return int(any(not sound(case, way, run) for case, row in rows for way, run in row.items()))


if __name__ == "__main__":
    sys.exit(main())
