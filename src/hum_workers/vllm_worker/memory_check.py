"""What `--check` says of one egg's memory: cache, weights and processes, on host and devices.

Reads the model's folder. An error is what vLLM would refuse by its own arithmetic, or what can't be
there; the rest is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from hum_workers.devices import Gpu
from hum_workers.program.findings import Finding, Level, amount, size_value
from hum_workers.program.memory_check import DeviceNeed, HostNeed
from hum_workers.vllm_worker import model_check, model_size
from hum_workers.vllm_worker.command import CPU_KV_BYTES
from hum_workers.vllm_worker.egg import VllmEgg

PROCESS_BYTES = 2 * 1024**3
"""What vLLM's processes take beside weights and cache: 2.2 GB were measured on a CPU."""
LEAST_PROCESS_BYTES = 1024**3
"""What they surely take."""
GPU_SHARE = 0.92
"""vLLM's own `--gpu-memory-utilization`. So much must be free when it starts, even when the size of
the cache is given."""
CPU_BLOCK, GPU_BLOCK = 128, 16
"""Tokens that the cache is dealt out in. One block of them is the engine's own."""


class MemoryLook:
    """The memory of one egg; `folder` is its model's, `gpus` its devices, none for the CPU."""

    def __init__(
        self, egg: VllmEgg, env: Mapping[str, str], gpus: Sequence[Gpu], *, cpu: bool
    ) -> None:
        self._egg = egg
        self._gpus = gpus
        self._cpu = cpu
        folder = model_check.find_folder(egg, env)
        known = folder is not None and folder.is_dir()
        self._model = model_check.read_model(folder) if folder and known else None
        self._weights = (
            model_size.loaded_bytes(self._model, egg.model.dtype, egg.model.quantization)
            if self._model
            else 0
        )
        """0 when unknown."""

    @property
    def is_known(self) -> bool:
        """Whether there is a model's folder to look into."""
        return self._model is not None

    def findings(self, subject: str, *, free: int, total: int, node: int = 0) -> Iterator[Finding]:
        """Yields what is wrong, or how much it takes.

        Args:
            free: bytes of the host that can be used now.
            total: bytes of the host in all; 0 when unknown.
            node: bytes of its largest NUMA node; 0 when unknown.
        """
        if not self.is_known:
            return
        found = [*self._cache(subject, total), *self._devices(subject), *self._limit(subject)]
        if self._cpu and total:
            found += [*self._host(subject, free, total), *self._node(subject, node)]
        yield from found
        if not found and self._cpu and total:
            yield Finding("ok", subject, f"{self._terms()} of {amount(free)} free")

    def host_need(self) -> HostNeed:
        """Returns what one cell takes of the host."""
        sure = self._all_weights() + self._cache_bytes(0) if self._cpu else 0
        name = self._egg.name
        return HostNeed(name, sure + LEAST_PROCESS_BYTES, sure + PROCESS_BYTES)

    def device_needs(self) -> list[DeviceNeed]:
        """Returns what one cell takes of each of its devices whose memory is known."""
        kv = self._egg.kv
        needs = []
        for gpu in self._gpus:
            if gpu.memory is None:
                continue
            asked = round(gpu.memory * (kv.gpu_memory_utilization or GPU_SHARE))
            held = asked if kv.size is None else self._share() + kv.size
            label = f"GPU {gpu.uuid}"
            needs.append(DeviceNeed(self._egg.name, label, gpu.memory, held, asked))
        return needs

    def _share(self) -> int:
        """Returns the bytes of weights on one device."""
        parallel = self._egg.parallel
        return self._weights // (parallel.tensor * parallel.pipeline)

    def _all_weights(self) -> int:
        """Returns the bytes of weights of all replicas."""
        return self._weights * self._egg.parallel.data

    def _cache_bytes(self, total: int) -> int:
        """Returns the cache of the whole cell on a CPU; `total` for one that is a share of that."""
        kv, ranks = self._egg.kv, self._egg.parallel.world
        if kv.gpu_memory_utilization is not None:
            return round(total * kv.gpu_memory_utilization) * ranks
        return (kv.size or CPU_KV_BYTES) * ranks

    def _room(self, total: int) -> int | None:
        """Returns the bytes that the cache has on each device at most; None when unknown."""
        kv = self._egg.kv
        if kv.size is not None:
            return kv.size
        if self._cpu:
            share = kv.gpu_memory_utilization
            return CPU_KV_BYTES if share is None else (round(total * share) or None)
        memories = [gpu.memory for gpu in self._gpus if gpu.memory is not None]
        if not memories:
            return None
        share = kv.gpu_memory_utilization or GPU_SHARE
        return max(0, round(min(memories) * share) - self._share())

    def _cache(self, subject: str, total: int) -> Iterator[Finding]:
        """Looks whether one turn of full length fits; vLLM does not start otherwise."""
        egg, model, room = self._egg, self._model, self._room(total)
        parallel = egg.parallel
        assert model is not None
        length = egg.model.max_model_len or model_check.default_length(model)
        each = model_size.kv_bytes_per_token(
            model,
            egg.kv.cache_dtype,
            egg.model.dtype,
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
        )
        if each is None or length is None or room is None or self._shares_context():
            return
        block = self._block()
        least = (ceil(length / block) + 1) * block * each
        if least <= room:
            return
        fits = max(0, (room // (block * each) - 1) * block)
        if not self._cpu and egg.kv.size is None:
            advice = f"lower [model] max_model_len to {fits}" if fits else "take more GPUs"
        else:
            key = "set [kv] size to" if egg.kv.gpu_memory_utilization is None else "give it"
            advice = f"{key} {size_value(least)} or more"
            advice += f", or [model] max_model_len to {fits} at most" if fits else ""
        yield Finding(
            "error",
            subject,
            f"the cache of {amount(room)} has room for one turn of {fits} tokens, and "
            f"max_model_len is {length}, so vLLM would not start; {advice}",
        )

    def _shares_context(self) -> bool:
        """Whether ranks share the cache of one turn."""
        names = (arg.partition("=")[0].replace("_", "-") for arg in self._egg.engine.args)
        return any("context-parallel" in name or name in ("-dcp", "-pcp") for name in names)

    def _block(self) -> int:
        args = self._egg.engine.args
        for index, arg in enumerate(args):
            name, _, value = arg.partition("=")
            if name.replace("_", "-") == "--block-size":
                given = value or (args[index + 1] if index + 1 < len(args) else "")
                return int(given) if given.isdecimal() and int(given) else 1
        return CPU_BLOCK if self._cpu else GPU_BLOCK

    def _devices(self, subject: str) -> Iterator[Finding]:
        need = self._share() + (self._egg.kv.size or 0)
        for gpu in self._gpus:
            if gpu.memory is not None and need > gpu.memory:
                text = f"weights and cache need {amount(need)}; GPU {gpu.uuid} has"
                yield Finding("error", subject, f"{text} {amount(gpu.memory)}")

    def _terms(self) -> str:
        terms = [f"{amount(self._all_weights())} weights"] if self._weights else []
        terms.append(f"{amount(self._cache_bytes(0))} cache")
        return " + ".join([*terms, f"{amount(PROCESS_BYTES)} for its processes"])

    def _limit(self, subject: str) -> Iterator[Finding]:
        limit, need = self._egg.limits.memory, self.host_need()
        if limit is None or need.likely <= limit:
            return
        terms = self._terms() if self._cpu else f"{amount(PROCESS_BYTES)} for its processes"
        text = f"{terms} is more than [limits] memory, {amount(limit)}"
        level: Level = "error" if need.sure > limit else "warning"
        lower = ", or lower [kv] size" if self._cpu else ""
        text += f"; set that to {size_value(need.likely)} or more{lower}"
        yield Finding(level, subject, text)

    def _host(self, subject: str, free: int, total: int) -> Iterator[Finding]:
        """Looks whether the host has what a cell on the CPU needs."""
        if self._egg.kv.gpu_memory_utilization is not None:
            wanted = self._cache_bytes(total)
            if wanted > free:
                text = f"[kv] gpu_memory_utilization asks for {amount(wanted)} of the host's memory"
                level: Level = "error" if wanted > total else "warning"
                yield Finding(level, subject, f"{text}, and {amount(free)} are free; lower it")
            return
        if self.host_need().likely > free:
            level = "error" if self._all_weights() + self._cache_bytes(0) > total else "warning"
            text = f"{self._terms()} is more than the {amount(free)} that are free here"
            yield Finding(level, subject, f"{text}; lower [kv] size")

    def _node(self, subject: str, node: int) -> Iterator[Finding]:
        """Looks whether the cache of one rank fits into one NUMA node, where vLLM puts it."""
        size = self._egg.kv.size or CPU_KV_BYTES
        if self._egg.kv.gpu_memory_utilization is None and node and size > node:
            text = f"[kv] size is {amount(size)} for each rank, and no NUMA node has more than"
            yield Finding("error", subject, f"{text} {amount(node)}; lower it")
