"""One model over machines of a network: what a cut link and a stranger at the door do.

    python -m bench.llama_net [--short]

Three network namespaces, each with a humd and a bee of its own, and a fourth for strangers; needs
root. Cuts the first slice's link in mid-stream for 5, 8 and 60 s, and has everybody knock who
should not. Prints tables and, last, one JSON line. Exit code 1 if a promise was broken or it could
not be tried.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from bench.llama_net_run import Cut, Strangers, bytes_a_token, cut, strangers
from bench.llama_net_stage import stage
from bench.network import NetworkError, why_not
from hum_workers.errors import HumError
from scripts.rehearsal import RehearsalError

LONG, SHORT = (5.0, 8.0, 60.0), (5.0, 20.0)


def cuts_table(cuts: Sequence[Cut]) -> str:
    """Returns the table of links that were away, in Markdown."""
    columns = ("link away for", "longest silence", "error", "withdrawn", "lease over", "recycled")
    lines = [f"| {' | '.join(columns)} | serving again, from the link's return | the stream |"]
    lines.append("| ---: |" + " ---: |" * len(columns) + " --- |")
    for one in cuts:
        times = (one.error, one.withdrawn, one.lease_over, one.recycled, one.serving)
        cells = " | ".join("–" if time is None else f"{time:.1f}" for time in times)
        end = "goes on" if one.ending == "finish" else one.ending
        lines.append(f"| {one.seconds:g} s | {one.gap:.1f} | {cells} | {end} |")
    return "\n".join(lines)


def strangers_table(found: Strangers) -> str:
    """Returns the table of strangers, in Markdown."""
    lines = ["| a stranger | seconds | what it sees | the line in the log |"]
    lines.append("| --- | ---: | --- | --- |")
    lines += [
        f"| {one.name} | {one.seconds:.2f} | {one.how} | {one.line} |" for one in found.knocks
    ]
    return "\n".join(lines)


async def everything(seconds: Sequence[float]) -> int:
    """Tries all of it, prints it, and returns the exit code."""
    async with stage() as at:
        reference = (await at.ask()).text
        wire = await bytes_a_token(at)
        cuts = [await cut(at, each, reference) for each in seconds]
        print(cuts_table(cuts), flush=True)
        found = await strangers(at)
        print(f"\n{strangers_table(found)}")
    faults = [fault for one in cuts for fault in one.faults] + found.faults
    for name, (there, back) in wire.items():
        print(f"slice {name}: {there:,.0f} bytes a token to it, {back:,.0f} from it, on the cable")
    print(f"beside the strangers: longest silence of the stream {found.gap:.2f} s")
    for fault in faults:
        print(f"BROKEN: {fault}")
    result = {
        "bench": "llama_net",
        "broken": len(faults),
        "cuts": [asdict(one) for one in cuts],
        "strangers": asdict(found),
        "bytes_a_token": wire,
    }
    print(json.dumps(result))
    return int(bool(faults))


def main() -> int:
    """Prints the tables and returns the exit code."""
    parser = argparse.ArgumentParser(prog="llama_net", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="the long cut ends with the lease")
    options = parser.parse_args()
    if reason := why_not():
        print(f"llama_net: {reason}", file=sys.stderr)
        return 1
    try:
        return asyncio.run(everything(SHORT if options.short else LONG))
    except (NetworkError, RehearsalError, HumError, OSError, TimeoutError) as error:
        print(f"llama_net: {error or 'no answer in time'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
