"""100,000 hostile lines straight at a bee: `python -m bench.hostile [--lines N] [--seed N]`.

Prints the bee's resident memory before and after, and one line of JSON. Exit code 1 when a prompt
got none or two endings, a good prompt afterwards no answer, or the memory grew by 10 MiB or more.

The figure before is taken after a warm-up with lines of another seed, the one over 64 MiB among
them: the first of each kind loads code and fills buffers, pools and caches that stay for good
whatever comes later, and what is looked for is growth with the number of lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests import hostile
from tests.raw_humd import RawHumd, Seat
from tests.rig import egg, running_bee

MIB = 1024 * 1024
ALLOWED = 10 * MIB
WARM_UP = 5_000
OUTSTANDING = 500
"""Endings that may be due at once. The bee paces what it says, so lines that come faster pile up
endings, of which a heap keeps traces: that would measure the pile, not the number of lines."""
PATIENCE = 120.0
"""Seconds for the last endings to come: the bee paces what it says."""


def main() -> int:
    """Runs the bench and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hum-", dir="/tmp"))
    try:
        return asyncio.run(_bench(folder, args.lines, args.seed))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _bench(folder: Path, lines: int, seed: int) -> int:
    humd = RawHumd(folder / "thrum.sock", lambda: Seat(keep=False))
    async with humd, running_bee(folder, egg(folder, name="m1"), dev=False) as bee:
        seat = await humd.seat()
        wrong = await _pelt(seat, hostile.lines(seed + 1, WARM_UP))
        before = _rss(bee.pid)
        began = time.perf_counter()
        wrong += await _pelt(seat, hostile.lines(seed, lines))
        seconds = time.perf_counter() - began
        after = _rss(bee.pid)
        good = await _good(seat)
    result = {
        "bench": "hostile",
        "lines": lines,
        "seed": seed,
        "seconds": round(seconds, 1),
        "endings": seat.endings.total(),
        "wrong_endings": wrong,
        "refused_by_humd": len(seat.refused),
        "rss_before": before,
        "rss_after": after,
        "good_prompt": good,
    }
    print(f"{lines} lines in {seconds:.1f} s, {result['endings']} endings, {wrong} of them wrong")
    print(f"RSS of the bee: {before / MIB:.1f} MiB before, {after / MIB:.1f} MiB after")
    print(json.dumps(result))
    return 0 if good and not wrong and not seat.refused and after - before < ALLOWED else 1


async def _pelt(seat: Seat, lines: Iterator[bytes]) -> int:
    """Sends the lines, waits for what they are owed, returns by how much that was missed."""
    seat.endings.clear()
    owed: Counter[str] = Counter()
    due, said = 0, seat.endings.total
    try:
        for piece in lines:
            sids = hostile.prompted(piece)
            owed.update(sids)
            due += len(sids)
            seat.raw(piece)
            await seat.drained()
            if due - said() > OUTSTANDING:
                await _said(seat, due - OUTSTANDING // 2)
        await _said(seat, due)
    except TimeoutError:
        pass
    return (owed - seat.endings).total() + (seat.endings - owed).total()


async def _said(seat: Seat, endings: int) -> None:
    await seat.until(lambda: seat.endings.total() >= endings, PATIENCE)


async def _good(seat: Seat) -> bool:
    try:
        ending = await seat.answer("a good prompt")
    except TimeoutError:
        return False
    return bool(ending["chi"] == "finish")


def _rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


if __name__ == "__main__":
    sys.exit(main())
