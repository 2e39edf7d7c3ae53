"""`llama-rpc-worker --route`: who would hold which layers, asked at each door; loads nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hum_workers.egg import bee_settings
from hum_workers.errors import HumError, UsageError
from hum_workers.llama_rpc_worker import known_doors
from hum_workers.llama_rpc_worker.raiser import LlamaRaiser
from hum_workers.llama_rpc_worker.route import RouteError
from hum_workers.llama_rpc_worker.routing import Routing
from hum_workers.program.annex import Home
from hum_workers.thrum.identity import seed_of
from hum_workers.thrum.paths import state_home

if TYPE_CHECKING:
    from hum_workers.llama_rpc_worker.egg import LlamaEgg

COMPLETE, INCOMPLETE = 0, 3


def look(eggs: Sequence[LlamaEgg], say: Callable[[object], None], hive: str) -> int:
    """Prints the map of each coordinator's route; returns 0 when all of them are complete.

    Raises:
        UsageError: no egg is a coordinator's.
    """
    coordinators = [egg for egg in eggs if egg.cell.role == "coordinator"]
    if not coordinators:
        files = ", ".join(str(egg.source) for egg in eggs)
        raise UsageError(f"--route: {files}: no egg of a coordinator ([cell] role); name one")
    state = state_home(os.environ)
    hid, seed = seed_of(hive, bee_settings(eggs).name, state)
    home = Home(seed=seed, hid=hid, state=state, changed=lambda: None)
    codes = [asyncio.run(_look(egg, home, say)) for egg in coordinators]
    return max(codes)


async def _look(egg: LlamaEgg, home: Home, say: Callable[[object], None]) -> int:
    gathering = known_doors.gathering(egg, home)
    raiser = LlamaRaiser(egg, private=Path(os.devnull), log_file=None, inherited=os.environ)
    routing = Routing(egg, gathering, raiser, home.hid)
    try:
        await routing.refresh()
        await gathering.look()
        route = routing.plan()
    except RouteError as error:
        for line in (*error.map, *(f"incomplete: {problem}" for problem in error.problems)):
            say(line)
    except HumError as error:
        say(f"incomplete: {error}")
    else:
        for line in route.lines():
            say(line)
        for one in gathering.absent:
            say(f"no answer: {one.reason}")
        return COMPLETE
    finally:
        await gathering.close()
    return INCOMPLETE
