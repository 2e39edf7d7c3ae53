"""From an egg to the one command line that starts llama-server or rpc-server (pure, but for a key).

Promise: what an operator wants to see stands on the command line; the key stands in a file of mode
0600 only. Nothing of the shell's environment decides where a layer goes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hum_workers.errors import EngineError
from hum_workers.llama_rpc_worker import signs
from hum_workers.spec import CellSpec

if TYPE_CHECKING:
    from hum_workers.llama_rpc_worker.binaries import Binaries
    from hum_workers.llama_rpc_worker.egg import LlamaEgg

HIVE = "llama-rpc-worker"
SOCKET_FILE = "engine.sock"
"""llama-server takes a host that ends in .sock for a Unix socket."""
KEY_FILE = "key"
TEMPLATE_FILE = "chat.jinja"
SOCKET_PATH_LIMIT = 107
"""Bytes in the path of a Unix socket."""
CPU_BATCH, GPU_BATCH = 128, 512
"""Tokens of a prompt in one step, which has to end before a cancel is seen. Larger ones make a GPU
faster, and hardly a CPU."""
CANCEL_CONFIRM = 5.0
"""Seconds after which a cancel is looked into: a batch of the sizes above takes less."""
CANCEL_STEPS = 4
"""Steps after which a cancel was surely seen: one that runs, one for the news, and two more."""
LOCAL_ROUTE = ("-ngl", "all", "-sm", "layer")
"""Where no slice is used: everything stays here."""
LOOPBACK = "127.0.0.1"

INHERITED = frozenset(
    """PATH LANG LANGUAGE TZ USER LOGNAME LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES
    HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GGML_VK_VISIBLE_DEVICES""".split()
)
INHERITED_PREFIXES = ("LC_", "OMP_", "GOMP_", "OPENBLAS_", "NVIDIA_")


def environment(
    egg: LlamaEgg, inherited: Mapping[str, str], *, home: Path, cache: Path
) -> dict[str, str]:
    """Returns the complete environment of any of llama.cpp's programs, the egg's part last.

    Every LLAMA_ARG_* of a shell would be obeyed, a whole route among them: none is passed on.
    """
    ours = {
        "HOME": str(home),
        "LLAMA_CACHE": str(cache),
        "TMPDIR": str(home / "tmp"),
        "GGML_NO_BACKTRACE": "1",  # else a crash waits for a debugger that prints its stacks
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NO_COLOR": "1",
    }
    passed = {
        name: value
        for name, value in inherited.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
    return {**passed, **ours, **egg.engine.env}


def batch_for(binaries: Binaries) -> int:
    """Returns the tokens of a prompt in one step that are best on this host's own devices."""
    return GPU_BATCH if binaries.devices else CPU_BATCH


def build_coordinator(
    egg: LlamaEgg,
    binaries: Binaries,
    route_flags: Sequence[str],
    *,
    cell_id: str,
    private: Path,
    log_file: Path | None,
    inherited: Mapping[str, str],
    cores: Sequence[int],
    batch: int = CPU_BATCH,
) -> CellSpec:
    """Returns all that a tender needs to raise llama-server.

    Args:
        route_flags: where each layer goes: `--rpc`, `--device`, `-ts` and the like.
        private: the cell's folder; it is wiped before each start.
        inherited: our own environment, of which an allow-list is passed on.
        cores: those that the engine may use.
        batch: tokens of a prompt in one step.

    Raises:
        EngineError: the private folder's path is too long for a Unix socket.
    """
    _check_length(private)
    key = secrets.token_hex(24)
    files = {KEY_FILE: f"{key}\n"}
    if egg.model.chat_template is not None and "{" in egg.model.chat_template:
        files[TEMPLATE_FILE] = egg.model.chat_template
    return CellSpec(
        cell_id=cell_id,
        hive=HIVE,
        argv=[
            *egg.engine.command,
            *(str(binaries.server), "-m", str(egg.model.path)),
            *route_flags,
            *_size(egg, batch),
            *_manner(egg, private),
            *_threads(egg, cores),
            *egg.engine.args,
        ],
        env=environment(egg, inherited, home=private, cache=private / "tmp"),
        files=files,
        uds=str(private / SOCKET_FILE),
        headers={"Authorization": f"Bearer {key}"},
        model=egg.model.served_name,
        progress_counters=signs.PROGRESS,
        running_gauge=signs.RUNNING,
        waiting_gauge=signs.WAITING,
        request_fields=signs.REQUEST,
        renamed_fields=signs.RENAMED,
        most_schema=signs.MOST_SCHEMA,
        reworded=signs.REWORDED,
        advice=signs.ADVICE,
        canaries=[canary(egg.model.served_name)],
        marks=signs.MARKS,
        notices=[[words, ""] for words in signs.PROOF],
        stall_timeout=egg.lifecycle.stall_timeout,
        cancel_confirm=CANCEL_CONFIRM,
        cancel_steps=CANCEL_STEPS,
        cancel_recycles=True,
        **_common(egg, private, log_file),
    )


def build_slice(
    egg: LlamaEgg,
    binaries: Binaries,
    port: int,
    *,
    cell_id: str,
    private: Path,
    cache: Path,
    log_file: Path | None,
    inherited: Mapping[str, str],
    cores: Sequence[int],
    host: str = LOOPBACK,
) -> CellSpec:
    """Returns all that a tender needs to raise rpc-server.

    Args:
        port: where it listens; it can't choose one itself.
        cache: folder of the tensors that it keeps, where the egg has it keep some.
        host: another address than loopback only where the egg says that the network is private.

    Raises:
        EngineError: this llama.cpp has no rpc-server.
    """
    program, rpc = binaries.slice_program(), egg.rpc
    devices = rpc.devices or binaries.devices or ("CPU",)
    return CellSpec(
        cell_id=cell_id,
        hive=HIVE,
        argv=[
            *egg.engine.command,
            str(program),
            *("-H", host, "-p", str(port)),
            *("-t", str(rpc.threads or max(1, len(cores)))),
            *("-d", ",".join(devices)),
            *(["-c"] if rpc.cache else []),
        ],
        env=environment(egg, inherited, home=private, cache=cache),
        uds=f"{host}:{port}",
        protocol="rpc",
        model="",
        notices=signs.SLICE_NOTICES,
        advice=signs.SLICE_ADVICE,
        stall_timeout=0.0,
        **_common(egg, private, log_file),
    )


def _common(egg: LlamaEgg, private: Path, log_file: Path | None) -> dict[str, Any]:
    """Returns where the engine lives, what it may use, and how long things may take."""
    return {
        "cwd": os.path.dirname(os.path.abspath(egg.source)),
        "private": str(private),
        "log_file": None if log_file is None else str(log_file),
        "confine": egg.limits.confine,
        "cgroup": egg.limits.cgroup,
        "memory": egg.limits.memory,
        "open_files": egg.limits.open_files,
        "cpus": egg.limits.cpus,
        "start_timeout": egg.lifecycle.start_timeout,
        "stop_grace": egg.lifecycle.stop_grace,
        "sample_interval": egg.metrics.interval,
    }


def _check_length(private: Path) -> None:
    over = len(str(private / SOCKET_FILE).encode()) - SOCKET_PATH_LIMIT
    if over > 0:
        raise EngineError(
            f"{private}: {over} bytes too long for the engine's socket; set XDG_RUNTIME_DIR to a "
            "shorter path"
        )


def _size(egg: LlamaEgg, batch: int) -> list[str]:
    """Returns what decides how much memory it takes; nothing is left to the engine's guess."""
    model = egg.model
    flags = ["-fit", "off", "-c", str(model.ctx * model.parallel), "-np", str(model.parallel)]
    return [*flags, "-no-kvu", "-b", str(batch), "-ub", str(batch), "--cache-ram", "0"]


def _manner(egg: LlamaEgg, private: Path) -> list[str]:
    """Returns how it is spoken to and what it says."""
    flags = ["--host", str(private / SOCKET_FILE), "--api-key-file", str(private / KEY_FILE)]
    flags += ["--alias", egg.model.served_name, "--jinja"]
    if (template := egg.model.chat_template) is not None:
        path = str(private / TEMPLATE_FILE) if "{" in template else template
        flags += ["--chat-template-file", path]
    flags += ["--check-tensors", "--metrics", "--no-slots", "--no-ui"]
    return [*flags, "--cors-origins", "localhost", "-lv", "4"]


def _threads(egg: LlamaEgg, cores: Sequence[int]) -> list[str]:
    """Returns the threads of the CPU, where the egg's own flags do not say."""
    given = {"-t", "--threads"} & set(egg.engine.args)
    return [] if given or not cores else ["-t", str(len(cores))]


def canary(model: str) -> dict[str, Any]:
    """Returns the request that llama-server must answer before it is ready: a page that says 200
    proves nothing of the route."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Say ok."}],
        "temperature": 0,
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
