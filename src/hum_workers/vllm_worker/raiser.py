"""VllmRaiser: from an egg to the spec of its next cell, with what this host has looked up."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hum_workers import devices
from hum_workers.cells.blame import Diagnosis
from hum_workers.errors import EngineError
from hum_workers.program import places
from hum_workers.spec import CellSpec
from hum_workers.vllm_worker import command, engine_help, environment, failure
from hum_workers.vllm_worker.egg import VllmEgg
from hum_workers.vllm_worker.probe import Engine, probe


class VllmRaiser:
    """Raises the engine of one egg. `spec` looks the engine and the devices up anew each time."""

    def __init__(
        self, egg: VllmEgg, *, private: Path, log_file: Path | None, inherited: Mapping[str, str]
    ) -> None:
        self.egg = egg
        self._private = private
        self._log_file = log_file
        self._inherited = inherited

    def engine(self) -> Engine:
        """Returns the egg's vLLM.

        Raises:
            EngineError: there is none.
        """
        python = self.egg.engine.python or sys.executable
        env = environment.base(
            self._inherited, self.egg.engine.env, python=python, download=self.egg.model.download
        )
        return probe(python, env)

    def spec(self, cell_id: str, away: Mapping[str, str] = devices.NONE_AWAY) -> CellSpec:
        """Returns the spec of the next cell, which gets none of the devices in `away`.

        Raises:
            NoDevice: those that it could have are away.
            HumError: no engine, or not the devices that the egg asks for.
        """
        egg, engine = self.egg, self.engine()
        parallel = egg.parallel
        gpus: list[devices.Gpu] = []
        if engine.cpu_only and egg.placement.gpu:
            raise EngineError(
                f"[placement] gpu is set, but the vLLM of {engine.python} was built for the CPU: "
                "install hum_workers[cuda] there, or remove the key"
            )
        if not engine.cpu_only:
            gpus = devices.choose(
                egg.placement.gpu or (),
                devices.nvidia_devices(self._inherited),
                count=parallel.tensor * parallel.pipeline * parallel.data,
                inherited=self._inherited.get("CUDA_VISIBLE_DEVICES"),
                away=away,
            )
        return command.build(
            egg,
            engine,
            cell_id=cell_id,
            private=places.fresh(self._private),
            log_file=self._log_file,
            inherited=self._inherited,
            gpus=gpus,
            cores=devices.usable_cores(egg.limits.cpus),
            numa_nodes=_numa_nodes(),
            flags=engine_help.cached_flags(engine, engine_help.cache_folder(self._inherited)),
        )

    def diagnose(self, lines: Sequence[str]) -> Diagnosis:
        """Returns the one useful line of vLLM's last output, and its class."""
        return failure.diagnosis(lines)


def _numa_nodes() -> int:
    try:
        names = os.listdir("/sys/devices/system/node")
    except OSError:
        return 1
    return max(1, sum(name.startswith("node") and name[4:].isdecimal() for name in names))
