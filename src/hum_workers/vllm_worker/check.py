"""`vllm-worker --check`: what would go wrong, found without starting anything.

Never raises: what can't be looked at becomes a finding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from hum_workers import devices
from hum_workers.program import memory_check, places
from hum_workers.program.command_check import why_not_startable
from hum_workers.program.findings import Finding, Level, safely
from hum_workers.program.host_check import (
    available_memory,
    cells_at_once,
    check_host,
    largest_node,
    patience,
)
from hum_workers.vllm_worker import command, engine_help, environment, flag_values, model_check
from hum_workers.vllm_worker.egg import VllmEgg
from hum_workers.vllm_worker.memory_check import MemoryLook
from hum_workers.vllm_worker.probe import TESTED, Engine, probe

HIVE = "vllm-worker"
PLUGINS = {
    "tool_call_parser": "--tool-parser-plugin",
    "reasoning_parser": "--reasoning-parser-plugin",
}
"""Key of `[model]` to the flag that brings names which the engine's help does not know."""
FEWER = "lower their [kv] size, or let fewer live at once by [bee] max_procs"
APART = "give each GPUs of its own, or a share by [kv] gpu_memory_utilization, below 1 together"


def check(eggs: Sequence[VllmEgg], env: Mapping[str, str]) -> list[Finding]:
    """Returns the findings on a bee with these eggs.

    Args:
        env: our own environment.
    """
    findings: list[Finding] = []
    helps: dict[Engine, flag_values.Help | None] = {}
    looks = [_Look(egg, env, helps) for egg in eggs]
    for look in looks:
        findings += look.findings()
    cells = memory_check.Cells(cells_at_once(eggs), len(eggs))
    findings += safely(memory_check.SUBJECT, lambda: _together(looks, cells))
    return findings + list(check_host(HIVE, eggs, env))


def _together(looks: Sequence[_Look], cells: memory_check.Cells) -> Iterator[Finding]:
    """Yields whether the cells that live at once fit beside each other."""
    memories = [look.memory for look in looks if look.memory is not None and look.memory.is_known]
    free, total = available_memory()
    hosts = [memory.host_need() for memory in memories]
    yield from memory_check.check_host_sum(hosts, cells, free=free, total=total, advice=FEWER)
    needs = [need for memory in memories for need in memory.device_needs()]
    yield from memory_check.check_device_sums(needs, cells, advice=APART)


class _Look:
    """One egg under examination; what one step learns serves the next."""

    def __init__(
        self,
        egg: VllmEgg,
        env: Mapping[str, str],
        helps: dict[Engine, flag_values.Help | None],
    ) -> None:
        self._egg = egg
        self._helps = helps
        self._env = env
        self._engine: Engine | None = None
        self._gpus: list[devices.Gpu] = []
        self.memory: MemoryLook | None = None

    def findings(self) -> Iterator[Finding]:
        egg, name = self._egg, self._egg.name
        for warning in egg.warnings:
            yield Finding("warning", f"{name} egg", str(warning))
        subject = f"{name} model"
        yield from safely(
            subject, lambda: model_check.check_model(egg, self._engine_env(), subject)
        )
        yield from safely(f"{name} engine", self._find_engine)
        yield from safely(f"{name} engine", self._command)
        yield from safely(f"{name} engine", self._length)
        yield from safely(f"{name} engine", self._help)
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

    def _command(self) -> Iterator[Finding]:
        words, folder = self._egg.engine.command, self._egg.source.parent
        if why := why_not_startable(words, self._engine_env(), folder):
            text = f"[engine] command: {words[0]} {why}"
            yield Finding("error", f"{self._egg.name} engine", text)

    def _length(self) -> Iterator[Finding]:
        """Raises when the cell's folder would be too deep for the engine's sockets."""
        cells = places.cells_path(self._env, os.getuid())
        command.check_length(places.fresh(places.private_folder(cells, "0" * 8, self._egg.name)))
        return iter(())

    def _help(self) -> Iterator[Finding]:
        """Holds to the engine's own help what only that knows."""
        engine, asked = self._engine, self._named()
        if engine is None or engine.broken or not (asked or self._egg.engine.args):
            return
        if engine not in self._helps:  # no answer takes minutes, so no two are waited for
            with patience(f"asking vLLM {engine.version} for its flags; at first it takes a while"):
                self._helps[engine] = engine_help.known_help(
                    engine, self._engine_env(), engine_help.cache_folder(self._env)
                )
        known = self._helps[engine]
        if known is None:
            keys = [*asked, *(["engine.args"] if self._egg.engine.args else [])]
            text = f"its help can't be read, so {', '.join(keys)} can't be checked"
            yield Finding("warning", f"{self._egg.name} engine", text)
            return
        yield from self._args(engine, known)
        for key, (value, choices) in self._choices(asked, known).items():
            if choices and value not in choices:
                version = f"not known to vLLM {engine.version}"
                text = f'{key}: "{value}" is {version}{flag_values.instead(value, choices)}'
                yield Finding("error", f"{self._egg.name} egg", text)

    def _named(self) -> dict[str, str]:
        """Returns the values that vLLM has names for, by their keys."""
        model, kv = self._egg.model, self._egg.kv
        values = {
            "model.quantization": model.quantization,
            "model.tool_call_parser": model.tool_call_parser,
            "model.reasoning_parser": model.reasoning_parser,
            "kv.cache_dtype": kv.cache_dtype,
        }
        return {key: value for key, value in values.items() if value is not None}

    def _choices(
        self, asked: Mapping[str, str], known: flag_values.Help
    ) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Returns each value and what it may be; nothing for one that a plugin may bring."""
        args = [arg.partition("=")[0].replace("_", "-") for arg in self._egg.engine.args]
        found = {}
        for path, value in asked.items():
            key = path.partition(".")[2]
            flag = "--kv-cache-dtype" if key == "cache_dtype" else f"--{key.replace('_', '-')}"
            if PLUGINS.get(key) not in args:
                found[path] = (value, known.methods.get(key) or known.choices(flag))
        return found

    def _args(self, engine: Engine, known: flag_values.Help) -> Iterator[Finding]:
        args, subject = self._egg.engine.args, f"{self._egg.name} engine"
        for flag, near in flag_values.unknown_flags(args, known.names()):
            hint = f"; did you mean {near}?" if near else ""
            text = f"engine.args: {flag} is not known to vLLM {engine.version}{hint}"
            yield Finding("error", subject, text)
        for complaint, surely in flag_values.wrong_values(args, known):
            level: Level = "error" if surely else "warning"
            yield Finding(level, subject, f"engine.args: {complaint}")

    def _devices(self) -> Iterator[Finding]:
        egg, engine, subject = self._egg, self._engine, f"{self._egg.name} devices"
        with patience("asking nvidia-smi for the GPUs"):
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
        cpu = self._engine is not None and self._engine.cpu_only
        self.memory = MemoryLook(self._egg, self._engine_env(), self._gpus, cpu=cpu)
        free, total = available_memory()
        yield from self.memory.findings(
            f"{self._egg.name} memory", free=free, total=total, node=largest_node()
        )
