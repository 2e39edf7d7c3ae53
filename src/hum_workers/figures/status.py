"""`status`: one table of this user's running bees, from what they write down of themselves.

Asks no bee and no daemon: it reads the files in the state folder and /proc, so it also answers
while a bee is busy or humd is away.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from hum_workers.figures.status_file import BeeStatus, CellStatus, EggStatus, read_all
from hum_workers.thrum.paths import state_home

REDRAW = 1.0
"""Seconds between two tables of --watch."""
LATE = 10.0
"""Seconds without a word after which a bee is shown as one that hangs."""
REASON = 60
"""Letters of a reason in the table."""
WIDEST = 100
"""Letters of any word in the table."""
LONGEST = 400
"""The same for a sentence below it."""
FOREVER = 10_000 * 86400
HEAD = (
    *("BEE", "CELL", "MODEL", "STATE", "PID", "AGE", "MEMORY"),
    *("RUNNING", "WAITING", "TOKENS/S", "LAST DEATH"),
)
RIGHT = frozenset({"PID", "AGE", "MEMORY", "RUNNING", "WAITING", "TOKENS/S"})
HOME_AND_CLEAR = "\x1b[H\x1b[J"


def main(hive: str, argv: Sequence[str], say: Callable[[str], None]) -> int:
    """Runs `status` and returns the exit code: always 0, unless the command line is wrong."""
    args = _parser(hive).parse_args(argv)
    tty = sys.stdout.isatty()
    try:
        while True:
            bees = read_all(state_home(os.environ), hive)
            text = as_json(bees) if args.json else table(hive, bees, time.time())
            clear = HOME_AND_CLEAR if args.watch and tty and not args.json else ""
            say(f"{clear}{text}")
            if not args.watch:
                return 0
            time.sleep(REDRAW)
    except KeyboardInterrupt:
        return 0


def _parser(hive: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{hive} status",
        description=f"Shows the running {hive} bees of this user and their cells.",
        allow_abbrev=False,
    )
    parser.add_argument("--watch", action="store_true", help="again each second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print JSON, one line a look")
    return parser


def as_json(bees: Sequence[BeeStatus]) -> str:
    """Returns what the running bees wrote, as one line."""
    return msgspec.json.encode([bee for bee in bees if bee.alive]).decode()


def table(hive: str, bees: Sequence[BeeStatus], now: float) -> str:
    """Returns the table of the running bees, and a line for each that left its file behind."""
    running = [bee for bee in bees if bee.alive]
    lines = [f"no {hive} is running"]
    if running:
        rows = [row for bee in running for row in _rows(bee, now)]
        lines = _aligned([HEAD, *rows])
    lines += [
        f"{_name(bee)} (pid {bee.pid}) is not connected to humd; it goes on trying"
        for bee in running
        if not bee.connected
    ]
    lines += [
        f"{_name(bee)}: {shown(one.uuid)} is set aside for {span(now - one.since)}: after the "
        f"death of {shown(one.cell)} {shown(one.reason)}"
        for bee in running
        for one in bee.devices
    ]
    lines += [
        f"{_name(bee)}: {shown(egg.egg)}: {shown(egg.note, LONGEST)}"
        for bee in running
        for egg in bee.eggs
        if egg.note
    ]
    lines += [
        f"{_name(bee)} (pid {bee.pid}) was killed: it last wrote {span(now - bee.written_at)} ago"
        for bee in bees
        if bee not in running
    ]
    return "\n".join(lines)


def _name(bee: BeeStatus) -> str:
    return shown(bee.name or bee.hid[:13])


def _rows(bee: BeeStatus, now: float) -> Iterator[tuple[str, ...]]:
    since = now - bee.written_at
    for egg in bee.eggs:
        cells: list[CellStatus | None] = list(egg.cells) or [None]
        for cell in cells:
            state = _state(egg, cell)
            if since > LATE:
                state = f"{state}, silent for {span(since)}"
            yield (
                _name(bee),
                cell.cell if cell is not None else egg.egg,
                egg.model,
                state,
                str(cell.pid) if cell is not None else "-",
                span(cell.age_seconds + since) if cell is not None else "-",
                memory(cell.rss_bytes) if cell is not None else "-",
                str(egg.running),
                str(egg.waiting),
                f"{cell.tokens_per_second:.0f}" if cell is not None else "-",
                _death(egg, now),
            )


def _state(egg: EggStatus, cell: CellStatus | None) -> str:
    if cell is None:
        return "failed" if egg.failure else "cold"
    return f"{cell.state}: {cell.stage}" if cell.stage else cell.state


def _death(egg: EggStatus, now: float) -> str:
    last = egg.last_death
    if last is None:
        return egg.failure[:REASON] if egg.failure else "-"
    return f"{span(now - last.at)} ago, {last.kind}: {last.reason[:REASON]}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows as lines, each column as wide as its widest word."""
    rows = [[shown(word) for word in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            word.rjust(width) if name in RIGHT else word.ljust(width)
            for name, word, width in zip(HEAD, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def shown(word: str, most: int = WIDEST) -> str:
    """Returns a word of a file that another program may have written, fit for a terminal."""
    word = "".join(c if c.isprintable() else " " for c in word)
    return word if len(word) <= most else word[: most - 1] + "…"


def span(seconds: float) -> str:
    """Returns a time in its two largest units: `42s`, `5m 3s`, `2h 0m`, `3d 4h`."""
    left = max(0, int(min(seconds, FOREVER)))
    if left < 60:
        return f"{left}s"
    for unit, small, size, part in (("m", "s", 60, 1), ("h", "m", 3600, 60)):
        if left < size * (60 if unit == "m" else 24):
            return f"{left // size}{unit} {left % size // part}{small}"
    return f"{left // 86400}d {left % 86400 // 3600}h"


def memory(size: float) -> str:
    """Returns bytes as people read them: `512 MiB`, `1.5 GiB`."""
    if size < 1024**3:
        return f"{size / 1024**2:.0f} MiB"
    return f"{size / 1024**3:.1f} GiB"
