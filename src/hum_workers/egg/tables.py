"""The tables that the eggs of every worker share. Defaults stand here and nowhere else.

Attribute names are the keys; `raise_` alone differs, as `raise` is a word of Python. An optional
key without a default is `None`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from hum_workers.egg.redact import redact_args, redact_env
from hum_workers.egg.toml_positions import Path as KeyPath
from hum_workers.egg.types import (
    Count,
    Cpus,
    Domain,
    Duration,
    EggPath,
    Grace,
    Listen,
    Name,
    Program,
    Size,
    SocketPath,
    Table,
    Text,
    ToolNames,
    Url,
    Word,
    seconds,
)
from hum_workers.egg.units import is_loopback, split_listen
from hum_workers.errors import Mistake

HUMD_QUEUE = 1024
"""Tones that humd holds for one asker before it drops them."""
ASKER_PAUSE = 0.35
"""Seconds an asker may stop reading without loss at the default pace."""
LEAST_INTERVAL = 0.1
"""Seconds between two looks at a cell's tree, at least."""


@dataclass(frozen=True)
class Flaw:
    """A mistake that only shows when several values are seen together."""

    path: KeyPath
    message: str
    about: tuple[KeyPath, ...] = ()
    """The other keys it rests on: if one of them is wrong itself, the flaw is not told."""
    at_key: bool = False


def _per_sid(data: dict[str, Any]) -> int:
    limit: int = data.get("max_waiting", 16)
    return min(16, limit)


class Bee(Table):
    """The process: it may stand in one egg, or in several if equal (`models` is the egg's own)."""

    name: Name | None = Field(
        default=None, description="Name of this bee, if several of one kind run under one account."
    )
    models: list[Text] = Field(
        default=[],
        description="Further ids to advertise for this egg's model, after model.served_name.",
    )
    raise_: Literal["on-start", "on-prompt"] = Field(
        default="on-start",
        alias="raise",
        description="When the engine starts: now, or for a prompt.",
    )
    propensity: Literal["stateless", "ephemeral"] = Field(
        default="stateless",
        description="What a cell keeps between turns: its prefix cache, or not even its life.",
    )
    max_procs: Count | None = Field(
        default=None, description="Cells of this bee at most. Default: one for each egg."
    )
    thrum_socket: SocketPath | None = Field(
        default=None, description="humd's socket. Default: where hum's own rules find it."
    )
    source: Url | None = Field(
        default=None, description="A URL for humans, shown by hum beside the bee."
    )
    dialect: Literal["both", "delta"] = Field(
        default="both", description="How text is sent: as delta and as part, or as delta alone."
    )
    pace: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=2000, description="Tones a second at most, of the whole bee; 0 is without limit."
    )
    burst: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=256, description="Tones that may go at once after a pause."
    )


class Launch(Table):
    """How an engine is started, whatever it is."""

    command: list[Text] = Field(
        default=[],
        description="A wrapper in front that stays an ancestor: taskset, numactl, nice, env.",
    )
    args: list[Word] = Field(
        default=[],
        repr=False,
        description="Further flags of the engine, those without a key of their own.",
    )
    env: dict[str, Word] = Field(
        default={}, repr=False, description="Variables set for the engine, over those it inherits."
    )

    def redacted(self) -> dict[str, Any]:
        """Returns args and env as they may be logged: without the values of secrets."""
        return {"args": redact_args(self.args), "env": redact_env(self.env)}


class Engine(Launch):
    """How an engine that lives in a Python interpreter is started."""

    python: Program | None = Field(
        default=None, description="The interpreter that has the engine. Default: the worker's own."
    )


class Limits(Table):
    """What turns may wait for and what the engine may use."""

    turn_timeout: Duration = seconds("30m", "Time of one turn at most, from its first event on.")
    wait_timeout: Duration = seconds("10m", "Time a prompt waits for a cell at most.")
    max_waiting: Count = Field(default=1024, description="Prompts that wait at once, at most.")
    max_waiting_per_sid: Count = Field(
        default_factory=_per_sid,
        description="Prompts of one sid that wait, at most. Default: 16, or less with max_waiting.",
    )
    memory: Size | None = Field(default=None, description="Memory of the engine and all below it.")
    open_files: Annotated[int, Field(ge=64)] | None = Field(
        default=None, description="Files that each process of the engine may have open."
    )
    cpus: Cpus | None = Field(default=None, description="CPUs that the engine may run on.")
    confine: Literal["auto", "namespace", "guard"] = Field(
        default="auto",
        description="What ends the engine if the bee is killed; auto: the best there is.",
    )
    cgroup: Literal["auto", "off"] = Field(
        default="auto", description="Whether a cgroup is made for the engine where one can be."
    )


class Media(Table):
    """Images, audio and video in prompts, for models that take them."""

    max_count: Annotated[int, Field(ge=0)] = Field(
        default=16, description="How many one prompt may have; 0: none, and the model isn't asked."
    )
    max_bytes: Size = Field(
        default="32MiB",
        validate_default=True,
        description="Size of all data of one prompt, decoded.",
    )
    domains: list[Domain] = Field(
        default=[],
        description="Hosts that the engine may fetch URLs from; *.example.org is all below it.",
    )


class Tools(Table):
    """Tools of foragers and askers. They need an engine that tells calls from text."""

    foragers: ToolNames = Field(
        default=True,
        description="Whether foragers' tools are offered to the model, or the names of those.",
    )
    step_timeout: Duration = seconds("5m", "Time that foragers have for the calls of one step.")
    max_steps: Count = Field(default=32, description="Steps with tools that one turn may have.")
    parked_max: Count = Field(
        default=256, description="Conversations that may wait for an asker's tool."
    )
    parked_age: Duration = seconds("1h", "Time that one of them may wait.")
    parked_bytes: Size = Field(
        default="64MiB", validate_default=True, description="Size of all of them together."
    )


class Lifecycle(Table):
    """Times of a cell's start and end."""

    start_timeout: Duration = seconds("5m", "Time a start may take without a sign of progress.")
    stop_grace: Grace = seconds("15s", "Time the engine has to leave before it is killed.")
    drain_timeout: Grace = seconds("30s", "Time that running turns have when the bee stops.")
    stall_timeout: Grace = seconds(
        "120s", "Time without progress, with turns in flight, after which the engine is ended."
    )
    idle_timeout: Duration | None = Field(
        default=None, description="Time without a turn after which the engine is ended, if set."
    )


class Metrics(Table):
    """Figures for Prometheus. `listen` is the process's, `interval` the egg's own."""

    listen: Listen | None = Field(
        default=None, description="Where figures are served, at /metrics. Default: nowhere."
    )
    interval: Duration = seconds("10s", "Time between two looks at memory and CPU of the cell.")


class Log(Table):
    """The bee's log; like [bee], it may stand in one egg, or in several if equal."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level that is written."
    )
    file: EggPath | None = Field(
        default=None, description="Where the log goes. Default: standard error."
    )


class Egg(Table):
    """What every worker's egg has. A worker adds its tables, cross-checks and advertised ids."""

    LATER: ClassVar[dict[str, frozenset[str]]] = {
        "forager": frozenset({"listen"}),
    }
    """Tables and keys of capabilities to come: refused by name."""
    SYNONYMS: ClassVar[dict[str, str]] = {}
    """What operators may write, underscores for dashes, and the key they mean."""
    REFUSED: ClassVar[dict[str, str]] = {}
    """Tables, and keys as `table.key`, that this worker has not though others have, and what to do
    instead."""

    bee: Bee = Field(default_factory=Bee)
    engine: Launch = Field(default_factory=Launch)
    limits: Limits = Field(default_factory=Limits)
    media: Media = Field(default_factory=Media)
    tools: Tools = Field(default_factory=Tools)
    lifecycle: Lifecycle = Field(default_factory=Lifecycle)
    metrics: Metrics = Field(default_factory=Metrics)
    log: Log = Field(default_factory=Log)

    _source: Path = PrivateAttr(default=Path("egg.toml"))
    _warnings: tuple[Mistake, ...] = PrivateAttr(default=())

    @property
    def source(self) -> Path:
        """The file it was read from, absolute."""
        return self._source

    @property
    def name(self) -> str:
        """The file's name without `.toml`; unique among the eggs of a bee."""
        return self._source.stem

    @property
    def warnings(self) -> tuple[Mistake, ...]:
        """What is allowed but likely to disappoint; for the log and for `--check`."""
        return self._warnings

    def advertised(self) -> list[tuple[str, KeyPath]]:
        """Returns the model ids for humd, each with the key it comes from."""
        return [(model, ("bee", "models", i)) for i, model in enumerate(self.bee.models)]

    def models(self) -> list[str]:
        """Returns the model ids for humd, the engine's own name for its model first."""
        return [model for model, _ in self.advertised()]

    def flaws(self) -> Iterator[Flaw]:
        """Yields what is wrong between values that are right alone."""
        if self.limits.max_waiting_per_sid > self.limits.max_waiting:
            yield Flaw(
                ("limits", "max_waiting_per_sid"),
                f"must be at most limits.max_waiting, which is {self.limits.max_waiting}",
                (("limits", "max_waiting"),),
            )
        if self.metrics.interval < LEAST_INTERVAL:
            message = f"must be at least {LEAST_INTERVAL:g} s: a look costs about a millisecond"
            yield Flaw(("metrics", "interval"), message)
        for name in self.engine.env:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                message = "is no name of a variable: letters, digits and underscores"
                yield Flaw(("engine", "env", name), message, at_key=True)

    def cautions(self) -> Iterator[Flaw]:
        """Yields what becomes a warning."""
        bee = self.bee
        if bee.pace and bee.burst + bee.pace * ASKER_PAUSE >= HUMD_QUEUE:
            yield Flaw(
                ("bee", "pace"),
                f"an asker that pauses for {ASKER_PAUSE:g} s loses text: burst + pace × "
                f"{ASKER_PAUSE:g} s is {bee.burst + bee.pace * ASKER_PAUSE:.0f} tones and humd "
                f"holds {HUMD_QUEUE}; lower one of them",
            )
        if self.lifecycle.idle_timeout is not None and bee.propensity == "ephemeral":
            yield Flaw(
                ("lifecycle", "idle_timeout"),
                'does nothing with bee.propensity "ephemeral": a cell ends with its turn',
            )
        listen = self.metrics.listen
        if listen is not None and not is_loopback(split_listen(listen)[0]):
            yield Flaw(
                ("metrics", "listen"),
                f"{listen} can be reached from other machines, and whoever reaches it reads the "
                "figures without a password",
            )
