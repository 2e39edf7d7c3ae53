"""Three machines: two that lend slices, one with the coordinator; a fourth for strangers.

Each has its own humd, state folder and key; what they know of each other stands in their eggs. Owns
all of it; leaving the context means that it is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from bench.network import Network
from hum_workers.fake_humd.asker import Answer, Asker
from hum_workers.thrum.identity import seed_of
from scripts.llama_cpp import HOME
from scripts.rehearsal import Rehearsal, RehearsalError
from scripts.smollm2 import GGUF

WORKER, HIVE = "hum_workers.llama_rpc_worker", "llama-rpc-worker"
MODEL = "smollm2"
FRONT, SLICES, STRANGER = "front", ("one", "two"), "stranger"
DOOR, WIRE = 7300, 7301
"""Ports: of each slice's door, and of the wire that records a greeting."""
START = 120.0
LIFE = '[lifecycle]\nstop_grace = "1s"\ndrain_timeout = "300ms"\n'
SLICE = """[bee]
name = "{name}"
[cell]
role = "slice"
[engine]
bin = {bin}
{life}[rpc]
listen = "{address}:{port}"
memory = "110MiB"
threads = 1
coordinators = ["{front}"]
"""
COORDINATOR = """[bee]
name = "front"
[cell]
role = "coordinator"
[engine]
bin = {bin}
{life}[model]
path = {model}
served_name = "{served}"
ctx = 2048
{slices}"""


@dataclass
class Machine:
    """One machine's bee, and every line of its log with the time it came."""

    name: str
    at: Rehearsal
    hid: str = ""
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def hear(self, event: dict[str, Any]) -> None:
        """Notes a line."""
        self.events.append((monotonic(), event))

    def seen(
        self,
        name: str,
        since: float,
        fits: Callable[[Mapping[str, Any]], bool] = lambda event: True,
    ) -> list[tuple[float, dict[str, Any]]]:
        """Returns the lines of one name since then."""
        return [(at, e) for at, e in self.events if at >= since and e["event"] == name and fits(e)]

    async def until(
        self,
        name: str,
        since: float,
        timeout: float,
        fits: Callable[[Mapping[str, Any]], bool] = lambda event: True,
    ) -> tuple[float, dict[str, Any]]:
        """Returns the first such line.

        Raises:
            RehearsalError: it does not come.
        """
        assert self.at.bee is not None
        try:
            await self.at.bee.until(lambda: bool(self.seen(name, since, fits)), timeout)
        except RehearsalError as error:
            raise RehearsalError(f"{self.name}: no {name}: {error}") from None
        return self.seen(name, since, fits)[0]


@dataclass
class Stage:
    """All that runs."""

    net: Network
    front: Machine
    slices: list[Machine]
    asker: Asker

    async def ask(self, tokens: int = 24, text: str = "Count from one to ten.") -> Answer:
        """Returns the whole answer at temperature 0."""
        sampling = {"maxTokens": tokens, "temperature": 0}
        return await self.asker.ask(text, MODEL, timeout=START, sampling=sampling)

    def door(self, number: int) -> tuple[str, int]:
        """Returns where a slice's door is."""
        return self.net.address(SLICES[number]), DOOR


def coordinator_egg(folder: Path, doors: list[tuple[str, int, str]], name: str = "front") -> Path:
    """Writes the egg of a coordinator over these doors: host, port, hid."""
    slices = "".join(
        f'[[slices]]\nendpoint = "{host}:{port}"\nhid = "{hid}"\n' for host, port, hid in doors
    )
    path = folder / f"{name}.toml"
    path.write_text(
        COORDINATOR.format(
            bin=json.dumps(str(HOME / "current" / "bin")),
            life=LIFE,
            model=json.dumps(str(HOME / "model" / Path(GGUF).name)),
            served=MODEL,
            slices=slices,
        )
    )
    return path


def slice_egg(machine: Machine, address: str, front: str) -> Path:
    """Writes the egg of a slice that lends to this coordinator alone."""
    path = machine.at.folder / f"{machine.name}.toml"
    path.write_text(
        SLICE.format(
            name=machine.name,
            bin=json.dumps(str(HOME / "current" / "bin")),
            life=LIFE,
            address=address,
            port=DOOR,
            front=front,
        )
    )
    return path


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """Yields three machines of which one serves the model over the other two.

    Raises:
        NetworkError: the network can't be made.
        RehearsalError: one of them does not come up, or leaves something behind.
    """
    machines: list[Machine] = []
    async with AsyncExitStack() as stack:
        net = stack.enter_context(Network([FRONT, *SLICES, STRANGER]))
        for name in (FRONT, *SLICES):
            machine = Machine(name, await stack.enter_async_context(Rehearsal(net.within(name))))
            machine.hid, _ = seed_of(HIVE, name, machine.at.folder / "state")
            machine.at.on_event = machine.hear
            machines.append(machine)
            await machine.at.start_humd()
        front, *slices = machines
        for machine in slices:
            egg = slice_egg(machine, net.address(machine.name), front.hid)
            await machine.at.start_bee(egg, module=WORKER)
        doors = [(net.address(machine.name), DOOR, machine.hid) for machine in slices]
        await front.at.start_bee(coordinator_egg(front.at.folder, doors), module=WORKER)
        await front.at.serves(MODEL, START)
        asker = await stack.enter_async_context(await Asker.connect(front.at.socket))
        yield Stage(net, front, slices, asker)
    left = [f"{machine.name}: {what}" for machine in machines for what in machine.at.left]
    if left:
        raise RehearsalError(f"left behind: {'; '.join(left)}")


async def once(machine: Machine, *command: str, limit: float = 60.0) -> str:
    """Runs a command beside a machine's bee and returns its output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=machine.at.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(limit):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(errors="replace")
