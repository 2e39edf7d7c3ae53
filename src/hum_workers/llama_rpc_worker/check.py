"""`llama-rpc-worker --check`: what would go wrong, found without loading anything.

Never raises: what can't be looked at becomes a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hum_workers.llama_rpc_worker import command
from hum_workers.llama_rpc_worker.binaries import Binaries, find
from hum_workers.llama_rpc_worker.egg import LlamaEgg
from hum_workers.llama_rpc_worker.facts import ModelFacts
from hum_workers.llama_rpc_worker.gguf import read
from hum_workers.llama_rpc_worker.model_match import cache, mismatches, weights
from hum_workers.program.findings import Finding, Level, safely
from hum_workers.program.host_check import available_memory, check_host

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
    return findings + list(check_host(command.HIVE, eggs, env))


class _Look:
    """One egg under examination; what one step learns serves the next."""

    def __init__(self, egg: LlamaEgg, env: Mapping[str, str]) -> None:
        self._egg = egg
        self._env = env
        self._binaries: Binaries | None = None
        self._model: ModelFacts | None = None

    def findings(self) -> Iterator[Finding]:
        egg, name = self._egg, self._egg.name
        for warning in egg.warnings:
            yield Finding("warning", f"{name} egg", str(warning))
        if egg.cell.role == "coordinator":
            yield from safely(f"{name} model", self._header)
        yield from safely(f"{name} engine", self._engine)
        yield from safely(f"{name} devices", self._devices)
        yield from safely(f"{name} memory", self._memory)

    def _header(self) -> Iterator[Finding]:
        egg, subject = self._egg, f"{self._egg.name} model"
        assert egg.model.path is not None
        model = read(egg.model.path)
        wrong = list(mismatches(egg, model))
        for mismatch in wrong:
            yield Finding("error", subject, mismatch)
        if wrong:
            return
        self._model = model
        if egg.model.ctx > model.context:
            text = f"[model] ctx is {egg.model.ctx}, and it was trained for {model.context} tokens"
            yield Finding("warning", subject, text)
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
        text = f"llama.cpp {found.version} in {found.server.parent}, files {found.build.digest}"
        yield Finding("ok", subject, text)

    def _devices(self) -> Iterator[Finding]:
        subject = f"{self._egg.name} devices"
        if self._binaries is None:
            return
        there = (*self._binaries.devices, "CPU")
        for device in self._egg.rpc.devices:
            if device not in there:
                text = f"rpc.devices: {device} is not there; {', '.join(there)} are"
                yield Finding("error", subject, text)
                return
        if self._egg.cell.role == "slice":
            chosen = self._egg.rpc.devices or self._binaries.devices or ("CPU",)
        else:
            chosen = self._binaries.devices or ("CPU",)
        yield Finding("ok", subject, ", ".join(chosen))

    def _memory(self) -> Iterator[Finding]:
        egg, subject = self._egg, f"{self._egg.name} memory"
        free, total = available_memory()
        if not total:
            return
        if egg.cell.role == "slice":
            if egg.rpc.memory is not None and egg.rpc.memory > total:
                text = f"[rpc] memory is {_gib(egg.rpc.memory)}, and this machine has {_gib(total)}"
                yield Finding("error", subject, text)
            return
        if self._model is None or self._binaries is None:
            return
        if egg.slices or self._binaries.devices:
            return  # where each byte goes, the route says
        yield from self._all_here(self._model, free, total)

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
