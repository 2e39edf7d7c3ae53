"""A stage with slices: each bee a process with a key of its own, under one fake humd."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hum_workers.fake_humd.asker import Answer, Asker
from hum_workers.fake_humd.server import FakeHumd
from tests.real_llama.conftest import MODEL
from tests.rig import LLAMA, Bee, running_bee

NAME = "smollm2"
START = 60.0
"""Seconds for slices and coordinator on a slow machine."""
SHORT = """[lifecycle]
stop_grace = "1s"
drain_timeout = "300ms"
"""


def slice_egg(folder: Path, number: int, *, memory: str = "110MiB", more: str = "") -> Path:
    """Writes the egg of a slice."""
    egg = folder / f"slice-{number}.toml"
    egg.write_text(
        f'[bee]\nname = "slice-{number}"\n[cell]\nrole = "slice"\n{SHORT}'
        f'[rpc]\nmemory = "{memory}"\nthreads = 1\n{more}'
    )
    return egg


def front_egg(
    folder: Path,
    *,
    slices: str = "[[slices]]\ndiscover = true\n",
    more: str = "",
    parallel: int = 1,
    lifecycle: str = SHORT,
) -> Path:
    """Writes the egg of a coordinator."""
    egg = folder / "front.toml"
    egg.write_text(
        f'[bee]\nname = "front"\n[cell]\nrole = "coordinator"\n{lifecycle}'
        f'[model]\npath = {json.dumps(str(MODEL))}\nserved_name = "{NAME}"\nctx = 2048\n'
        f"parallel = {parallel}\n{slices}{more}"
    )
    return egg


@dataclass
class Stage:
    """All that runs."""

    humd: FakeHumd
    asker: Asker
    front: Bee
    slices: Sequence[Bee]

    async def ask(self, text: str = "Count from one to ten.", tokens: int = 24) -> Answer:
        """Returns the whole answer to a prompt at temperature 0."""
        sampling = {"maxTokens": tokens, "temperature": 0}
        return await self.asker.ask(text, NAME, timeout=START, sampling=sampling)

    async def serves(self) -> None:
        """Returns when humd knows the model."""
        await self.humd.until(lambda: self.humd.serves(NAME), timeout=START)


@asynccontextmanager
async def routed(
    folder: Path, count: int, *, memory: str = "110MiB", front: str = "", slice_more: str = ""
) -> AsyncIterator[Stage]:
    """Yields a stage whose coordinator serves the model over so many slices."""
    async with AsyncExitStack() as stack:
        humd = await stack.enter_async_context(
            await FakeHumd.start(folder / "thrum.sock", folder / "state")
        )
        slices = []
        for number in range(1, count + 1):
            egg = slice_egg(folder, number, memory=memory, more=slice_more)
            bee = running_bee(folder, egg, program=LLAMA, dev=False)
            slices.append(await stack.enter_async_context(bee))
        egg = front_egg(
            folder, more=front, slices="" if not count else "[[slices]]\ndiscover = true\n"
        )
        bee = running_bee(folder, egg, program=LLAMA, dev=False)
        lead = await stack.enter_async_context(bee)
        asker = await stack.enter_async_context(await Asker.connect(folder / "thrum.sock"))
        stage = Stage(humd, asker, lead, slices)
        await stage.serves()
        yield stage
