"""`vllm-worker --check`: what would go wrong, found without starting anything.

Never raises: what can't be looked at becomes a finding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from hum_workers import devices
from hum_workers.program.findings import Finding, Level, safely
from hum_workers.program.host_check import available_memory, check_host
from hum_workers.vllm_worker import engine_help, environment, model_check
from hum_workers.vllm_worker.command import CPU_KV_BYTES
from hum_workers.vllm_worker.egg import VllmEgg
from hum_workers.vllm_worker.probe import TESTED, Engine, probe

HIVE = "vllm-worker"
PROCESS_BYTES = 2 * 1024**3
"""What vLLM's processes take beside weights and cache: 2.2 GB were measured on a CPU."""
GIB = 1024**3


def check(eggs: Sequence[VllmEgg], env: Mapping[str, str]) -> list[Finding]:
    """Returns the findings on a bee with these eggs.

    Args:
        env: our own environment.
    """
    findings: list[Finding] = []
    for egg in eggs:
        findings += _Look(egg, env).findings()
    return findings + list(check_host(HIVE, eggs, env))


class _Look:
    """One egg under examination; what one step learns serves the next."""

    def __init__(self, egg: VllmEgg, env: Mapping[str, str]) -> None:
        self._egg = egg
        self._env = env
        self._engine: Engine | None = None
        self._gpus: list[devices.Gpu] = []

    def findings(self) -> Iterator[Finding]:
        egg, name = self._egg, self._egg.name
        for warning in egg.warnings:
            yield Finding("warning", f"{name} egg", str(warning))
        subject = f"{name} model"
        yield from safely(
            subject, lambda: model_check.check_model(egg, self._engine_env(), subject)
        )
        yield from safely(f"{name} engine", self._find_engine)
        yield from safely(f"{name} engine", self._flags)
        yield from safely(f"{name} devices", self._devices)
        yield from safely(f"{name} memory", self._memory)

    def _engine_env(self) -> dict[str, str]:
        return environment.base(
            self._env, self._egg.engine.env, python=self._python, download=self._egg.model.download
        )

    @property
    def _python(self) -> str:
        return self._egg.engine.python or sys.executable

    def _find_engine(self) -> Iterator[Finding]:
        subject = f"{self._egg.name} engine"
        engine = probe(self._python, self._engine_env())
        self._engine = engine
        if engine.broken:
            yield Finding(
                "error",
                subject,
                f"{', '.join(engine.broken)} was built for another torch and breaks vLLM; mend it "
                f"by: {engine.python} -m pip uninstall -y torchvision torchaudio torchcodec",
            )
            return
        if engine.release < TESTED:
            oldest = ".".join(map(str, TESTED))
            text = f"vLLM {engine.version} is older than {oldest}, the first that was tried"
            yield Finding("warning", subject, text)
        text = f"vLLM {engine.version} ({engine.distribution}) in {engine.python}"
        yield Finding("ok", subject, text)

    def _flags(self) -> Iterator[Finding]:
        args, subject = self._egg.engine.args, f"{self._egg.name} engine"
        if not args or self._engine is None or self._engine.broken:
            return
        known = engine_help.known_flags(
            self._engine, self._engine_env(), engine_help.cache_folder(self._env)
        )
        if known is None:
            text = "its help can't be read, so engine.args were not checked"
            yield Finding("warning", subject, text)
            return
        for flag, near in engine_help.unknown_flags(args, known):
            hint = f"; did you mean {near}?" if near else ""
            text = f"engine.args: {flag} is not known to vLLM {self._engine.version}{hint}"
            yield Finding("error", subject, text)

    def _devices(self) -> Iterator[Finding]:
        egg, engine, subject = self._egg, self._engine, f"{self._egg.name} devices"
        seen = devices.nvidia_devices(self._env)
        if engine is not None and engine.cpu_only:
            if egg.placement.gpu:
                text = "[placement] gpu is set, and this vLLM is the build for CPUs"
                yield Finding("error", subject, f"{text}; install hum_workers[cuda]")
                return
            beside = f"; {len(seen)} NVIDIA devices stay unused" if seen else ""
            yield Finding("ok", subject, f"CPU, as this vLLM is the build for CPUs{beside}")
            return
        self._gpus = devices.choose(
            egg.placement.gpu,
            seen,
            count=egg.parallel.world,
            inherited=self._env.get("CUDA_VISIBLE_DEVICES"),
        )
        if self._gpus:
            names = ", ".join(f"{gpu.index} {gpu.name} {gpu.uuid}" for gpu in self._gpus)
            yield Finding("ok", subject, names)
        elif engine is not None:
            text = "no NVIDIA device that can be used, and this vLLM is the build for them"
            yield Finding("error", subject, f"{text}; install hum_workers[cpu]")

    def _memory(self) -> Iterator[Finding]:
        egg, subject = self._egg, f"{self._egg.name} memory"
        folder = model_check.find_folder(egg, self._engine_env())
        if folder is None or not folder.is_dir():
            return
        model = model_check.read_model(folder)
        yield from self._cache(model, subject)
        if self._gpus:
            yield from self._gpu_memory(model, subject)
        elif self._engine is not None and self._engine.cpu_only:
            yield from self._host_memory(model, subject)

    def _cache(self, model: model_check.Model, subject: str) -> Iterator[Finding]:
        """Looks whether one context of full length fits; vLLM does not start otherwise."""
        egg, each = self._egg, model_check.kv_bytes_per_token(model, self._egg.kv.cache_dtype)
        length = egg.model.max_model_len or model_check.length_limit(model)
        if each is None or length is None or egg.kv.size is None:
            return
        ranks = egg.parallel.tensor * egg.parallel.pipeline
        if length * each > egg.kv.size * ranks:
            yield Finding(
                "warning",
                subject,
                f"[kv] size holds about {egg.kv.size * ranks // each} tokens, and one context has "
                f"{length}; raise it to {_gib(length * each / ranks)} or lower max_model_len",
            )

    def _gpu_memory(self, model: model_check.Model, subject: str) -> Iterator[Finding]:
        egg = self._egg
        share = model.weights / (egg.parallel.tensor * egg.parallel.pipeline)
        need = share + (egg.kv.size or 0)
        for gpu in self._gpus:
            if gpu.memory is not None and need > gpu.memory:
                text = f"weights and cache need {_gib(need)}; GPU {gpu.uuid} has {_gib(gpu.memory)}"
                yield Finding("error", subject, text)

    def _host_memory(self, model: model_check.Model, subject: str) -> Iterator[Finding]:
        egg = self._egg
        free, total = available_memory()
        if egg.kv.gpu_memory_utilization is not None or not total:
            return
        cache = (egg.kv.size or CPU_KV_BYTES) * egg.parallel.world
        need = model.weights + cache + PROCESS_BYTES
        terms = f"{_gib(model.weights)} weights + {_gib(cache)} cache + {_gib(PROCESS_BYTES)}"
        if egg.limits.memory is not None and need > egg.limits.memory:
            text = f"{terms} is more than [limits] memory, {_gib(egg.limits.memory)}"
            yield Finding("warning", subject, text)
        elif need > free:
            level: Level = "error" if model.weights + cache > total else "warning"
            text = f"{terms} is more than the {_gib(free)} that are free here"
            yield Finding(level, subject, f"{text}; lower [kv] size")
        else:
            yield Finding("ok", subject, f"{terms} of {_gib(free)} free")


def _gib(size: float) -> str:
    return f"{size / GIB:.2g} GiB" if size < 10 * GIB else f"{size / GIB:.0f} GiB"
