"""Bees of a stage that are killed and started anew: each with its egg, its logs, its processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.chaos_run import below
from hum_workers.process import proc
from hum_workers.process.proc import Stat
from tests.rig import LLAMA, Bee, running_bee

WAIT = 90.0
"""Seconds that anything may take on a loaded machine of two cores."""
LOOK = 0.02
"""Seconds between two looks at what other processes log: how exact the times are."""
T = TypeVar("T")
MARKS = {"tender": "hum_workers.tender", "engine": "ggml-rpc-server", "server": "llama-server"}


@dataclass(frozen=True)
class Line:
    """A line of a log. `life` counts the starts of its bee, which counts cells anew each time."""

    life: int
    fields: dict[str, Any]

    @property
    def event(self) -> str:
        """What happened."""
        return str(self.fields.get("event", ""))

    @property
    def cell(self) -> tuple[int, str]:
        """Which cell it is about."""
        return self.life, str(self.fields.get("cell", ""))


@dataclass
class Seat:
    """One bee, in all its lives."""

    name: str
    folder: Path
    egg: Path
    stack: AsyncExitStack
    bees: list[Bee] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    """What was logged so far; `read` brings the rest."""
    _files: list[tuple[Path, int]] = field(default_factory=list)

    @property
    def bee(self) -> Bee:
        """The one that lives, or lived last."""
        return self.bees[-1]

    async def start(self) -> None:
        """Starts the bee, for the first time or again."""
        log = self.folder / f"bee-{len(list(self.folder.glob('bee-*.log')))}.log"
        bee = running_bee(self.folder, self.egg, program=LLAMA, dev=False)
        self.bees.append(await self.stack.enter_async_context(bee))
        self._files.append((log, 0))

    def read(self) -> list[Line]:
        """Returns all lines so far."""
        for life, (path, done) in enumerate(self._files):
            with path.open("rb") as file:
                file.seek(done)
                data = file.read()
            whole = data.rpartition(b"\n")[0]
            if not whole:
                continue
            self._files[life] = path, done + len(whole) + 1
            for line in whole.split(b"\n"):
                with contextlib.suppress(ValueError):
                    self.lines.append(Line(life, json.loads(line)))
        return self.lines

    def events(self, name: str) -> Iterator[Line]:
        """Yields the lines of one name."""
        return (line for line in self.read() if line.event == name)

    def ready(self) -> set[tuple[int, str]]:
        """Returns the cells that were ready at some time."""
        return {line.cell for line in self.events("worker.cell.ready")}

    def tree(self, who: str = "tender") -> list[Stat]:
        """Returns the processes of the cell from `who` downwards; `bee`: the bee, too."""
        everybody = below(self.bee.pid)
        if who == "bee":
            return everybody
        top = next((stat for stat in everybody if _is(stat, MARKS[who])), None)
        if top is None:
            raise LookupError(f"{self.name} has no {who}")
        return below(top.pid)


def _is(stat: Stat, mark: str) -> bool:
    # Each ancestor of an engine has the engine's name in its own command line.
    words = (proc.read_bytes(f"/proc/{stat.pid}/cmdline") or b"").split(b"\0")
    program = words[0].decode("utf-8", "replace")
    if mark.startswith("hum_workers"):
        return mark.encode() in words
    return os.path.basename(program) == mark


async def until(look: Callable[[], T], timeout: float = WAIT) -> T:
    """Returns the first true thing that `look` sees.

    Raises:
        TimeoutError: none was seen in time.
    """
    async with asyncio.timeout(timeout):
        while not (seen := look()):  # noqa: ASYNC110 - other processes log and die
            await asyncio.sleep(LOOK)
        return seen
