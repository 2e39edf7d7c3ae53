"""The engine of the hive llama-rpc-worker: llama.cpp with RPC, found or built.

What is on PATH already is taken as it is. Else it is built into `llama.cpp` of the hive's folder,
with links beside the worker's interpreter, where the worker looks. Standard library only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from scripts import llama_cpp
from scripts.environment import SetupError, alone
from scripts.progress import Progress


def bring(data: Path, venv: Path, *, cuda: bool, env: Mapping[str, str]) -> None:
    """Makes sure that the worker in `venv` finds a llama.cpp with RPC.

    Raises:
        SetupError: it can't be built.
    """
    if here := found(env):
        print(f"build: llama.cpp: {here} is on PATH and has RPC; nothing is built", flush=True)
        return
    if cuda and shutil.which("nvcc", path=env.get("PATH")) is None:
        raise SetupError(
            "nvcc is not on PATH, which llama.cpp needs to use the GPUs here: install CUDA's "
            "toolkit, or set HUM_WORKERS_EXTRA=cpu"
        )
    flags = (*llama_cpp.FLAGS, llama_cpp.CUDA) if cuda else llama_cpp.FLAGS
    home = data / "llama.cpp"
    with Progress() as progress, alone(home, progress):
        llama_cpp.bring_engine(home, progress, flags=flags, python=str(venv / "bin" / "python"))
    link(home / llama_cpp.CURRENT / "bin", venv / "bin")
    print(f"build: llama.cpp: {home / llama_cpp.CURRENT / 'bin'}", flush=True)


def found(env: Mapping[str, str]) -> str | None:
    """Returns the llama-server on PATH if rpc-server lies beside it."""
    server = shutil.which(llama_cpp.NEEDED[0], path=env.get("PATH", os.defpath))
    if server is None:
        return None
    real = os.path.realpath(server)
    return real if os.access(Path(real).parent / llama_cpp.NEEDED[1], os.X_OK) else None


def link(programs: Path, bin_: Path) -> None:
    """Links llama.cpp's programs into the folder of the worker's interpreter."""
    for name in llama_cpp.NEEDED:
        part = bin_ / f".{name}.part"
        part.unlink(missing_ok=True)
        part.symlink_to(programs / name)
        part.rename(bin_ / name)
