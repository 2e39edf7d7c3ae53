"""What slices, their doors and the bee cost: tokens a second, bytes a token, seconds a gigabyte.

    python -m bench.rpc [--short] [--runs N]

The small model by llama-server alone, over 1, 2 and 3 slices straight, through doors, and by whole
bees under a humd: all in turn in one run, each raised anew, all on this machine. Prints a table
and, last, one JSON line. Exit code 0 whatever the figures are, 1 when they could not be measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

import uvloop

from bench.clients import Client, Take
from bench.figures import Figure, as_json, spread, table
from bench.rpc_layouts import SMALL, Layout, running
from bench.rpc_model import write
from hum_workers.errors import HumError
from scripts.rehearsal import RehearsalError

TOKENS, FEW = 64, 24
WORDS = "A bee flew from flower to flower over wide green hills and told the others of it. " * 20
"""With the template about 300 tokens: at each multiple of 256 the graph is sent anew."""
GIGABYTE = 1_000_000_000
_numbers = count(1000)


@dataclass
class Taken:
    """What was measured of a layout, a value a run."""

    prefill: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    wire: list[list[tuple[float, float]]] = field(default_factory=list)
    """Bytes a token to and from each slice."""


def layouts(short: bool) -> list[Layout]:
    """Returns what is compared, in the order in which it takes turns."""
    if short:
        return [Layout("alone"), *(Layout(way, 2) for way in ("straight", "door", "bee"))]
    found = [Layout("alone")]
    for slices in (1, 2, 3):
        found += [Layout(way, slices) for way in ("straight", "door", "bee")]
        found.append(Layout("door", slices, "last"))
    return found


async def ask(client: Client, tokens: int, words: str = WORDS) -> Take:
    """Asks a prompt of which no cache holds more than what the template puts in front.

    Raises:
        RehearsalError: no whole answer.
    """
    text = f"{next(_numbers)}. {words} Tell the story again."
    sampling = {"maxTokens": tokens, "temperature": 0, "ignoreEos": True}
    take = await client.ask({"text": text, "sampling": sampling})
    if take.lost or take.tokens != tokens:
        raise RehearsalError(f"no whole answer: {take.error or take}")
    return take


async def measure(layout: Layout, taken: Taken) -> None:
    """Raises the layout and adds a run: a short and a long answer to prompts of one length."""
    async with running(layout) as at:
        taken.load.append(at.load)
        await ask(at.client, 1, "")  # warms up
        was = at.traffic()
        short = await ask(at.client, FEW)
        between = at.traffic()
        long = await ask(at.client, TOKENS)
        after = at.traffic()
    taken.prefill += [one.read / (one.first - one.began) for one in (short, long)]
    taken.generate.append((TOKENS - 1) / (long.ended - long.first))
    ends = zip(was, between, after, strict=True)
    more = [_more(*three) for three in ends]
    taken.wire.append([(there / (TOKENS - FEW), back / (TOKENS - FEW)) for there, back in more])


def _more(
    was: tuple[int, int], between: tuple[int, int], after: tuple[int, int]
) -> tuple[int, int]:
    """Returns how many bytes more the second prompt took than the first, each way."""
    there, back = ((c - b) - (b - a) for a, b, c in zip(was, between, after, strict=True))
    return there, back


async def loads(runs: int, size: int) -> list[Figure]:
    """Seconds for each gigabyte of weights: two models' loads compared, so that the rest is out."""
    figures: list[Figure] = []
    took: dict[tuple[str, int], list[float]] = {}
    ways = ("straight", "door")
    with tempfile.TemporaryDirectory(prefix="humb-", dir="/tmp") as folder:
        models = [Path(folder) / f"{n}.gguf" for n in range(2)]
        for n, path in enumerate(models):
            write(SMALL, path, size // 10 if n == 0 else size)
        sent = (size - size // 10) / GIGABYTE
        for run in range(runs):
            for way in ways if run % 2 == 0 else ways[::-1]:
                for n, path in enumerate(models):
                    async with running(Layout(way, 1, "last", model=path)) as at:
                        took.setdefault((way, n), []).append(at.load)
    for way in ways:
        each = [(b - a) / sent for a, b in zip(took[way, 0], took[way, 1], strict=True)]
        figures.append(Figure(f"load, 1 slice, {way}", (median(each),), "s/GB", load=spread(each)))
    return figures


def figures_of(layout: Layout, taken: Taken) -> list[Figure]:
    """Returns the rows of a layout."""
    speeds = median(taken.prefill), median(taken.generate)
    load = f"generate {spread(taken.generate)}; ready after {median(taken.load):.2f} s"
    figures = [Figure(f"{layout}: prefill / generate", speeds, "tokens/s", load=load)]
    for number in range(len(taken.wire[0])):
        there, back = (median(run[number][way] for run in taken.wire) for way in (0, 1))
        name = f"{layout}: bytes a token to / from slice {number + 1}"
        figures.append(Figure(name, (there, back), "B"))
    return figures


async def everything(options: argparse.Namespace) -> Sequence[Figure]:
    """Measures all of it."""
    taken = {layout: Taken() for layout in layouts(options.short)}
    runs = 1 if options.short else options.runs
    for run in range(runs):
        order = list(taken)
        for layout in order if run % 2 == 0 else order[::-1]:
            await measure(layout, taken[layout])
            print(f"run {run + 1}: {layout}", file=sys.stderr)
    figures = [figure for layout, each in taken.items() for figure in figures_of(layout, each)]
    return figures + await loads(runs, GIGABYTE // 10 if options.short else GIGABYTE)


def main() -> int:
    """Prints the figures and returns the exit code."""
    parser = argparse.ArgumentParser(prog="rpc", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="2 slices once, figures mean little")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each (3)")
    options = parser.parse_args()
    try:
        figures = uvloop.run(everything(options))
    except (RehearsalError, HumError, OSError, TimeoutError, ValueError) as error:
        print(f"rpc: {error or 'no answer in time'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(table(figures))
    print(as_json("rpc", figures, short=options.short))
    return 0


if __name__ == "__main__":
    sys.exit(main())
