"""What a bee owes to who runs it: word of its state to systemd, and the duties of pid 1.

Both run on the bee's own loop, so that a watchdog's ping proves that the loop turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hum_workers.figures.counts import BeeView
from hum_workers.process import orphans, proc
from hum_workers.program.notify import Notifier

PAUSE = 0.25
"""Seconds between two looks at the bee; a look costs a few µs."""
REAP = 1.0
"""Seconds between two rounds for the dead that nobody else will collect."""


@asynccontextmanager
async def hosted(view: Callable[[], BeeView], stopping: asyncio.Future[str]) -> AsyncIterator[None]:
    """Keeps the manager informed while the block runs; as pid 1 it also reaps."""
    notifier = Notifier(os.environ)
    duties = []
    if notifier:
        duties.append(asyncio.create_task(_inform(notifier, view), name="notify"))
        stopping.add_done_callback(lambda _: notifier.say(STOPPING=1, STATUS="stopping"))
    if os.getpid() == 1:
        duties.append(asyncio.create_task(_reap(), name="reap"))
    try:
        yield
    finally:
        for duty in duties:
            duty.cancel()
        if duties:
            await asyncio.wait(duties)


async def _inform(notifier: Notifier, view: Callable[[], BeeView]) -> None:
    loop = asyncio.get_running_loop()
    ready, said, due = False, "", loop.time()
    pause = PAUSE if notifier.watchdog is None else min(PAUSE, notifier.watchdog / 4)
    while True:
        now = view()
        if now.connections and not ready:
            ready = True
            notifier.say(READY=1)
        if (status := sentence(now)) != said:
            said = status
            notifier.say(STATUS=status)
        if notifier.watchdog is not None and loop.time() >= due:
            notifier.say(WATCHDOG=1)
            due = loop.time() + notifier.watchdog / 2 - pause
        await asyncio.sleep(pause)


def sentence(view: BeeView) -> str:
    """Returns the state of a bee in one line, for `systemctl status`."""
    models = [egg.model for egg in view.eggs if egg.advertised]
    failed = [f"{egg.model}: {egg.failure}" for egg in view.eggs if egg.failure]
    parts = [
        f"serving {', '.join(models)}" if models else "no model is ready",
        "" if view.connected else "humd is away",
        *failed,
    ]
    return "; ".join(part for part in parts if part).replace("\n", " ")[:300]


async def _reap() -> None:
    """Collects orphans that came to us as pid 1, from whatever ran in the container."""
    while True:
        orphans.reap(orphans.strays(proc.scan()))
        await asyncio.sleep(REAP)
