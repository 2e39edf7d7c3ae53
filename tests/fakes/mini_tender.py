"""The least tender: raises one engine, says so on stdout and waits for ever, to be killed.

`python mini_tender.py CONFINE CGROUP -- argv...`; it prints one JSON line: how it is confined and
the pids of the engine and of the processes around it. When the engine ends, a second one says how
and who is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from hum_workers import lifecycle
from hum_workers.process import confine


def say(said: dict[str, Any]) -> None:
    """Writes one line."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Raises the engine and waits."""
    how, cgroup, _, *argv = sys.argv[1:]
    lifecycle.become_subreaper()
    plan = confine.plan(confine.survey(), confine=how, cgroup=cgroup, name="mini")
    tree = await lifecycle.EngineTree.start(argv, env=dict(os.environ), cwd="/", confinement=plan)
    frame = [stat.pid for stat in tree._frame]
    say({"how": plan.describe(), "engine": tree.engine_pid, "frame": frame})
    end = await tree.exited
    left = await tree.gone(5)
    say({"code": end.code, "signal": end.signal, "left": [str(member) for member in left]})
    tree.close()


for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
try:
    import uvloop
except ImportError:
    asyncio.run(main())
else:
    uvloop.run(main())
