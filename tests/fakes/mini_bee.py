"""The least bee: raises a mini tender with the arguments it was given and outlives it.

It passes the tender's first line on with the tender's pid added; when the tender has ended it kills
the orphans and says who is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from hum_workers import lifecycle


def say(said: dict[str, Any]) -> None:
    """Writes one line."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Raises the tender, waits for its end and cleans up."""
    lifecycle.become_subreaper()
    read_end, write_end = os.pipe()
    tender = lifecycle.spawn(
        [sys.executable, str(Path(__file__).with_name("mini_tender.py")), *sys.argv[1:]],
        env=None,
        cwd="/",
        stdout=write_end,
    )
    os.close(write_end)
    said = json.loads(os.read(read_end, 4096))
    say(said | {"tender": tender.pid})
    await tender.exited
    left = await lifecycle.end_orphans(tender.pid)
    say({"left": [str(member) for member in left]})
    tender.close()


asyncio.run(main())
