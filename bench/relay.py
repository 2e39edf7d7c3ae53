"""What bee and tender cost, against a direct client of the same engine in the same run.

    python -m bench.relay [--short] [--real | --only-real] [--runs N]

The scripted engine by default; `--real` adds vLLM with the small model. Direct and relayed requests
are interleaved, with a fixed pause between them. Prints a table and, last, one JSON line. Exit code
0 whatever the figures are, 1 when they could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import uvloop

from bench.clients import Client, Take, scripted
from bench.figures import Figure, as_json, p50_p99, spread, table
from bench.stand import Stand, cpu_us, peak_mib, stand
from scripts.rehearsal import RehearsalError

PAUSE = 0.01
"""Seconds between requests: a longer idle alone would double the direct figure."""
STORY = "Tell me a long story about a bee that travels around the world."


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    samples: int = 300
    runs: int = 5
    seconds: float = 4.0
    """Length of paced streams."""
    burst: int = 20_000
    """Tokens of each of 32 streams at full speed; a single one gets eight times as many."""
    turns: int = 1000
    hold: float = 4.0
    """Seconds that each of these turns lasts, so that all of them run at once."""


SHORT = Size(samples=8, runs=1, seconds=0.3, burst=500, turns=20, hold=0.6)


def sound(takes: Sequence[Take]) -> Sequence[Take]:
    """Returns the answers if every one is whole.

    Raises:
        RehearsalError: text was lost, or a turn failed.
    """
    lost = [take for take in takes if take.lost]
    if lost:
        why = lost[0].error or f"{lost[0].sent} characters sent, {lost[0].chars} came"
        raise RehearsalError(f"{len(lost)} of {len(takes)} answers are not whole: {why}")
    return takes


async def both(at: Stand, samples: int) -> tuple[list[float], list[float]]:
    """Returns the waits for a first text in ms: direct, relayed; taken in turn."""
    prompt = scripted(4)
    direct: list[float] = []
    relayed: list[float] = []
    for n in range(samples + 10):
        for client, waits in ((at.direct, direct), (at.relayed, relayed)):
            await asyncio.sleep(PAUSE)
            take = sound([await client.ask(prompt)])[0]
            if n >= 10:  # the first few warm up
                waits.append(take.wait)
    return direct, relayed


async def idle(at: Stand, size: Size) -> Figure:
    """Bee and tender alone."""
    direct, relayed = map(p50_p99, await both(at, size.samples))
    added = (relayed[0] - direct[0], relayed[1] - direct[1])
    load = f"idle; direct {direct[0]:.2f} / {direct[1]:.2f} ms; {size.samples} requests each"
    return Figure("first token, added, p50 / p99", added, "ms", (0.7, 2.5), load=load)


async def through_humd(at: Stand, size: Size) -> Figure:
    """Asker to first text."""
    direct, relayed = map(p50_p99, await both(at, size.samples))
    load = f"idle; direct {direct[0]:.2f} / {direct[1]:.2f} ms"
    return Figure("asker to first text through humd", relayed, "ms", (1.5, 3.0), load=load)


async def streams(client: Client, count: int, rate: float, tokens: int) -> list[Take]:
    """Runs so many paced streams side by side and returns them."""
    prompt = scripted(tokens, rate=rate)
    takes = await asyncio.gather(*(client.ask(prompt, traced=True) for _ in range(count)))
    return list(sound(takes))


async def beside(at: Stand, size: Size) -> Figure:
    """First token beside 30 streams of 50 tokens/s, each client beside its own streams."""
    waits: dict[str, list[float]] = {"direct": [], "relayed": []}
    clients: tuple[tuple[str, Client], ...] = (("direct", at.direct), ("relayed", at.relayed))
    each = max(size.samples // size.runs, 4)
    for _ in range(size.runs):
        for name, client in clients:
            length = int(50 * (each * (PAUSE + 0.005) + 0.5))
            others = asyncio.create_task(streams(client, 30, 50, length))
            await asyncio.sleep(0.2)
            for _ in range(each):
                await asyncio.sleep(PAUSE)
                waits[name].append(sound([await client.ask(scripted(4))])[0].wait)
            await others
    direct, relayed = p50_p99(waits["direct"]), p50_p99(waits["relayed"])
    added = (relayed[0] - direct[0], relayed[1] - direct[1])
    load = f"30 streams of 50/s through humd; direct {direct[0]:.2f} / {direct[1]:.2f} ms"
    return Figure("first token, added, beside streams", added, "ms", (1.2, 5.0), load=load)


def in_turn(at: Stand, run: int) -> tuple[Client, Client]:
    """Returns both clients, the other one first in every second run."""
    return (at.direct, at.relayed) if run % 2 == 0 else (at.relayed, at.direct)


def pace(takes: Sequence[Take]) -> float:
    """Returns tokens a second of all streams together."""
    span = max(take.ended for take in takes) - min(take.began for take in takes)
    return sum(take.tokens for take in takes) / span


def gaps(takes: Sequence[Take]) -> list[float]:
    """Returns the times between tokens in ms."""
    return [
        (later - earlier) * 1000
        for take in takes
        for earlier, later in zip(take.arrivals, take.arrivals[1:], strict=False)
    ]


async def paced(at: Stand, size: Size) -> list[Figure]:
    """32 streams of 50 tokens/s: throughput and time between tokens, direct and relayed in turn."""
    ratios, added = [], []
    for turn in range(size.runs):
        takes = {}
        for client in in_turn(at, turn):
            takes[client] = await streams(client, 32, 50, int(50 * size.seconds))
        direct, relayed = takes[at.direct], takes[at.relayed]
        ratios.append(pace(relayed) / pace(direct))
        before, after = p50_p99(gaps(direct)), p50_p99(gaps(relayed))
        added.append((after[0] - before[0], after[1] - before[1]))
    p50, p99 = (median(each) for each in zip(*added, strict=True))
    load = "32 streams of 50/s through humd"
    return [
        Figure(
            "tokens/s against direct",
            (median(ratios),),
            "",
            (0.99,),
            at_least=True,
            load=f"{load}; {spread(ratios)}",
        ),
        Figure("between tokens, added, p50 / p99", (p50, p99), "ms", (1.2, 2.5), load=load),
    ]


async def cpu(at: Stand, size: Size, rate: float, tokens: int) -> tuple[float, float, float]:
    """Returns CPU a token of tender and bee in µs, and tokens/s; medians of the runs."""
    rows = []
    for _ in range(size.runs):
        before = cpu_us(at.tender), cpu_us(at.bee)
        takes = await streams(at.relayed, 32, rate, tokens)
        after = cpu_us(at.tender), cpu_us(at.bee)
        count = sum(take.tokens for take in takes)
        rows.append(((after[0] - before[0]) / count, (after[1] - before[1]) / count, pace(takes)))
    tender, bee, speed = (median(each) for each in zip(*rows, strict=True))
    return tender, bee, speed


async def costs(at: Stand, size: Size) -> list[Figure]:
    """CPU a token, paced and at full speed, and how fast it goes."""
    calm = await cpu(at, size, 200, int(200 * size.seconds))
    full = await cpu(at, size, 0, size.burst)
    singles = []
    for _ in range(size.runs):
        take = sound([await at.relayed.ask(scripted(8 * size.burst))])[0]
        singles.append(pace([take]))
    return [
        Figure(
            "CPU a token, tender / bee",
            calm[:2],
            "µs",
            (18, 9),
            load=f"32 streams of 200/s through humd, pace 10,000; {calm[2]:.0f} tokens/s",
        ),
        Figure(
            "CPU a token, tender / bee",
            full[:2],
            "µs",
            (4, 1.5),
            load="32 streams at full speed through humd",
        ),
        Figure(
            "ceiling, 1 / 32 streams",
            (median(singles), full[2]),
            "tokens/s",
            (150_000, 150_000),
            at_least=True,
            load=f"through humd, all on these cores; one stream {spread(singles)}",
        ),
    ]


async def crowd(at: Stand, size: Size) -> list[Figure]:
    """Many turns at once, first with short prompts, then with long ones."""
    figures = []
    for pad, budgets in ((0, (80.0, 80.0)), (64 * 1024, (150.0, None))):
        prompt = scripted(int(5 * size.hold), rate=5.0, pad=pad)
        takes = await asyncio.gather(*(at.relayed.ask(prompt) for _ in range(size.turns)))
        sound(takes)
        # A turn that waits for others to end would make the figure a lie.
        if max(take.began for take in takes) > min(take.ended for take in takes):
            raise RehearsalError("the turns did not run at once")
        name = f"RSS, {size.turns} turns at once, bee / tender"
        figures.append(
            Figure(
                f"{name}; 64 KB prompts" if pad else name,
                (peak_mib(at.bee), peak_mib(at.tender)),
                "MiB",
                budgets,
                load="peak since the start; nothing lost",
            )
        )
    return figures


async def real(size: Size) -> list[Figure]:
    """vLLM with the small model: throughput through humd against direct."""
    figures = []
    prompt = {"text": STORY, "sampling": {"maxTokens": 64, "temperature": 0}}
    async with stand(humd=True, real=True) as at:
        for count in (1, 8, 32):
            ratios, speeds = [], []
            for warm_up in in_turn(at, 0):
                await warm_up.ask(prompt)
            for turn in range(size.runs):
                speed = {}
                for client in in_turn(at, turn):
                    asks = [client.ask(prompt) for _ in range(count)]
                    speed[client] = pace(sound(await asyncio.gather(*asks)))
                ratios.append(speed[at.relayed] / speed[at.direct])
                speeds.append(speed[at.relayed])
            load = f"vLLM, {count} streams, {median(speeds):.1f} tokens/s; {spread(ratios)}"
            name = f"tokens/s against direct, {count} streams, vLLM"
            figures.append(Figure(name, (median(ratios),), "", (0.99,), at_least=True, load=load))
    return figures


async def relay(size: Size) -> list[Figure]:
    """Everything with the scripted engine."""
    figures = []
    async with stand(humd=False) as at:
        figures.append(await idle(at, size))
    async with stand(humd=True) as at:
        figures.append(await through_humd(at, size))
        figures.append(await beside(at, size))
        figures += await paced(at, size)
        figures += await costs(at, size)
    async with stand(humd=False) as at:
        figures += await crowd(at, size)
    return figures


async def measure(options: argparse.Namespace) -> list[Figure]:
    """Measures what the command line asks for."""
    size = SHORT if options.short else Size(runs=options.runs)
    figures = [] if options.only_real else await relay(size)
    if options.real or options.only_real:
        figures += await real(size)
    return figures


def main() -> int:
    """Prints the figures and returns the exit code."""
    parser = argparse.ArgumentParser(prog="relay", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a few seconds, figures mean little")
    parser.add_argument("--real", action="store_true", help="also with vLLM and the small model")
    parser.add_argument("--only-real", action="store_true", help="with vLLM alone")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each (5)")
    options = parser.parse_args()
    try:
        figures = uvloop.run(measure(options))
    except (RehearsalError, OSError) as error:
        print(f"relay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(table(figures))
    print(as_json("relay", figures, short=options.short))
    return 0


if __name__ == "__main__":
    sys.exit(main())
