"""`llama-rpc-worker --check`: what would go wrong, found without loading anything.

Never raises: what can't be looked at becomes a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hum_workers.llama_rpc_worker import command, server_help
from hum_workers.llama_rpc_worker.binaries import Binaries, find
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.llama_rpc_worker.facts import Device, ModelFacts
from hum_workers.llama_rpc_worker.gguf import read
from hum_workers.llama_rpc_worker.model_check import (
    check_template,
    context_warnings,
    layer_faults,
)
from hum_workers.llama_rpc_worker.model_match import cache, mismatches, weights
from hum_workers.llama_rpc_worker.slice_memory import usable
from hum_workers.program.findings import Finding, Level, safely
from hum_workers.program.host_check import Listens, available_memory, check_host

GIB = 1024**3
PROCESS_BYTES = 256 * 1024**2
"""What llama-server takes beside weights and cache: compute buffers, and the program itself."""


def check(eggs: Sequence[LlamaEgg], env: Mapping[str, str]) -> list[Finding]:
    """Returns the findings on a bee with these eggs.

    Args:
        env: our own environment.
    """
    findings: list[Finding] = []
    for egg in eggs:
        findings += _Look(egg, env).findings()
    doors = [
        Listens("door", "[rpc] listen", egg.rpc.listen) for egg in eggs if egg.cell.role == "slice"
    ]
    # Others name its hid in their eggs before it ever runs.
    host = check_host(command.HIVE, eggs, env, listens=doors, makes_key=True)
    return findings + list(host)


class _Look:
    """One egg under examination; what one step learns serves the next."""

    def __init__(self, egg: LlamaEgg, env: Mapping[str, str]) -> None:
        self._egg = egg
        self._env = env
        self._binaries: Binaries | None = None
        self._model: ModelFacts | None = None
        self._devices_used: tuple[str, ...] = ()

    def findings(self) -> Iterator[Finding]:
        egg, name = self._egg, self._egg.name
        for warning in egg.warnings:
            yield Finding("warning", f"{name} egg", str(warning))
        if egg.cell.role == "coordinator":
            yield from safely(f"{name} model", self._header)
            yield from check_template(egg, f"{name} model")
        yield from safely(f"{name} engine", self._engine)
        yield from safely(f"{name} engine", self._args)
        yield from safely(f"{name} devices", self._devices)
        yield from safely(f"{name} memory", self._memory)

    def _header(self) -> Iterator[Finding]:
        egg, subject = self._egg, f"{self._egg.name} model"
        assert egg.model.path is not None
        model = read(egg.model.path)
        wrong = [*mismatches(egg, model), *layer_faults(egg, model)]
        for mismatch in wrong:
            yield Finding("error", subject, mismatch)
        if wrong:
            return
        self._model = model
        for warning in context_warnings(egg, model):
            yield Finding("warning", subject, warning)
        files = "" if len(model.files) == 1 else f" in {len(model.files)} files"
        yield Finding(
            "ok",
            subject,
            f"{model.architecture} of {len(model.layers)} blocks, hidden width "
            f"{model.hidden_width}, {_gib(weights(model))}{files}, fingerprint {model.fingerprint}",
        )

    def _engine(self) -> Iterator[Finding]:
        egg, subject = self._egg, f"{self._egg.name} engine"
        home = Path("/nonexistent")  # nothing that is asked writes
        env = command.environment(egg, self._env, home=home, cache=home)
        found = find(egg.engine.bin, env)
        if egg.cell.role == "slice":
            found.slice_program()
        elif egg.slices:
            found.needs_rpc()
        self._binaries = found
        text = f"llama.cpp {found.described()}, in {found.server.parent}"
        yield Finding("ok", subject, text)

    def _args(self) -> Iterator[Finding]:
        """Holds to llama-server's own help what only that knows; a slice's program has no more."""
        args, subject = self._egg.engine.args, f"{self._egg.name} engine"
        if self._binaries is None or not args or self._egg.cell.role == "slice":
            return
        known = server_help.parse(self._binaries.help)
        if not known:
            text = "its help can't be read, so engine.args can't be checked"
            yield Finding("warning", subject, text)
            return
        for complaint, surely in server_help.complaints(args, known):
            level: Level = "error" if surely else "warning"
            yield Finding(level, subject, f"engine.args: {complaint}")

    def _devices(self) -> Iterator[Finding]:
        subject = f"{self._egg.name} devices"
        if self._binaries is None:
            return
        there = (*self._binaries.devices, "CPU")
        for device in self._egg.rpc.devices:
            if device not in there:
                known = ", ".join(there) if len(there) > 1 else f"{there[0]} alone"
                text = f"[rpc] devices: {device} is not there; there is {known}"
                yield Finding("error", subject, text)
                return
        named = self._egg.rpc.devices if self._egg.cell.role == "slice" else []
        chosen = tuple(named or self._binaries.devices or ("CPU",))
        self._devices_used = chosen
        yield Finding("ok", subject, ", ".join(chosen))

    def _memory(self) -> Iterator[Finding]:
        egg = self._egg
        free, total = available_memory()
        if not total:
            return
        if egg.cell.role == "slice":
            yield from self._lent(Device(name="CPU", free=free, total=total))
            return
        if self._model is None or self._binaries is None:
            return
        if egg.slices or self._binaries.devices:
            return  # where each byte goes, the route says
        yield from self._all_here(self._model, free, total)

    def _lent(self, cpu: Device) -> Iterator[Finding]:
        """Yields what a slice may lend of its devices."""
        egg, subject = self._egg, f"{self._egg.name} memory"
        if self._binaries is None or not self._devices_used:
            return
        there = {one.name: one for one in (cpu, *self._binaries.memory)}
        used = tuple(there[name] for name in self._devices_used)
        free, total = sum(one.free for one in used), sum(one.total for one in used)
        names = ", ".join(self._devices_used)
        if not total:
            return
        lends = usable(egg.rpc.memory, egg.limits.memory, used)
        if lends > total:
            text = f"[rpc] memory is {_gib(lends)}, and {names} has {_gib(total)}; lower it"
            yield Finding("error", subject, text)
        elif lends > free:
            text = f"it lends {_gib(lends)}, and {names} has {_gib(free)} free now"
            yield Finding("warning", subject, f"{text}; lower [rpc] memory or free some")
        else:
            whose = "" if egg.rpc.memory is None else ", as [rpc] memory says"
            text = f"it lends {_gib(lends)} of {_gib(free)} free on {names}{whose}"
            yield Finding("ok", subject, text)

    def _all_here(self, model: ModelFacts, free: int, total: int) -> Iterator[Finding]:
        egg, subject = self._egg, f"{self._egg.name} memory"
        need = weights(model) + cache(egg, model) + PROCESS_BYTES
        terms = f"{_gib(weights(model))} weights + {_gib(cache(egg, model))} cache"
        mend = "lower [model] ctx or parallel, or name slices"
        if egg.limits.memory is not None and need > egg.limits.memory:
            text = f"{terms} is more than [limits] memory, {_gib(egg.limits.memory)}; {mend}"
            yield Finding("warning", subject, text)
        elif need > free:
            level: Level = "error" if need > total else "warning"
            text = f"{terms} is more than the {_gib(free)} that are free here; {mend}"
            yield Finding(level, subject, text)
        else:
            yield Finding("ok", subject, f"{terms} of {_gib(free)} free")


def _gib(size: float) -> str:
    return f"{size / GIB:.2g} GiB" if size < 10 * GIB else f"{size / GIB:.0f} GiB"
