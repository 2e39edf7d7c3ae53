"""The least tender: raises one engine, says so on stdout and waits for ever, to be killed.

`python mini_tender.py CONFINE CGROUP -- argv...`; it prints one JSON line: how it is confined, the
pids of guard and engine.
"""

import asyncio
import json
import os
import signal
import sys

from hum_workers import confine, lifecycle


async def main():
    """Raises the engine and waits."""
    how, cgroup, _, *argv = sys.argv[1:]
    lifecycle.become_subreaper()
    plan = confine.plan(confine.survey(), confine=how, cgroup=cgroup, name="mini")
    tree = await lifecycle.EngineTree.start(
        argv, env=dict(os.environ), cwd="/", confinement=plan
    )
    said = {"how": plan.describe(), "engine": tree.engine_pid, "child": tree._child.pid}
    print(json.dumps(said), flush=True)
    await tree.exited
    left = await tree.gone(5)
    print(json.dumps({"left": [str(member) for member in left]}), flush=True)
    tree.close()


for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
asyncio.run(main())
